"""Makes a failing case small: fewer heads, entries, channels, tokens, and simpler numbers."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import numpy as np

from kvlab.reference.conformance.building import is_decisive
from kvlab.reference.conformance.case import Case, Expected, Inputs, Parameters
from kvlab.reference.conformance.implementation import LostError, NotTestedError
from kvlab.reference.conformance.operation import AXES
from kvlab.reference.conformance.targets import described
from kvlab.reference.notation import Array

SECONDS = 5.0
"""Time that is spent on one failure at most."""

TRIALS = 400
"""Smaller cases that are tried at most."""

FORMAT: Any = {"precision": 6, "suppress_small": True, "threshold": 64, "max_line_width": 100}
"""How the smallest inputs are printed."""

NOT_CUT = (
    *("kept", "groups", "bytes", "blocks", "calls", "N", "H", "layers", "vocab"),
    *("pages", "page", "places", "levels"),
)
"""Axes that depend on other axes, or that the model fixes."""

CODED = ("length", "d")
"""Axes that are cut into groups with a scale each."""

Wrong = Callable[[Case], str | None]


@dataclass(frozen=True)
class Found:
    """The smallest case that still fails."""

    case: Case
    reason: str

    def describe(self) -> str:
        """Show shapes and numbers."""
        inputs = [
            f"  {name} {list(x.shape)} = {np.array2string(x, separator=', ', **FORMAT)}"
            for name, x in self.case.inputs.items()
        ]
        given = {k: v for k, v in self.case.parameters.items() if v is not None}
        parameters = ", ".join(f"{name} = {value}" for name, value in given.items())
        return "\n".join(
            ["smallest: " + self.reason, *inputs, "  " + (parameters or "no parameters")]
        )


def minimised(case: Case, wrong: Wrong, seconds: float = SECONDS) -> Found:
    """Return the smallest case that still fails, with the reference's answer computed anew."""
    deadline = monotonic() + seconds
    found, trials = Found(case, wrong(case) or ""), 0
    again = True
    while again:
        again = False
        for smaller in reductions(found.case):
            if trials >= TRIALS or monotonic() > deadline:
                return found
            trials += 1
            reason = fails(smaller, wrong)
            if reason is not None:
                found, again = Found(smaller, reason), True
                break
    return found


def fails(case: Case, wrong: Wrong) -> str | None:
    """Return why a case fails; None if it passes, cannot be tested, or leaves doubt."""
    if not is_decisive(case):
        return None
    try:
        return wrong(case)
    except (NotTestedError, LostError):
        return None


def reductions(case: Case) -> Iterator[Case]:
    """Yield smaller cases, the largest cuts first, without cases that the reference refuses."""
    for inputs, parameters in (*shorter(case), *simpler(case)):
        smaller = answered(case, inputs, parameters)
        if smaller is None or not is_block_newest(smaller.inputs):
            continue
        if has_infinite(case.expected) or not has_infinite(smaller.expected):
            yield smaller


def answered(case: Case, inputs: Inputs, parameters: Parameters) -> Case | None:
    """Return a case with other inputs; None if they are not valid."""
    operation = described(case)
    try:
        with np.errstate(all="ignore"):
            whole = operation.derive(inputs, parameters, case.method)
            stored = {
                name: x.astype(np.float32).astype(np.float64) if x.dtype.kind == "f" else x
                for name, x in whole.items()
            }
            expected = operation.compute(stored, parameters, case.method)
    except (ValueError, IndexError):
        return None
    if any(
        np.isnan(each.value).any() for each in expected.values() if each.value.dtype.kind == "f"
    ):
        return None
    return replace(case, name="", inputs=stored, parameters=parameters, expected=expected)


def is_block_newest(inputs: Inputs) -> bool:
    """Whether the queries' own entries are the newest ones, where there are queries."""
    queries, entries = inputs.get("query_positions"), inputs.get("positions")
    if queries is None or entries is None:
        return True
    return len(queries) <= entries.shape[1] and bool(
        (entries[:, entries.shape[1] - len(queries) :] == queries).all()
    )


def has_infinite(expected: Mapping[str, Expected]) -> bool:
    """Whether an expected number is infinite: such a failure is not one with finite numbers."""
    return any(np.isinf(each.value).any() for each in expected.values())


# --- shorter axes --------------------------------------------------------------------------------


