"""Matched controls: random eviction under a method's own protection, schedule and budget.

What a method's score adds is its gain over this control. Methods that differ in nothing but their
scores share one, which runs once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from kvlab.fast.lab.evaluate.pairs import Measure, Test, powerless
from kvlab.fast.lab.points import LARGE, ORACLE, After, never
from kvlab.fast.lab.tables import Bold, Cell, Column, Layout, Table, layout, sentences
from kvlab.reference.methods import get, takes_budget
from kvlab.reference.policy import Edges, Policy
from kvlab.reference.precisions import OnArrival

CONTROL = "random"
"""The method that evicts at random; before another method's name it is that method's control."""

NO_GAIN = "≈"
"""Marks a row that is not significantly better than its control."""


@cache
def _answers(spec: str) -> tuple[Policy, ...]:
    """Return a method's policies without its name, at an even and an odd budget: methods with equal
    answers keep the same entries. There are none of the oracle, and of what cannot be built.
    """
    try:
        budgets = (LARGE, LARGE + 1) if takes_budget(spec) else (None,)
        policies = [get(spec, budget) for budget in budgets]
    except Exception:  # whoever runs it says why
        return ()
    return tuple(replace(p, name="", protect=p.protect.with_edges(Edges())) for p in policies)


@cache
def evicts(spec: str) -> bool:
    """Say whether a method evicts, at some budget or by its own rule; no for the oracle."""
    return any(each.evicts for each in _answers(spec))


def after_eviction(spec: str, after: After | None) -> After | None:
    """Return what was counted; None for a method that evicts nothing.

    None also if nothing was evicted from entries that are coded as they come: such a row is not
    the full cache's.
    """
    if spec != ORACLE and not evicts(spec):
        return None
    codes = any(isinstance(each.precision, OnArrival) for each in _answers(spec))
    return None if codes and never(after) else after


def is_control(spec: str) -> bool:
    """Say whether a method evicts at random."""
    return evicts(spec) and _answers(spec) == _answers(f"{CONTROL}:{spec}")


def controls_of(specs: Sequence[str]) -> tuple[str, ...]:
    """Return the matched controls of methods that are not among the methods, each once."""
    found = list(specs)
    for spec in specs:
        if evicts(spec) and not is_control(spec) and not matched([spec], found):
            found.append(f"{CONTROL}:{spec}")
    return tuple(found[len(specs) :])


def matched(specs: Sequence[str], among: Sequence[str]) -> list[tuple[str, str]]:
    """Pair methods, which come first, with their matched controls, if those are among others."""
    found = []
    for spec in specs:
        if evicts(spec) and not is_control(spec):
            wanted = _answers(f"{CONTROL}:{spec}")
            found += [(spec, each) for each in among if _answers(each) == wanted][:1]
    return found


def is_significant(gain: Test) -> bool:
    """Say whether a method is significantly better than its control."""
    return gain.verdict == gain.first


def gains_table(gains: Sequence[Test], measure: Measure) -> Table:
    """Lay out methods × budgets; methods without any significant gain are left out, and named."""
    better = {each.first for each in gains if is_significant(each)}
    shown = {(each.first, each.budget): each for each in gains if each.first in better}
    (cell,) = layout("gains").columns
    columns = [Column("gain over the control", str)]
    for budget in dict.fromkeys(budget for _, budget in shown):
        value = partial(_gain, shown, measure, budget)
        heading = "own rule" if budget is None else str(budget)
        columns.append(replace(cell, heading=heading, value=value))
    unit = "points" if gains[0].only_first is not None else gains[0].measure
    table = Layout(columns).table(dict.fromkeys(method for method, _ in shown))
    none = ". ".join(powerless(gains))
    legend = sentences("gains", unit=shown and unit, control=shown, powerless=none)
    others = ", ".join(dict.fromkeys(each.first for each in gains if each.first not in better))
    note = f"At no budget significantly better than their controls: {others or 'none'}"
    title = "Gain over the matched control"
    return replace(table, title=title, legend=[*legend, *table.legend], notes=[note])


def _gain(
    shown: Mapping[tuple[str, Any], Test], measure: Measure, budget: int | str | None, method: str
) -> Cell | None:
    if (gain := shown.get((method, budget))) is None:
        return None
    text = gain.written(-1 if measure.sign < 0 else 1)
    return Bold(text) if is_significant(gain) else f"{text} {NO_GAIN}"


def gain_of(gains: Sequence[Test], method: str, budget: int | str | None) -> Test | None:
    """Return a method's test against its control at a budget, if that ran."""
    return next((each for each in gains if (each.first, each.budget) == (method, budget)), None)


def gain_mark(gain: Test | None) -> str:
    """Return the mark of a row that is not significantly better than its control."""
    return "" if gain is None or is_significant(gain) else f" {NO_GAIN}"


def seen(gains: Sequence[Test]) -> str:
    """Say in one sentence which method gains most over its control; nothing without controls."""
    if not gains:
        return ""
    better = [each for each in gains if is_significant(each)]
    if not better:
        return "On so few problems no method is significantly better than random eviction."
    most = max(better, key=lambda each: abs(each.difference.mean))
    at = "" if most.budget is None else f" with a budget of {most.budget}"
    means, losses = (most.first_mean, most.second_mean), most.only_first is None
    figures = (*means, abs(most.difference.mean))
    own, control, adds = (f"{x:.3f} nats" if losses else f"{100 * x:.0f} %" for x in figures)
    verb, of = ("loses", "per token") if losses else ("solves", "of the problems")
    told = f"What this shows:{at} {most.first} {verb} {own} {of}, random eviction under the same"
    told += f" protection {control}: its score adds {adds.replace('%', 'points')}."
    return f"{told} More problems tell smaller gains apart."
