"""The report of a sweep: the papers' tables, curves, tests, and how to run it again."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from kvlab.fast.lab.documents import (
    Block,
    Bold,
    Cell,
    Code,
    Drawing,
    Grid,
    Heading,
    Text,
    write_document,
)
from kvlab.fast.lab.evaluate.report import accuracy_curves
from kvlab.fast.lab.files import write_text
from kvlab.fast.lab.sweep.configuration import to_toml
from kvlab.fast.lab.sweep.run import Stored
from kvlab.fast.lab.sweep.summary import LEVEL, Point, TaskSummary, Test, summarise
from kvlab.reference.quantization import FULL_BITS

NAME = "report"

EXCEEDED = "†"
"""Marks what held more entries than its budget."""

UNKNOWN = "?"
"""Marks what may have: no problem was measured."""


def write_report(stored: Stored, directory: Path) -> list[TaskSummary]:
    """Write ``report.html``, ``report.md`` with its drawings, and ``report.json``.

    Raises:
        ValueError: if a file of results is damaged, or nothing has been run yet.
    """
    summaries = summarise(stored)
    if not any(point.problems for each in summaries for point in each.points):
        raise ValueError(f"{stored.data.directory} holds no results of this sweep yet")
    directory.mkdir(parents=True, exist_ok=True)
    write_document(list(blocks(stored, summaries)), directory, NAME)
    content = json.dumps(to_json(stored, summaries), indent=1) + "\n"
    write_text(directory / f"{NAME}.json", content)
    return summaries


def to_json(stored: Stored, summaries: Sequence[TaskSummary]) -> dict[str, Any]:
    """Return plain data: all figures, and what it takes to run the sweep again."""
    found = []
    for each in summaries:
        content = asdict(each)
        for point in content["points"]:
            del point["outcomes"]
        for test, written in zip(each.tests, content["tests"], strict=True):
            written["verdict"] = test.verdict
        content["leaders"] = {budget: sorted(names) for budget, names in each.leaders.items()}
        found.append(content)
    return {
        "sweep": asdict(stored.plan.sweep),
        "run": dict(stored.run),
        "missing_jobs": len(stored.missing()),
        "tasks": found,
    }


def blocks(stored: Stored, summaries: Sequence[TaskSummary]) -> Iterator[Block]:
    """Yield the report from top to bottom."""
    sweep = stored.plan.sweep
    yield Heading("Report of a sweep", 1)
    yield Text(
        f"{len(sweep.methods)} methods, {sweep.problems} problems of each of {len(sweep.seeds)} "
        f"seeds ({', '.join(map(str, sweep.seeds))}), {sweep.backend} backend. {_state(stored)}"
    )
    for number, each in enumerate(summaries):
        yield Heading(f"{each.task}, model {each.model}")
        yield from task_blocks(each, f"{NAME}-{number}", sweep.curves or sweep.methods)
    yield from rerun_blocks(stored)


def _state(stored: Stored) -> str:
    missing, total = len(stored.missing()), sum(1 for _ in stored.plan.jobs())
    if not missing:
        return f"All {total} jobs are done."
    return f"{missing} of {total} jobs are missing; a seed counts once all its jobs are done."


def task_blocks(each: TaskSummary, name: str, curves: Sequence[str]) -> Iterator[Block]:
    """Yield what one model did on one task."""
    stated = ", ".join(f"{text} = {entries}" for text, entries in each.budgets.items())
    seeds = ", ".join(map(str, each.seeds))
    yield Text(
        f"Seeds counted: {seeds}. Prompt and solution have {each.mean_length:.0f} tokens on "
        f"average. Budgets in entries per KV head and layer: {stated or 'none'}."
    )
    budgeted = any(point.budget is not None for point in each.points)
    if budgeted:
        yield Heading("Problems solved, %", 3)
        yield accuracy_table(each)
        yield Text(accuracy_caption(each))
        yield Drawing(
            f"{name}-budget", "Problems solved over the budget", over_budget(each, curves)
        )
    own = [point for point in each.points if point.budget is None]
    if own:
        yield Heading("Methods whose memory follows from their own parameters", 3)
        yield Grid(("method", *FIGURES), [(p.method, *figures(p)) for p in own])
    if measured_curves(each, curves):
        drawing = over_memory(each, curves)
        yield Drawing(f"{name}-memory", "Problems solved over the memory that is left", drawing)
    if each.tests:
        yield Heading("Pairs on the same problems", 3)
        yield Grid(TEST_COLUMNS, [test_row(test) for test in each.tests], words=3)
        yield Text(
            "Pairs are those that the sweep's file names. only 1st, only 2nd: problems that one "
            "alone solved. difference: 2nd less 1st in percentage points, with the "
            f"{LEVEL:.0%} bootstrap interval over problems. p: McNemar, exact, two-sided; Holm: "
            "adjusted over all rows of this table. The interval is not adjusted."
        )
    if budgeted:
        yield Heading("What it cost and what it spoiled", 3)
        yield Grid(("method", "budget", *FIGURES), list(cost_rows(each)), words=1)
    yield Text(
        "entries: most per KV head, mean over layers. KiB: most of keys and values in all layers. "
        "bits: stored per element of the full cache at the last token, scales and zero points "
        "included. error: distance of the attention output from attention over everything seen, L2 "
        "per head. KL: in nats from the full cache. Both along the full cache's answers: means of "
        f"measured problems, with {LEVEL:.0%} bootstrap intervals. ms: per token, all "
        "problems of a job in one batch."
    )
    yield Text(spread_over_seeds(each))


def accuracy_table(each: TaskSummary) -> Grid:
    """Methods × budgets, as LazyEviction's and CAOTE's tables are."""
    entries = sorted(set(each.budgets.values()))
    texts = {value: text for text, value in each.budgets.items()}
    rows: list[list[Cell]] = []
    for method in dict.fromkeys(p.method for p in each.points if p.budget is not None):
        cells = [accuracy_cell(each, each.point(method, budget)) for budget in entries]
        rows.append([method, *cells])
    return Grid(("method", *(f"{texts[value]}" for value in entries)), rows)


def accuracy_caption(each: TaskSummary) -> str:
    """Say what brackets, marks and bold type mean."""
    shown = [p for p in each.points if p.budget is not None and p.interval is not None]
    unknown = any(point.holds_budget is None for point in shown)
    sentences = [
        f"In brackets: Wilson's {LEVEL:.0%} interval.",
        f"{EXCEEDED}: held more entries than the budget at some time on a measured problem, "
        "because it looks only now and then, evicts only after the prompt, or protects more.",
        f"{UNKNOWN}: no problem was measured, so whether it held the budget is not known."
        if unknown
        else "",
        "Bold, among those without a mark: not shown to be worse than the best of the column, if "
        "that solved any (McNemar's exact test of all pairs on the same problems, p < "
        f"{1 - LEVEL:.2f} after Holm's correction over all pairs and budgets).",
    ]
    return " ".join(filter(None, sentences))


def accuracy_cell(each: TaskSummary, point: Point) -> Cell:
    """One share with its interval and mark, or a dash."""
    if point.interval is None or point.budget is None:
        return "–"
    if point.holds_budget is None:
        return f"{percent(point)} {UNKNOWN}"
    if not point.holds_budget:
        return f"{percent(point)} {EXCEEDED}"
    text = percent(point)
    return Bold(text) if point.method in each.leaders[point.budget] else text


def percent(point: Point) -> str:
    """Write a share and its interval."""
    if point.interval is None:
        return "–"
    mean, low, high = (100 * x for x in vars(point.interval).values())
    return f"{mean:.1f} ({low:.1f}–{high:.1f})"


FIGURES = ("solved %", "entries", "KiB", "bits", "error", "KL", "ms")


def figures(point: Point) -> list[Cell]:
    """Write all figures of a point, or why there are none."""
    if point.refusal is not None:
        return [point.refusal]
    cells: list[Cell] = [percent(point)]
    found = point.measured
    if found:
        cells += [f"{found['entries'].mean:.0f}", f"{found['nbytes'].mean / 1024:.0f}"]
        cells += [f"{found['average_bits'].mean:.1f}"]
        cells += [
            f"{found[name].mean:.3f} ({found[name].low:.3f}–{found[name].high:.3f})"
            for name in ("output_error", "kl")
        ]
    else:
        cells += ["–"] * 5
    return [*cells, f"{1000 * (point.seconds_per_token or 0):.2f}"]


def cost_rows(each: TaskSummary) -> Iterator[list[Cell]]:
    """Yield all figures of every method at every budget."""
    for point in each.points:
        if point.budget is not None:
            yield [point.method, str(point.budget), *figures(point)]


TEST_COLUMNS = (
    "1st",
    "2nd",
    "verdict: better",
    "budget",
    "1st %",
    "2nd %",
    "only 1st",
    "only 2nd",
    "difference",
    "p",
    "Holm",
)


def test_row(test: Test) -> list[Cell]:
    """Write one test."""
    low, high = 100 * test.difference.low, 100 * test.difference.high
    return [
        test.first,
        test.second,
        test.verdict if test.verdict not in (test.first, test.second) else Bold(test.verdict),
        "–" if test.budget is None else str(test.budget),
        f"{100 * test.first_solved:.1f}",
        f"{100 * test.second_solved:.1f}",
        str(test.only_first),
        str(test.only_second),
        f"{100 * test.difference.mean:+.1f} ({low:+.1f} to {high:+.1f})",
        p_text(test.p),
        p_text(test.p_adjusted),
    ]


def p_text(p: float) -> str:
    """Write a p-value."""
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}"


def spread_over_seeds(each: TaskSummary) -> str:
    """Say how far the seeds are apart at most."""
    spreads = {
        (point.method, point.budget): max(point.by_seed.values()) - min(point.by_seed.values())
        for point in each.points
        if len(point.by_seed) > 1
    }
    if not spreads:
        return "One seed: nothing can be said of the spread over seeds."
    (method, budget), widest = max(spreads.items(), key=lambda item: item[1])
    at = "" if budget is None else f" at {budget} entries"
    return (
        f"The shares of two seeds differ by {100 * float(np.median([*spreads.values()])):.1f} "
        f"percentage points in the median point, by {100 * widest:.1f} at most ({method}{at})."
    )


Curve = list[tuple[float, float, float, float]]
"""Points of x, share solved, and its interval."""


def over_budget(each: TaskSummary, methods: Sequence[str]) -> str:
    """Share solved over the budget, as SVG (LazyEviction Fig. 5)."""
    curves: dict[str, Curve] = {}
    for point in each.points:
        if point.budget is not None and point.interval is not None and point.method in methods:
            x = 100 * point.budget / each.mean_length
            curves.setdefault(point.method, []).append((x, *vars(point.interval).values()))
    return accuracy_curves(curves, "budget, % of the mean length of prompt and solution")


def over_memory(each: TaskSummary, methods: Sequence[str]) -> str:
    """Share solved over what is stored at the last token, as SVG."""
    label = "memory at the last token, % of the full cache"
    return accuracy_curves(measured_curves(each, methods), label)


def measured_curves(each: TaskSummary, methods: Sequence[str]) -> Mapping[str, Curve]:
    """Return the points of which memory was measured."""
    curves: dict[str, Curve] = {}
    for point in each.points:
        if point.measured and point.interval is not None and point.method in methods:
            x = 100 * point.measured["average_bits"].mean / FULL_BITS
            curves.setdefault(point.method, []).append((x, *vars(point.interval).values()))
    return curves


def rerun_blocks(stored: Stored) -> Iterator[Block]:
    """Yield everything needed to run the sweep again."""
    run = stored.run
    yield Heading("Run it again")
    yield Text("With this file as sweep.toml; what is already there is not done again.")
    yield Code(to_toml(stored.plan.sweep), "toml")
    commands = ("kvlab sweep sweep.toml --out DIR", "kvlab report DIR")
    yield Code("\n".join([*commands, f"# last run: {run['command']}"]))
    versions = {**run["versions"], "machine": run["machine"], **_fingerprints(stored)}
    yield Grid(("what", "was"), [(name, str(value)) for name, value in versions.items()], words=2)


def _fingerprints(stored: Stored) -> dict[str, str]:
    return {f"model {name}": mark for name, mark in stored.plan.fingerprints.items()}
