"""What was measured, in short: methods side by side, as the pages of the site show them."""

from collections.abc import Sequence

from kvlab.fast.lab.evaluate.controls import NO_GAIN
from kvlab.fast.lab.evaluate.pairs import LEVEL
from kvlab.fast.lab.points import EXCEEDED
from kvlab.fast.lab.sweep.report import accuracy_cell, is_of_the_papers
from kvlab.fast.lab.sweep.run import Stored, read_stored
from kvlab.fast.lab.sweep.summary import TaskSummary
from kvlab.fast.lab.tables import Table, counted
from kvlab.reference.quantization import FULL_BITS
from study.stored import RESULTS, stored_summary


def read_study() -> tuple[Stored, TaskSummary]:
    """Return the study and what it found."""
    return read_stored(RESULTS / "study"), stored_summary("study")


def families(stored: Stored) -> list[str]:
    """Return the methods that the study draws, one per family; those of the four papers last."""
    return sorted(stored.plan.sweep.curves, key=is_of_the_papers)


def under_budgets(found: TaskSummary, specs: Sequence[str], budgets: Sequence[str]) -> Table:
    """Set methods side by side: problems solved under each budget, as the study states them."""
    rows = [
        [spec, *(accuracy_cell(found, found.point(spec, text)) for text in budgets)]
        for spec in specs
    ]
    return Table(("method", *(f"{text} = {found.budgets[text]}" for text in budgets)), rows)


def under_own_rules(found: TaskSummary) -> Table:
    """List the methods whose parameters determine what they store, least memory first.

    Methods that store all of these short texts at full precision are left out, the full cache
    excepted.
    """
    points = [point for point in found.points if point.budget is None and point.measured]
    bits = {point.method: point.measured["average_bits"].mean for point in points}
    rows = [
        [point.method, f"{100 * bits[point.method] / FULL_BITS:.0f} %", point.percent]
        for point in sorted(points, key=lambda point: bits[point.method])
        if bits[point.method] < FULL_BITS or point.method == "full"
    ]
    return Table(("method", "memory", "solved, %"), rows)


def explained(stored: Stored, found: TaskSummary, specs: Sequence[str]) -> str:
    """Say what the cells of `under_budgets` are."""
    problems, seeds = stored.plan.sweep.problems * len(found.seeds), len(found.seeds)
    papers = sum(map(is_of_the_papers, specs))
    return (
        f"Problems solved, in percent, of {counted(problems, 'problem')} from "
        f"{counted(seeds, 'seed')}, with Wilson's {LEVEL:.0%} interval. Columns: the "
        "budget in percent of what the full cache holds in the end, and in entries per KV head and "
        f"layer. The last {papers} rows are methods of the four papers. Bold: not shown to be "
        f"worse than the best of the column, if that solved any. {EXCEEDED}: held more entries "
        f"than the budget at some time. {NO_GAIN}: not significantly better than its matched "
        "control (random eviction; same protection, schedule and budget), where that ran."
    )
