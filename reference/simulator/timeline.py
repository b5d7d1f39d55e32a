"""The fate of every entry under one method: changes of state, snapshots, and their JSON.

JSON is version 1 of the schema that ``kvlab view`` puts into its page:

| entry | kind | holds |
|---|---|---|
| ``format`` | string | ``"kvlab timeline"`` |
| ``version`` | integer | version of this schema: 1 |
| ``kvlab`` | string | version of kvlab that wrote it |
| ``model`` | string | name of the model |
| ``threshold`` | number | attention from which on an entry counts as activated |
| ``runs`` | list | one object per method, below |

| entry of a run | kind | holds |
|---|---|---|
| ``method`` | string | registry syntax |
| ``budget`` | integer or null | entries per KV head and layer |
| ``prompt`` | integer | tokens of the prompt |
| ``texts`` | list of strings | text of every token; the last is never read |
| ``solved`` | boolean or null | whether the answer is right |
| ``layers`` | list of L integers | number of each recorded layer in the model |
| ``kv_heads`` | integer | G |
| ``steps`` | array ``[s]`` | tokens seen after each step |
| ``decisions`` | array ``[s]`` | 1 where the method's schedule was due |
| ``states`` | list of pairs | bits of keys and values; 0: evicted, 1: full precision |
| ``heads`` | list of L·G objects | one per layer and KV head, layers outside |
| ``snapshots`` | array | index of each step that has a snapshot |

| entry of a head | kind | holds |
|---|---|---|
| ``events`` | array ``[t + 1]`` | where each token's events begin below; last, their number |
| ``event_steps`` | array ``[events]`` | index of the step |
| ``event_states`` | array ``[events]`` | index of the state that begins with it |
| ``attention``, ``score`` | arrays ``[values]`` | see below |
| ``stamp`` | array ``[values]`` | last activation (TS), in generated tokens |
| ``interval`` | array ``[values]`` | longest interval (MRI), in generated tokens |

A token is stored at full precision from the step that reads it, unless an event of that step says
otherwise. Values are those of the entries that each snapshot's step attended to, one snapshot after
the other, by ascending position: the entries that the step before left, and its own tokens.
``score`` is NaN before the first decision and −∞ where the entry was protected.

An array is an object: ``dtype`` is ``uint8``, ``uint16``, ``uint32`` or ``bfloat16`` (the upper
half of a float32, rounded), ``data`` its bytes, little-endian, in base64.
"""

import base64
import json
from dataclasses import dataclass, field, replace
from importlib.metadata import version as installed_version
from typing import Any

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

    A token is stored at full precision from the step that reads it; only another state in that step
    or a later change of state is an event.
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
    """A layer's knowledge of the entries to which one step attended, in ascending position.

    Those are the entries that were there before the step evicted any, its own tokens included.
    """

    step: int
    layer: int
    """Indices into `Run.steps` and `Run.layers`."""
    attention: Float[Array, "G n"]
    """Attention from the step's last token, mean over the query heads of a KV head."""
    score: Float[Array, "G n"]
    """Score at the latest decision: NaN before the first one, −∞ where the entry was protected."""
    stamp: Int[Array, "G n"]
    """Generated token by which the entry was last activated; 0 if by none."""
    interval: Int[Array, "G n"]
    """Longest interval between two activations (MRI), in generated tokens; 0 if there is none."""


@dataclass(frozen=True)
class Run:
    """One generation under one method.

    Step i is the i-th block of tokens that the model read: one or more blocks of the prompt, then
    one generated token each.
    """

    method: str
    """The method in registry syntax."""
    budget: int | None
    prompt: int
    """Tokens of the prompt."""
    texts: tuple[str, ...]
    """Text of every token of prompt and answer; the last is written but never read."""
    solved: bool | None
    """Whether the answer is right; None if that is not known."""
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


# --- JSON ----------------------------------------------------------------------------------------

FORMAT = "kvlab timeline"
VERSION = 1
"""Version of the schema that this module writes, and the only one that it reads."""

KNOWN = ("attention", "score", "stamp", "interval")
"""What a snapshot holds of each entry."""

WHOLE = ("uint8", "uint16", "uint32")
BFLOAT16 = "bfloat16"


def write(timeline: Timeline) -> str:
    """Return a timeline as JSON."""
    return json.dumps(
        {
            "format": FORMAT,
            "version": VERSION,
            "kvlab": installed_version("kvlab"),
            "model": timeline.model,
            "threshold": timeline.threshold,
            "runs": [_run(run) for run in timeline.runs],
        },
        separators=(",", ":"),
    )


def read(text: str) -> Timeline:
    """Read what `write` wrote.

    Raises:
        ValueError: if it is no timeline of this version, or an entry is missing or damaged.
    """
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"this is no timeline: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(f"this is no timeline: format must be {FORMAT!r}")
    if found.get("version") != VERSION:
        raise ValueError(f"version = {found.get('version')!r} must be {VERSION}")
    try:
        runs = tuple(_read_run(run) for run in found["runs"])
        return Timeline(found["model"], found["threshold"], runs)
    except KeyError as error:
        raise ValueError(f"the timeline lacks {error}") from None
    except (TypeError, IndexError) as error:
        raise ValueError(f"the timeline is damaged: {error}") from None


