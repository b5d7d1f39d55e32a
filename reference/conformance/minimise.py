"""Makes a failing case small: fewer heads, entries, channels, tokens, and simpler numbers."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import numpy as np

from kvlab.reference.conformance.building import answered, is_decisive
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
            reason = _fails(smaller, wrong)
            if reason is not None:
                found, again = Found(smaller, reason), True
                break
    return found


def _fails(case: Case, wrong: Wrong) -> str | None:
    """Return why a case fails; None if it passes, cannot be tested, or leaves doubt."""
    try:
        return wrong(case) if is_decisive(case) else None
    except (NotTestedError, LostError):
        return None


def reductions(case: Case) -> Iterator[Case]:
    """Yield smaller cases, the largest cuts first, without cases that the reference refuses."""
    for inputs, parameters in (*_shorter(case), *_simpler(case)):
        smaller = answered(replace(case, name=""), inputs, parameters)
        if smaller is None or not _is_block_newest(smaller.inputs):
            continue
        if _has_infinite(case.expected) or not _has_infinite(smaller.expected):
            yield smaller


def _is_block_newest(inputs: Inputs) -> bool:
    """Whether the queries' own entries are the newest ones, where there are queries."""
    queries, entries = inputs.get("query_positions"), inputs.get("positions")
    if queries is None or entries is None:
        return True
    return len(queries) <= entries.shape[1] and bool(
        (entries[:, entries.shape[1] - len(queries) :] == queries).all()
    )


def _has_infinite(expected: Mapping[str, Expected]) -> bool:
    """Whether an expected number is infinite: such a failure is not one with finite numbers."""
    return any(np.isinf(each.value).any() for each in expected.values())


# --- shorter axes --------------------------------------------------------------------------------


def _shorter(case: Case) -> Iterator[tuple[Inputs, Parameters]]:
    """Cut every axis to one, to its half and by one; then lower the budget and the like.

    Options of a method are left alone: the reference takes them from the method's name.
    """
    fields = {name: described(case).input(name, x) for name, x in case.inputs.items()}
    axes_of = {name: field.axes for name, field in fields.items()}
    for axis in AXES:
        lengths = [
            case.inputs[name].shape[axes.index(axis)]
            for name, axes in axes_of.items()
            if axis in axes and axis not in NOT_CUT
        ]
        length = lengths[0] if lengths else 0
        for wanted in dict.fromkeys((1, length // 2, length - 1)):
            for last in (True, False) if 0 < wanted < length else ():
                inputs = _cut(case, axes_of, axis, range(length), wanted, last)
                if inputs is not None:
                    yield _follow_cut(case, inputs, axis, wanted)
    lowered = {"budget": 0, "room": 0} if case.method else {"room": 0, "group": 1, "kernel": 1}
    for name, least in lowered.items():
        value = case.parameters.get(name)
        if isinstance(value, int):
            for less in dict.fromkeys((value // 2, value - 1)):
                if less >= least:
                    yield case.inputs, {**case.parameters, name: less}


def _cut(
    case: Case,
    axes_of: Mapping[str, tuple[str, ...]],
    axis: str,
    everything: range,
    wanted: int,
    last: bool,
) -> dict[str, Array] | None:
    """Return inputs with the first or last ``wanted`` along an axis; None if that is impossible.

    A stream keeps its start. A block of queries keeps its own entries, which are the newest: in a
    step of a method with their state; in a building block, which has no state, with their positions
    alone.
    """
    queries = len(case.inputs.get("query_positions", ())) if axis == "n" else 0
    if wanted < queries or (last and axis == "t"):
        return None
    of_method = described(case).of_method
    own = queries if of_method else 0
    newest = np.array(everything[-wanted:])
    first_and_own = [*everything[: wanted - own], *everything[len(everything) - own :]]
    chosen = newest if last else np.array(first_and_own)
    inputs = dict(case.inputs)
    for name, axes in axes_of.items():
        if axis in axes:
            moves = queries and not of_method and name == "positions"
            inputs[name] = np.take(inputs[name], newest if moves else chosen, axes.index(axis))
        elif "groups" in axes and axis in CODED:
            group = case.parameters["group"]
            if last and wanted % group != len(everything) % group:
                return None
            inputs[name] = inputs[name][..., np.unique(chosen // group)]
    if axis == "n" and "keep" in inputs:
        rows = [np.flatnonzero(np.isin(chosen, row)) for row in inputs["keep"]]
        if len({len(row) for row in rows}) > 1 or not len(rows[0]):
            return None
        inputs["keep"] = np.array(rows)
    return inputs


def _follow_cut(
    case: Case, inputs: dict[str, Array], axis: str, wanted: int
) -> tuple[Inputs, Parameters]:
    """Adapt blocks, calls and the length of the prompt to an axis that was cut."""
    parameters = dict(case.parameters)
    if axis == "m" and "block" in parameters:
        parameters["block"] = wanted
    for name in ("calls", "blocks") if axis == "t" else ():
        if name in inputs:
            lengths = np.diff(np.minimum(np.cumsum(inputs[name]), wanted), prepend=0)
            inputs[name] = lengths[lengths > 0]
    if axis == "t" and "continues" in inputs:
        inputs["continues"] = inputs["continues"][: len(inputs["calls"])]
    if axis == "t" and "prompt" in parameters:
        parameters["prompt"] = min(parameters["prompt"], wanted)
    return inputs, parameters


# --- simpler numbers -----------------------------------------------------------------------------

SIMPLER: tuple[Callable[[Array], Array], ...] = (
    np.zeros_like,
    lambda x: np.sign(x) + 0.0,
    lambda x: np.rint(x) + 0.0,
    lambda x: np.rint(x * 4) / 4 + 0.0,
)
"""Zeros, ones of the same sign, whole numbers, quarters."""


def _simpler(case: Case) -> Iterator[tuple[Inputs, Parameters]]:
    for name, x in case.inputs.items():
        if described(case).input(name, x).kind != "float" or name == "attention":
            continue
        for change in SIMPLER:
            if not np.array_equal(change(x), x, equal_nan=True):
                yield {**case.inputs, name: change(x)}, case.parameters
