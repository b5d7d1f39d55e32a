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
| ``shown`` | list of strings | what people read in the place of each, as `jumps.read_tokens` says |
| ``solved`` | boolean or null | whether the answer is right |
| ``failure`` | object or null | as `Run.failure`, and what is ``shown`` for the text expected |
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
| ``stamp`` | array ``[values]`` | last activation (TS), in generated tokens; 0: none |
| ``interval`` | array ``[values]`` | longest interval (MRI), in generated tokens; 0: none |

A token is stored at full precision from the step that reads it, unless an event of that step says
otherwise. Values are those of the entries that each snapshot's step attended to, one snapshot after
the other, by ascending position: the entries that the step before kept, and its own tokens.
``score`` is the latest decision's: NaN before the first one, −∞ where the entry was protected.

An array is an object: ``dtype`` is ``uint8``, ``uint16``, ``uint32`` or ``bfloat16`` (the upper
half of a float32, rounded), ``data`` its bytes, little-endian, in base64.
"""

import base64
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version as installed_version
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from kvlab.reference.notation import Array
from kvlab.reference.quantization import FULL_BITS
from kvlab.reference.tasks.jumps import read_tokens

GONE, WIDE = 0, 1
"""Indices into `Run.states` that every run has: evicted, and kept at full precision."""

LOOK, MOST_LOST = 0.05, 4
"""Attention from which on a head reads an entry, and the most entries that a failure names."""

FIRST_STATES = ((0, 0), (FULL_BITS, FULL_BITS))
"""Bits of keys and of values of `GONE` and `WIDE`."""


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
    tracked: Mapping[str, Int[Array, "G n"]]
    """Columns of methods that follow every token (`Method.tracker`), whatever method runs."""


@dataclass(frozen=True)
class Run:
    """One generation under one method; the module says what the fields hold.

    Step i is the i-th block of tokens that the model read: one or more blocks of the prompt, then
    one generated token each.
    """

    method: str
    budget: int | None
    prompt: int
    texts: tuple[str, ...]
    solved: bool | None
    layers: tuple[int, ...]
    kv_heads: int
    steps: Int[Array, " s"]
    decisions: Bool[Array, " s"]
    states: tuple[tuple[int, int], ...]
    """The first two are `FIRST_STATES`."""
    events: Int[Array, "events 5"] = field(repr=False)
    """Changes of state in ascending order: index of the layer, KV head, position, index of the
    step, index of the state."""
    snapshots: tuple[Snapshot, ...] = field(repr=False)
    failure: dict[str, Any] | None = None
    """``position`` of the first token that is not the full cache's, the text ``expected`` there,
    and positions ``lost`` by heads that attended to them in the full cache, the most read first,
    with the largest ``attention`` of such a head to each, and the ``head`` of the largest of
    all: index of the layer, KV head."""

    @property
    def read(self) -> int:
        """Tokens that the model read: t."""
        return int(self.steps[-1])

    def step_before(self, position: int) -> int:
        """Index of the step that predicts the token at a position."""
        return int(np.searchsorted(self.steps, position))

    def stored(self, step: int) -> Int[Array, "L G t"]:
        """Index into `states` of every entry after a step; `GONE` also where it is not read yet."""
        found = np.full((len(self.layers), self.kv_heads, self.read), WIDE)
        *place, _, state = self.events[self.events[:, 3] <= step].T
        found[tuple(place)] = state  # the later event is written last
        found[..., self.steps[step] :] = GONE
        return found

    def entries(self) -> Float[Array, " s"]:
        """Entries per KV head after each step, mean over layers and heads."""
        evictions = self.events[self.events[:, 4] == GONE, 3]
        gone = np.cumsum(np.bincount(evictions, minlength=len(self.steps)))
        return self.steps - gone / (len(self.layers) * self.kv_heads)


@dataclass(frozen=True)
class Timeline:
    """Runs over the same prompt, one per method."""

    model: str
    threshold: float
    """Attention from which on an entry counts as activated."""
    runs: tuple[Run, ...]


def against(run: Run, full: Run) -> Run:
    """Return a run with its failure; the full cache has read the same prompt in the same blocks."""
    pairs = zip(run.texts, full.texts, strict=False)  # one text may end before the other
    position = next((p for p, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
    if position is None:
        return run
    step = run.step_before(position)
    attention = [each.attention for each in full.snapshots if each.step == step]
    gone = run.stored(step - 1)[..., :position] == GONE
    gone[..., run.steps[step - 1] :] = False
    seen = gone * attention
    read = seen.max(axis=(0, 1))
    lost = [p for p in np.argsort(-read)[:MOST_LOST].tolist() if read[p] > LOOK]
    failure = {"position": position, "expected": full.texts[position], "lost": lost}
    head = np.argwhere(seen == max(read))[0, :2].tolist()
    return replace(run, failure=failure | {"attention": read[lost].tolist(), "head": head})


def values_in(snapshots: Iterable[Snapshot]) -> int:
    """Count the entries that snapshots hold."""
    return sum(each.attention.size for each in snapshots)


def thinned(run: Run, most_values: int, always: Collection[int] = ()) -> Run:
    """Leave snapshots out until they hold ``most_values`` entries at most; some steps' stay.

    ``always`` are indices of these steps, of which any number of entries stays.
    """
    every, snapshots = 1, run.snapshots
    while values_in(snapshots) > most_values and every < len(run.steps):
        every *= 2
        snapshots = tuple(x for x in snapshots if x.step % every == 0 or x.step in always)
    return replace(run, snapshots=snapshots)


def write(timeline: Timeline) -> str:
    """Return a timeline as JSON."""
    return json.dumps(
        {
            "format": "kvlab timeline",
            "version": 1,
            "kvlab": installed_version("kvlab"),
            "model": timeline.model,
            "threshold": timeline.threshold,
            "runs": [_run(run) for run in timeline.runs],
        },
        separators=(",", ":"),
    )


def _run(run: Run) -> dict[str, Any]:
    places = [(layer, head) for layer in range(len(run.layers)) for head in range(run.kv_heads)]
    plain = ("method", "budget", "prompt", "texts", "solved", "layers", "kv_heads", "states")
    failure = run.failure
    if failure is not None:
        before = run.texts[: failure["position"]]
        failure = {**failure, "shown": read_tokens([*before, failure["expected"]])[-1]}
    return {
        **{name: getattr(run, name) for name in plain},
        "shown": read_tokens(run.texts),
        "failure": failure,
        "steps": _pack(run.steps),
        "decisions": _pack(run.decisions.astype(np.int64)),
        "heads": [_head(run, layer, head) for layer, head in places],
        "snapshots": _pack(np.array(sorted({each.step for each in run.snapshots}), np.int64)),
    }


def _head(run: Run, layer: int, head: int) -> dict[str, Any]:
    own = run.events[(run.events[:, 0] == layer) & (run.events[:, 1] == head)]
    _, _, positions, steps, states = own.T
    known = [
        {"attention": each.attention, "score": each.score, **each.tracked}
        for each in run.snapshots
        if each.layer == layer
    ]
    return {
        "events": _pack(np.searchsorted(positions, np.arange(run.read + 1))),
        "event_steps": _pack(steps),
        "event_states": _pack(states),
        **{name: _pack(np.concatenate([each[name][head] for each in known])) for name in known[0]},
    }


def _pack(numbers: Array) -> dict[str, str]:
    """Return an array as an object: whole numbers in the narrowest type, others as bfloat16."""
    if numbers.dtype.kind == "f":
        dtype, stored = "bfloat16", _to_bfloat16(numbers)
    else:
        largest = int(numbers.max(initial=0))
        dtype = next(t for t in ("uint8", "uint16", "uint32") if largest <= np.iinfo(t).max)
        stored = numbers.astype(dtype)
    little = stored.astype(stored.dtype.newbyteorder("<"))
    return {"dtype": dtype, "data": base64.b64encode(little.tobytes()).decode("ascii")}


def _to_bfloat16(x: Array) -> Array:
    """Return the upper halves of float32 numbers, rounded to nearest, ties to even."""
    whole = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = whole + 0x7FFF + (whole >> 16 & 1)
    return np.where(np.isnan(x), np.uint32(0x7FC0), rounded >> 16).astype(np.uint16)
