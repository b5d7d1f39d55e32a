"""The miniature study in short: methods side by side, as the first page of the site shows them."""

from collections.abc import Sequence

from kvlab.fast.lab.drawing import Picture
from kvlab.fast.lab.evaluate.contrasts import STUDY, stored_directory
from kvlab.fast.lab.pictures.solved import is_of_the_papers, solved_over
from kvlab.fast.lab.sweep.report import CHANCE, EXCEEDED, accuracy_cell, measured_curves, percent
from kvlab.fast.lab.sweep.run import Stored, read_stored
from kvlab.fast.lab.sweep.summary import LEVEL, TaskSummary, summarise
from kvlab.fast.lab.tables import Table
from kvlab.reference.quantization import FULL_BITS


def read_study() -> tuple[Stored, TaskSummary]:
    """Return the study and what it found.

    Raises:
        ValueError: if a file of its results is damaged.
    """
    stored = read_stored(stored_directory(STUDY))
    (found,) = summarise(stored)
    return stored, found


def families(stored: Stored) -> list[str]:
    """Return the methods that the study draws, one per family; those of the four papers last."""
    return sorted(stored.plan.sweep.curves, key=is_of_the_papers)


def under_budgets(found: TaskSummary, specs: Sequence[str], budgets: Sequence[str]) -> Table:
    """Set methods side by side: problems solved under each budget.

    Args:
        found: the study.
        specs: methods that take a budget.
        budgets: as the study states them, ``"50%"``.

    Raises:
        ValueError: if the study has not tried one of the budgets, or one of the methods.
    """
    for text in budgets:
        if text not in found.budgets:
            tried = ", ".join(found.budgets)
            raise ValueError(f"budgets: the study has not tried {text!r}; it has {tried}")
    tried = {point.method for point in found.points if point.budget is not None}
    for spec in specs:
        if spec not in tried:
            raise ValueError(f"specs: the study has not tried {spec!r} under budgets")
    rows = [
        [spec, *(accuracy_cell(found, found.point(spec, found.budgets[text])) for text in budgets)]
        for spec in specs
    ]
    return Table(("method", *(f"{text} = {found.budgets[text]}" for text in budgets)), rows)


def under_own_rules(found: TaskSummary) -> Table:
    """Set methods side by side whose parameters say what they store, least memory first.

    Methods that store all of these short texts at full precision are left out, the full cache
    excepted.
    """
    points = [point for point in found.points if point.budget is None and point.measured]
    bits = {point.method: point.measured["average_bits"].mean for point in points}
    rows = [
        [point.method, f"{100 * bits[point.method] / FULL_BITS:.0f} %", percent(point)]
        for point in sorted(points, key=lambda point: bits[point.method])
        if bits[point.method] < FULL_BITS or point.method == "full"
    ]
    return Table(("method", "memory", "solved, %"), rows)


def solved_over_memory(found: TaskSummary, specs: Sequence[str]) -> Picture:
    """Draw problems solved over the memory that is left (LazyEviction Fig. 5)."""
    curves = measured_curves(found, specs)
    return solved_over(curves, "memory at the last token, % of the full cache")


def explained(stored: Stored, found: TaskSummary, specs: Sequence[str]) -> str:
    """Say what the cells of `under_budgets` are."""
    problems, seeds = stored.plan.sweep.problems * len(found.seeds), len(found.seeds)
    papers = sum(map(is_of_the_papers, specs))
    return (
        f"Problems solved, in percent, of {problems:,} problems from {seeds} "
        f"{'seed' if seeds == 1 else 'seeds'}, with Wilson's {LEVEL:.0%} interval. Columns: the "
        "budget in percent of what the full cache holds in the end, and in entries per KV head and "
        f"layer. The last {papers} rows are methods of the four papers. Bold: not shown to be "
        f"worse than the best of the column, if that solved any. {EXCEEDED}: held more entries "
        f"than the budget at some time. {CHANCE}: not shown to solve more than eviction at random."
    )