def pack(numbers: Array) -> dict[str, str]:
    """Return an array as an object: whole numbers in the narrowest type, others as bfloat16."""
    if numbers.dtype.kind == "f":
        return _stored(BFLOAT16, _to_bfloat16(numbers))
    largest = int(numbers.max(initial=0))
    dtype = next(name for name in WHOLE if largest <= np.iinfo(name).max)
    return _stored(dtype, numbers.astype(dtype))


def unpack(stored: dict[str, str]) -> Array:
    """Return the array in an object.

    Raises:
        ValueError: if its type is unknown or its bytes are damaged.
    """
    dtype = stored["dtype"]
    if dtype not in (*WHOLE, BFLOAT16):
        raise ValueError(f"dtype = {dtype!r} must be {', '.join(WHOLE)} or {BFLOAT16}")
    raw = base64.b64decode(stored["data"], validate=True)
    if dtype == BFLOAT16:
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32).astype(float)
    return np.frombuffer(raw, np.dtype(dtype).newbyteorder("<")).astype(np.int64)


def _to_bfloat16(x: Array) -> Array:
    """Return the upper halves of float32 numbers, rounded to nearest, ties to even."""
    whole = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = whole + 0x7FFF + (whole >> 16 & 1)
    return np.where(np.isnan(x), np.uint32(0x7FC0), rounded >> 16).astype(np.uint16)


def _stored(dtype: str, numbers: Array) -> dict[str, str]:
    little = numbers.astype(numbers.dtype.newbyteorder("<"))
    return {"dtype": dtype, "data": base64.b64encode(little.tobytes()).decode("ascii")}


def _run(run: Run) -> dict[str, Any]:
    places = [(layer, head) for layer in range(len(run.layers)) for head in range(run.kv_heads)]
    return {
        "method": run.method,
        "budget": run.budget,
        "prompt": run.prompt,
        "texts": list(run.texts),
        "solved": run.solved,
        "layers": list(run.layers),
        "kv_heads": run.kv_heads,
        "steps": pack(run.steps),
        "decisions": pack(run.decisions.astype(np.int64)),
        "states": [list(bits) for bits in run.states],
        "heads": [_head(run, layer, head) for layer, head in places],
        "snapshots": pack(np.array(sorted({each.step for each in run.snapshots}), np.int64)),
    }


def _head(run: Run, layer: int, head: int) -> dict[str, Any]:
    events = run.events
    own = (events.layer == layer) & (events.head == head)
    counts = np.bincount(events.position[own], minlength=run.read)
    snapshots = [each for each in run.snapshots if each.layer == layer]
    return {
        "events": pack(np.concatenate([[0], np.cumsum(counts)])),
        "event_steps": pack(events.step[own]),
        "event_states": pack(events.state[own]),
        **{
            name: pack(np.concatenate([getattr(each, name)[head] for each in snapshots]))
            for name in KNOWN
        },
    }


def _read_run(stored: dict[str, Any]) -> Run:
    steps, layers, kv_heads = unpack(stored["steps"]), stored["layers"], stored["kv_heads"]
    heads = [{name: unpack(array) for name, array in head.items()} for head in stored["heads"]]
    run = Run(
        stored["method"],
        stored["budget"],
        stored["prompt"],
        tuple(stored["texts"]),
        stored["solved"],
        tuple(layers),
        kv_heads,
        steps,
        unpack(stored["decisions"]).astype(bool),
        tuple((key_bits, value_bits) for key_bits, value_bits in stored["states"]),
        _read_events(heads, kv_heads),
        (),
    )
    snapshots = [
        snapshot
        for layer in range(len(layers))
        for snapshot in _read_snapshots(
            run, layer, unpack(stored["snapshots"]), heads[layer * kv_heads :][:kv_heads]
        )
    ]
    return replace(run, snapshots=tuple(snapshots))


def _read_events(heads: list[dict[str, Array]], kv_heads: int) -> Events:
    parts = []
    for number, head in enumerate(heads):
        counts = np.diff(head["events"])
        position = np.repeat(np.arange(len(counts)), counts)
        same = np.ones_like(position)
        layer, kv_head = divmod(number, kv_heads)
        parts.append(
            Events(
                layer * same, kv_head * same, position, head["event_steps"], head["event_states"]
            )
        )
    return Events.joined(parts)


def _read_snapshots(
    run: Run, layer: int, steps: Array, heads: list[dict[str, Array]]
) -> list[Snapshot]:
    found, first = [], 0
    for step in steps.tolist():
        attended = run.attended(step)[layer, 0]
        last = first + int(attended.sum())
        values = {name: np.stack([head[name][first:last] for head in heads]) for name in KNOWN}
        found.append(Snapshot(step, layer, **values))
        first = last
    return found
