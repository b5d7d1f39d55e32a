"""The report of a sweep or a comparison: the papers' tables, curves, tests, how to run it again."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvlab.fast.lab.drawing import GREY, Picture, canvas, finish
from kvlab.fast.lab.evaluate.statistics import Interval
from kvlab.fast.lab.files import named, write_text
from kvlab.fast.lab.reports import (
    Block,
    Code,
    Drawing,
    Heading,
    Text,
    write_html,
    write_latex,
    write_markdown,
)
from kvlab.fast.lab.sweep.compare import Comparison
from kvlab.fast.lab.sweep.plan import ORACLE, to_plain, to_toml
from kvlab.fast.lab.sweep.summary import CONTROL, FULL, LEVEL, Point, TaskSummary, plain, summarise
from kvlab.fast.lab.tables import MISSING, Bold, Cell, Column, Table, tabulate
from kvlab.reference import methods as registry
from kvlab.reference.methods import base_name
from kvlab.reference.proofs import PAPERS
from kvlab.reference.quantization import FULL_BITS

if TYPE_CHECKING:
    from kvlab.fast.lab.sweep.run import Stored  # needs pyarrow

NAME = "report"

EXCEEDED = "†"
"""Marks a point that held more entries than its budget."""

UNKNOWN = "?"
"""Marks a point for which that is not known, because no problem was measured."""

CHANCE = "≈"
"""Marks a point that is not shown to solve more than eviction at random."""


def write_report(stored: "Stored", directory: Path) -> list[TaskSummary]:
    """Write ``report.html``, ``.md`` with its drawings, ``.tex``, ``.csv`` and ``.json``.

    Raises:
        ValueError: if nothing has been run yet.
    """
    summaries = summarise(stored)
    if not any(point.problems for each in summaries for point in each.points):
        raise ValueError(f"{stored.directory} holds no results of this sweep yet")
    directory.mkdir(parents=True, exist_ok=True)
    report, path = list(_blocks(stored, summaries)), directory / NAME
    write_html(report, path.with_suffix(".html"))
    write_markdown(report, path.with_suffix(".md"))
    write_latex(report, path.with_suffix(".tex"))
    _write_csv(summaries, path.with_suffix(".csv"))
    content = json.dumps(to_json(stored, summaries), indent=1)
    write_text(path.with_suffix(".json"), f"{content}\n")
    return summaries


def write_comparison(comparison: Comparison, path: Path) -> None:
    """Write a comparison as one HTML page that needs no network."""
    summary, methods = comparison.summary, comparison.sweep.methods
    title = f"KV-cache compression compared: {summary.task}, model {summary.model}"
    write_html([Heading(title, 1), *_task_blocks(summary, path.stem, methods)], path)


def _write_csv(summaries: Sequence[TaskSummary], path: Path) -> None:
    """Write a row for every point, with the columns of ``kvlab compare --json``."""
    rows = [
        {"model": each.model, "task": each.task, **plain(point)}
        for each in summaries
        for point in each.points
    ]
    with named(path), path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def to_json(stored: "Stored", summaries: Sequence[TaskSummary]) -> dict[str, Any]:
    """Return plain data: all figures, and what it takes to run the sweep again."""
    tasks = [asdict(each) for each in summaries]
    for task in tasks:
        for point in task["points"]:
            del point["outcomes"], point["figures"]
        for name in ("leaders", "chance"):
            task[name] = {budget: sorted(methods) for budget, methods in task[name].items()}
    return {
        "sweep": to_plain(stored.plan.sweep),
        "run": dict(stored.run),
        "missing_jobs": len(stored.missing()),
        "tasks": tasks,
    }


def _blocks(stored: "Stored", summaries: Sequence[TaskSummary]) -> Iterator[Block]:
    sweep, run = stored.plan.sweep, stored.run
    missing, total = len(stored.missing()), sum(1 for _ in stored.plan.jobs())
    state = f"{missing} of {total} jobs are missing; a seed counts once all its jobs are done."
    yield Heading("Report of a sweep", 1)
    yield Text(
        f"{len(sweep.methods)} methods, {sweep.problems} problems of each of {len(sweep.seeds)} "
        f"seeds ({', '.join(map(str, sweep.seeds))}), {sweep.backend} backend. "
        f"{state if missing else f'All {total} jobs are done.'}"
    )
    for number, each in enumerate(summaries):
        yield Heading(f"{each.task}, model {each.model}")
        yield from _task_blocks(each, f"{NAME}-{number}", sweep.curves or sweep.methods)
    yield Heading("Run it again")
    yield Text("With this file as sweep.toml; what is already there is not done again.")
    yield Code(to_toml(sweep), "toml")
    commands = ("kvlab sweep sweep.toml --out DIR", "kvlab report DIR")
    yield Code("\n".join([*commands, f"# last run: {run['command']}"]))
    versions = {**run["versions"], "machine": run["machine"]}
    versions |= {f"model {name}": mark for name, mark in stored.plan.fingerprints.items()}
    yield Table(("what", "was"), [(name, str(value)) for name, value in versions.items()], words=2)


def _task_blocks(each: TaskSummary, name: str, curves: Sequence[str]) -> Iterator[Block]:
    stated = ", ".join(f"{text} = {entries}" for text, entries in each.budgets.items())
    seeds = ", ".join(map(str, each.seeds))
    yield Text(
        f"Seeds counted: {seeds}. Prompt and solution have {each.mean_length:.0f} tokens on "
        f"average. Budgets in entries per KV head and layer: {stated or 'none'}."
    )
    budgeted = [point for point in each.points if point.budget is not None]
    own = [point for point in each.points if point.budget is None]
    if budgeted:
        yield Heading("Problems solved, %", 3)
        yield accuracy_table(each)
        yield Text(ACCURACY_CAPTION)
        drawing = _solved_over_budget(each, curves)
        yield Drawing(f"{name}-budget", "Problems solved over the budget", drawing)
    if own:
        yield Heading("Methods whose memory follows from their own parameters", 3)
        yield tabulate(own, (METHOD, *FIGURES))
    if any(point.figures for point in each.points):
        drawing = solved_over_memory(each, curves)
        yield Drawing(f"{name}-memory", "Problems solved over the memory that is left", drawing)
    if each.tests:
        yield Heading("Pairs on the same problems", 3)
        yield tabulate(each.tests, TESTS, words=3)
        yield Text(TESTS_CAPTION)
    if budgeted:
        yield Heading("What it cost and what it spoiled", 3)
        yield tabulate(budgeted, (METHOD, Column("budget"), *FIGURES))
    yield Text(FIGURES_CAPTION)


def accuracy_table(each: TaskSummary) -> Table:
    """Methods × budgets, as LazyEviction's and CAOTE's tables are."""
    entries = sorted(set(each.budgets.values()))
    texts = {value: text for text, value in each.budgets.items()}
    methods = dict.fromkeys(p.method for p in each.points if p.budget is not None)
    rows = [
        [method, *(accuracy_cell(each, each.point(method, budget)) for budget in entries)]
        for method in methods
    ]
    return Table(("method", *(texts[value] for value in entries)), rows)


ACCURACY_CAPTION = (
    f"In brackets: Wilson's {LEVEL:.0%} interval. {EXCEEDED}: held more entries than the budget at "
    "some time on a measured problem, because it evicts only now and then or only after the "
    f"prompt, or protects more entries. {UNKNOWN}: no problem was measured, so whether it held the "
    f"budget is not known. {CHANCE}: not shown to solve more than the best row of random in the "
    "column (McNemar's exact test on the same problems, after Holm's correction). Bold, among "
    "those that held the budget: not shown to be worse than the best of the column, if that "
    "solved any (McNemar's exact test of all pairs on the same problems, p < "
    f"{1 - LEVEL:.2f} after Holm's correction over all pairs and budgets)."
)
"""What brackets, marks and bold type mean."""


def accuracy_cell(each: TaskSummary, point: Point) -> Cell:
    """One share with its interval and marks, or a dash."""
    if point.interval is None or point.budget is None:
        return MISSING
    marks = {None: f" {UNKNOWN}", False: f" {EXCEEDED}", True: ""}
    at_random = f" {CHANCE}" if point.method in each.chance.get(point.budget, ()) else ""
    text = f"{point.percent}{at_random}{marks[point.holds_budget]}"
    return Bold(text) if point.method in each.leaders.get(point.budget, ()) else text


def _with_interval(name: str) -> Callable[[Point], str | None]:
    """Return what writes the mean of a figure and, where there is one, its interval."""

    def write(point: Point) -> str | None:
        mean, interval = point.mean(name), point.measured.get(name)
        if mean is None or interval is None:
            return None if mean is None else f"{mean:.3f}"
        return f"{mean:.3f} ({interval.low:.3f}–{interval.high:.3f})"

    return write


METHOD = Column("method")
FIGURES = (
    Column("solved %", "percent"),
    Column("entries", lambda point: point.mean("entries"), ".0f"),
    Column("KiB", lambda point: point.mean("nbytes"), lambda nbytes: f"{nbytes / 1024:.0f}"),
    Column("bits", lambda point: point.mean("average_bits"), ".1f"),
    Column("error", _with_interval("output_error")),
    Column("KL", _with_interval("kl")),
    Column("ms", "seconds_per_token", lambda seconds: f"{1000 * seconds:.2f}"),
)
FIGURES_CAPTION = (
    "entries: most per KV head, mean over layers. KiB: most of keys and values in all layers. "
    "bits: stored per element of the full cache at the last token, scales and zero points "
    "included. error: distance of the attention output from attention over everything seen, L2 "
    "per head. KL: in nats from the full cache. Both along the full cache's answers: means of "
    f"measured problems, with {LEVEL:.0%} bootstrap intervals. ms: per token, all "
    "problems of a job in one batch."
)

TESTS = (
    Column("1st", "first"),
    Column("2nd", "second"),
    Column(
        "verdict: better", "verdict", bold=lambda test: test.verdict in (test.first, test.second)
    ),
    Column("budget"),
    Column("1st %", "first_solved", lambda share: f"{100 * share:.1f}"),
    Column("2nd %", "second_solved", lambda share: f"{100 * share:.1f}"),
    Column("only 1st", "only_first"),
    Column("only 2nd", "only_second"),
    Column("difference", format=lambda difference: difference.percent(1, "+", " to ")),
    Column("p", format=lambda p: _p(p)),
    Column("Holm", "p_adjusted", lambda p: _p(p)),
)
TESTS_CAPTION = (
    "Pairs are those that the sweep's file names. only 1st, only 2nd: problems that one "
    "alone solved. difference: 2nd less 1st in percentage points, with the "
    f"{LEVEL:.0%} bootstrap interval over problems. p: McNemar, exact, two-sided; Holm: "
    "adjusted over all rows of this table. The interval is not adjusted."
)


def _p(p: float) -> str:
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}"


def solved_over_memory(each: TaskSummary, methods: Sequence[str]) -> Picture:
    """Draw the share solved over what is stored at the last token."""

    def share(point: Point) -> float | None:
        bits = point.mean("average_bits")
        return None if bits is None else bits / FULL_BITS

    return _solved_over(each, methods, share, "memory at the last token, % of the full cache")


def _solved_over_budget(each: TaskSummary, methods: Sequence[str]) -> Picture:
    """Draw the share solved over the budget (LazyEviction Fig. 5)."""

    def share(point: Point) -> float | None:
        return None if point.budget is None else point.budget / each.mean_length

    return _solved_over(each, methods, share, "budget, % of the mean length of prompt and solution")


def _solved_over(
    each: TaskSummary, methods: Sequence[str], x: Callable[[Point], float | None], label: str
) -> Picture:
    """Draw shares of problems solved with their intervals, one line per method."""
    figure, (axes,) = canvas(height=5.2)
    curves: dict[str, list[tuple[float, Interval]]] = {}
    for point in each.points:
        place = x(point)
        if point.method == FULL and point.solved is not None:
            axes.axhline(100 * point.solved, color=GREY, linestyle=":", label="full cache")
        elif place is not None and point.interval is not None and point.method in methods:
            curves.setdefault(point.method, []).append((100 * place, point.interval))
    for (method, points), marker in zip(curves.items(), cycle("os^vD<>p*hX8P")):
        places, intervals = zip(*points, strict=True)
        share, low, high = np.array([[*vars(each).values()] for each in intervals]).T * 100
        style: dict[str, Any] = {"marker": marker, "markersize": 4, "capsize": 2, "label": method}
        style["linewidth"] = 2.0 if is_of_the_papers(method) else 0.9
        if method == ORACLE or base_name(method) == CONTROL:
            style |= {"color": GREY, "linestyle": "--"}
        axes.errorbar(places, share, [share - low, high - share], **style)
    axes.set(xlabel=label, ylabel="problems solved, %", ylim=(-5, 105))
    return finish(
        figure, f"Problems solved over {label.partition(',')[0]}, per method.", legend="below"
    )


def is_of_the_papers(spec: str) -> bool:
    """Say whether a method, or the method wrapped around it, comes from one of the four papers."""
    if spec == ORACLE:
        return False
    sources = {name: facts["source"] for name, facts in registry.describe().items()}
    return sources[base_name(spec)] in {sources[paper] for paper in PAPERS}
