"""What became of every entry under one method: changes of state, and snapshots of what it knew."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from kvlab.reference.notation import Array
from kvlab.reference.quantization import FULL_BITS

GONE, WIDE = 0, 1
"""Indices into `Run.states` that every run has: evicted, and kept at full precision."""

FIRST_STATES = ((0, 0), (FULL_BITS, FULL_BITS))
"""Bits of keys and of values of `GONE` and `WIDE`."""


@dataclass(frozen=True)
class Events:
    """Changes of state, in the order of layer, KV head, position and step; one array element each.

    A token is stored at full precision from the step that reads it; only what differs from that is
    an event.
    """

    layer: Int[Array, " events"]
    """Index of the layer in `Run.layers`."""
    head: Int[Array, " events"]
    position: Int[Array, " events"]
    step: Int[Array, " events"]
    """Index of the step in `Run.steps`."""
    state: Int[Array, " events"]
    """Index into `Run.states`."""

    @classmethod
    def joined(cls, parts: "list[Events]") -> "Events":
        """Put the events of several steps and layers into order."""
        names = ("layer", "head", "position", "step", "state")
        columns = {
            name: np.concatenate(
                [np.zeros(0, dtype=np.int64), *(getattr(part, name) for part in parts)]
            )
            for name in names
        }
        order = np.lexsort([columns[name] for name in ("step", "position", "head", "layer")])
        return cls(**{name: column[order] for name, column in columns.items()})


@dataclass(frozen=True)
class Snapshot:
    """What a layer knew of the entries to which one step attended, in ascending position.

    Those are the entries that were there before the step evicted any, its own tokens included.
    """

    step: int
    layer: int
    """Indices into `Run.steps` and `Run.layers`."""
    attention: Float[Array, "G n"]
    """From the step's last token, mean over the query heads of a KV head."""
    score: Float[Array, "G n"]
    """At the latest decision: NaN before the first one, −∞ where the entry was protected."""
    stamp: Int[Array, "G n"]
    """Generated token by which the entry was last activated; 0 if by none."""
    interval: Int[Array, "G n"]
    """Longest interval between two activations (MRI), in generated tokens; 0 if there is none."""

    @property
    def size(self) -> int:
        """Entries of all KV heads."""
        return self.attention.size


@dataclass(frozen=True)
class Run:
    """One generation under one method.

    Step i is the i-th block of tokens that the model read: one or more blocks of the prompt, then
    one generated token each.
    """

    method: str
    """In registry syntax."""
    budget: int | None
    prompt: int
    """Tokens of the prompt."""
    texts: tuple[str, ...]
    """Text of every token of prompt and answer; the last is written but never read."""
    solved: bool | None
    """Whether the answer is right; None where nobody can say."""
    layers: tuple[int, ...]
    """Number of each recorded layer in the model."""
    kv_heads: int
    steps: Int[Array, " s"]
    """Tokens seen after each step."""
    decisions: Bool[Array, " s"]
    """Whether the method's schedule was due at each step."""
    states: tuple[tuple[int, int], ...]
    """Bits per element of keys and of values, scales left out; the first two are `FIRST_STATES`."""
    events: Events = field(repr=False)
    snapshots: tuple[Snapshot, ...] = field(repr=False)

    @property
    def read(self) -> int:
        """Tokens that the model read: t."""
        return int(self.steps[-1])

    @cached_property
    def last_step(self) -> Int[Array, "L G t"]:
        """Index of the step that evicted each entry; the number of steps where none did."""
        found = np.full((len(self.layers), self.kv_heads, self.read), len(self.steps))
        gone = self.events.state == GONE
        place = tuple(getattr(self.events, name)[gone] for name in ("layer", "head", "position"))
        found[place] = self.events.step[gone]
        return found

    def stored(self, step: int) -> Int[Array, "L G t"]:
        """Index into `states` of every entry after a step; `GONE` also where it is not read yet.

        Raises:
            ValueError: if there is no such step.
        """
        if not 0 <= step < len(self.steps):
            raise ValueError(f"step = {step} must be between 0 and {len(self.steps) - 1}")
        found = np.full((len(self.layers), self.kv_heads, self.read), WIDE)
        events, happened = self.events, self.events.step <= step
        place = tuple(getattr(events, name)[happened] for name in ("layer", "head", "position"))
        found[place] = events.state[happened]  # the later event is written last
        found[..., self.steps[step] :] = GONE
        return found

    def attended(self, step: int) -> Bool[Array, "L G t"]:
        """Mark the entries to which a step attended: those left before it, and its own tokens."""
        before = 0 if step == 0 else int(self.steps[step - 1])
        found = np.zeros((len(self.layers), self.kv_heads, self.read), dtype=bool)
        if step > 0:
            found |= self.stored(step - 1) != GONE
        found[..., before : self.steps[step]] = True
        return found

    def entries(self) -> Float[Array, " s"]:
        """Entries per KV head after each step, mean over layers and heads."""
        left = np.bincount(self.events.step[self.events.state == GONE], minlength=len(self.steps))
        return self.steps - np.cumsum(left) / (len(self.layers) * self.kv_heads)


@dataclass(frozen=True)
class Timeline:
    """Runs over the same prompt, one per method."""

    model: str
    threshold: float
    """Attention from which on an entry counts as activated."""
    runs: tuple[Run, ...]