def shorter(case: Case) -> Iterator[tuple[Inputs, Parameters]]:
    """Cut every axis to one, to its half and by one; then lower the budget and the like.

    Options of a method are left alone: the reference takes them from the method's name.
    """
    for axis in AXES:
        length = axis_length(case, axis)
        for wanted in dict.fromkeys((1, length // 2, length - 1)):
            for last in (True, False) if 0 < wanted < length else ():
                cut = cut_axis(case, axis, wanted, last)
                if cut is not None:
                    yield cut
    lowered = {"budget": 0, "room": 0}
    for name, least in (lowered if case.method else {**lowered, "group": 1, "kernel": 1}).items():
        value = case.parameters.get(name)
        if isinstance(value, int):
            for less in dict.fromkeys((value // 2, value - 1)):
                if less >= least:
                    yield case.inputs, {**case.parameters, name: less}


def axes_of(case: Case) -> Mapping[str, tuple[str, ...]]:
    """Return the axes of every input."""
    operation = described(case)
    return {name: operation.input(name, x).axes for name, x in case.inputs.items()}


def axis_length(case: Case, axis: str) -> int:
    """Return the length of an axis, 0 where the case has none; codes follow their vectors."""
    if axis in NOT_CUT:
        return 0
    for name, axes in axes_of(case).items():
        if axis in axes:
            return case.inputs[name].shape[axes.index(axis)]
    return 0


def cut_axis(case: Case, axis: str, wanted: int, last: bool) -> tuple[Inputs, Parameters] | None:
    """Return inputs with the first or last ``wanted`` along an axis; None if that is impossible.

    A stream keeps its start. A block of queries keeps its own entries, which are the newest: in a
    step of a method with their state; in a building block, which has no state, with their positions
    alone.
    """
    if last and axis == "t":
        return None
    everything = np.arange(axis_length(case, axis))
    queries = len(case.inputs.get("query_positions", ())) if axis == "n" else 0
    if wanted < queries:
        return None
    of_method = described(case).of_method
    newest = everything[-wanted:]
    own = queries if of_method else 0
    chosen = newest if last else first_and_own(everything, wanted - own, own)
    inputs = dict(case.inputs)
    for name, axes in axes_of(case).items():
        if axis in axes:
            moves = queries and not of_method and name == "positions"
            inputs[name] = np.take(inputs[name], newest if moves else chosen, axes.index(axis))
        elif "groups" in axes and axis in CODED:
            group = case.parameters["group"]
            if last and wanted % group != len(everything) % group:
                return None
            inputs[name] = inputs[name][..., np.unique(chosen // group)]
    return follow_cut(case, inputs, axis, wanted, chosen)


def follow_cut(
    case: Case, inputs: dict[str, Array], axis: str, wanted: int, chosen: Array
) -> tuple[Inputs, Parameters] | None:
    """Adapt keep sets, blocks and the length of the prompt to an axis that was cut."""
    parameters = dict(case.parameters)
    if axis == "n" and "keep" in inputs:
        moved = within(inputs["keep"], chosen)
        if moved is None:
            return None
        inputs["keep"] = moved
    if axis == "m" and "block" in parameters:
        parameters["block"] = wanted
    if axis == "t" and "calls" in inputs:
        inputs["calls"] = first_tokens(inputs["calls"], wanted)
        inputs["continues"] = inputs["continues"][: len(inputs["calls"])]
    if axis == "t" and "blocks" in inputs:
        inputs["blocks"] = first_tokens(inputs["blocks"], wanted)
        parameters["prompt"] = min(parameters["prompt"], wanted)
    return inputs, parameters


def first_and_own(entries: Array, first: int, own: int) -> Array:
    """Return the first entries and the last ones."""
    return np.concatenate([entries[:first], entries[len(entries) - own :]])


def within(keep: Array, entries: Array) -> Array | None:
    """Return a keep set when only some entries are left; None if heads would differ."""
    rows = [np.flatnonzero(np.isin(entries, row)) for row in keep]
    same = len({len(row) for row in rows}) == 1 and len(rows[0]) > 0
    return np.array(rows) if same else None


def first_tokens(blocks: Array, wanted: int) -> Array:
    """Return the blocks of the first tokens, the last one cut."""
    ends = np.minimum(np.cumsum(blocks), wanted)
    lengths = np.diff(ends, prepend=0)
    return lengths[lengths > 0]


# --- simpler numbers -----------------------------------------------------------------------------


def simpler(case: Case) -> Iterator[tuple[Inputs, Parameters]]:
    """Replace numbers by zeros, ones of the same sign, whole numbers, or fewer digits."""
    operation = described(case)
    for name, x in case.inputs.items():
        if operation.input(name, x).kind != "float" or name == "attention":
            continue
        for change in (np.zeros_like, signs, integers, quarters):
            changed: Any = change(x)
            if not np.array_equal(changed, x, equal_nan=True):
                yield {**case.inputs, name: changed}, case.parameters


def signs(x: Array) -> Array:
    """Keep 1, 0 and −1."""
    return np.sign(x) + 0.0


def integers(x: Array) -> Array:
    """Round to whole numbers."""
    return np.rint(x) + 0.0


def quarters(x: Array) -> Array:
    """Round to quarters."""
    return np.rint(x * 4) / 4 + 0.0
