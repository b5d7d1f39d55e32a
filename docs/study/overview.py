"""What was measured, in short: methods side by side, as the pages of the site show them."""

import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path

from kvlab.fast.lab.evaluate.pairs import CHANCE, LEVEL
from kvlab.fast.lab.points import EXCEEDED
from kvlab.fast.lab.sweep.report import accuracy_cell, is_of_the_papers
from kvlab.fast.lab.sweep.run import Stored, read_stored
from kvlab.fast.lab.sweep.summary import FULL, TaskSummary
from kvlab.fast.lab.tables import Column, Table, counted, tabulate
from kvlab.reference.methods import base_name
from kvlab.reference.quantization import FULL_BITS
from kvlab.reference.selection import budget_entries
from study.stored import REAL, RESULTS, nats, spread, stored_file, stored_summary


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
        f"than the budget at some time. {CHANCE}: not shown to solve more than eviction at random."
    )


ON_BOTH_MODELS: Sequence[dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("both_models.toml").read_text(encoding="utf-8")
)["methods"]
"""Methods as the study, ``embedded``, and the measurements on the real model name them."""
HALF = 512
"""Budget in entries for texts of about 1,000 tokens."""


def on_both_models(shown: Collection[str] | None = None) -> Table:
    """List results of methods on the embedded and on the real model side by side.

    Args:
        shown: names in the registry; the control is always there. Default: all.
    """
    chosen = [
        each
        for each in ON_BOTH_MODELS
        if shown is None or base_name(each["real"]) in {*shown, "random"}
    ]
    solved, needles = (stored_summary(name) for name in ("study", f"needle_{REAL}"))
    perplexity = stored_file(f"perplexity_{REAL}")
    quarter = budget_entries("25%", round(perplexity["mean_length"]))
    rows = [row for row in perplexity["rows"] if row["refusal"] is None]
    lost = {row["method"]: row for row in rows if row["budget"] == quarter}

    def share(found: TaskSummary, spec: str, budget: int) -> str:
        mark = f" {CHANCE}" if spec in found.chance.get(budget, ()) else ""
        return found.point(spec, None if spec == FULL else budget).percent + mark

    half = solved.budgets["50%"]
    columns = [
        Column("method", lambda row: row["real"].partition("@")[0]),
        Column("jumps: programs, %", lambda row: share(solved, row["embedded"], half)),
        Column(f"{REAL}: needles, %", lambda row: share(needles, row["real"], HALF)),
        Column(
            f"{REAL}: lost nats",
            lambda row: lost.get(row["real"]),
            lambda row: spread(nats(row), ".3f"),
        ),
    ]
    return tabulate(chosen, columns)
