"""The report of a sweep or a comparison: the papers' tables, curves, tests, how to run it again."""

import csv
import json
import os
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvlab.fast.lab.evaluate.controls import gains_table
from kvlab.fast.lab.evaluate.pairs import table_of_tests
from kvlab.fast.lab.files import named, write_text
from kvlab.fast.lab.latex import write_latex
from kvlab.fast.lab.points import NOTHING, budget_mark
from kvlab.fast.lab.reports import Block, Code, Drawing, Heading, Text, write_html, write_markdown
from kvlab.fast.lab.sweep.curves import DRAWN, FRONT, QUALITIES, over_budget, over_memory
from kvlab.fast.lab.sweep.design import to_plain, to_toml
from kvlab.fast.lab.sweep.summary import (
    ALONG,
    FULL,
    Point,
    Results,
    TaskSummary,
    main_measure,
)
from kvlab.fast.lab.tables import (
    MISSING,
    Bold,
    Cell,
    Column,
    Layout,
    Table,
    counted,
    layout,
    plain,
    text_of,
)
from kvlab.reference.outside import OUTSIDE

if TYPE_CHECKING:
    from kvlab.fast.lab.sweep.run import Stored

NAME = "report"


def write_report(stored: "Stored", directory: Path) -> list[TaskSummary]:
    """Write ``report`` as HTML, Markdown, LaTeX, JSON, Parquet and CSV; ValueError if empty."""
    from kvlab.fast.lab.sweep.published import write_parquet  # needs pyarrow

    summaries = stored.summaries
    if not any(point.problems for each in summaries for point in each.points):
        raise ValueError(f"{stored.directory} holds no results of this sweep yet")
    report, path = told_once(_blocks(stored, summaries)), directory / NAME
    write_html(report, path.with_suffix(".html"))
    write_markdown(report, path.with_suffix(".md"))
    write_latex(report, path.with_suffix(".tex"))
    rows = {"": [], "-tests": [], "-gains": []}
    for each in summaries:
        where = {"model": each.model, "task": each.task}
        rows[""] += [where | point.plain() for point in (*each.points, *each.controls)]
        rows["-tests"] += [where | plain("test", test) for test in each.tests]
        rows["-gains"] += [where | plain("test", test) for test in each.gains]
    for kind, own in rows.items():
        _write_csv(own, path.with_name(f"{NAME}{kind}.csv"))
    content = json.dumps(to_json(stored, summaries), indent=1, default=vars)
    write_text(path.with_suffix(".json"), f"{content}\n")
    write_parquet(stored.rows, path.with_suffix(".parquet"))
    return summaries


def write_comparison(found: Results, path: Path) -> None:
    """Write a sweep of one task as one HTML page that needs no network."""
    summary, plan = found.summary, found.plan
    title = f"KV-cache compression compared: {summary.task}, model {summary.model}"
    where = Text(f"{'; '.join(f'{k}: {v}' for k, v in plan.provenance.items())}.")
    shown = told_once(_task_blocks(summary, path.stem, plan.sweep.methods))
    write_html([Heading(title, 1), *shown, where], path)


def _write_csv(rows: Sequence[dict[str, Any]], path: Path) -> None:
    if not rows:  # no pairs were named
        path.unlink(missing_ok=True)
        return
    with named(path), path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def to_json(stored: "Stored", summaries: Sequence[TaskSummary]) -> dict[str, Any]:
    """Return plain data: all figures, and what it takes to run the sweep again."""
    tasks = []
    for each in summaries:
        points = [plain("reported", point) for point in each.points]
        controls = [plain("reported", point) for point in each.controls]
        tasks.append(vars(each) | {"points": points, "controls": controls})
    return {
        "sweep": to_plain(stored.plan.sweep),
        "run": {**stored.run, "outside": stored.plan.outside},
        "provenance": stored.plan.provenance,
        "missing_jobs": len(stored.missing()),
        "tasks": tasks,
    }


def told_once(blocks: Iterable[Block]) -> list[Block]:
    """Leave out of the legends of tables what a table before has said."""
    said: set[str] = set()
    made: list[Block] = []
    for block in blocks:
        if isinstance(block, Table):
            new = [each for each in block.legend if each not in said]
            said.update(new)
            if len(new) < len(block.legend):
                begin = "Other marks" if new or block.notes else "Marks"
                new.append(f"{begin} and columns: as in the tables before")
            block = replace(block, legend=new)
        made.append(block)
    return made


def _blocks(stored: "Stored", summaries: Sequence[TaskSummary]) -> Iterator[Block]:
    sweep, run = stored.plan.sweep, stored.run
    missing, total = len(stored.missing()), sum(1 for _ in stored.plan.jobs())
    state = f"{missing} of {total} jobs are missing; a seed counts once all its jobs are done."
    yield Heading(f"Results of the sweep “{stored.directory.resolve().name}”", 1)
    yield Text(
        f"{counted(len(sweep.methods), 'method')}, {counted(len(summaries), 'task')}, "
        f"{sweep.backend} backend. "
        f"{state if missing else f'All {total} jobs are done.'}"
    )
    for number, each in enumerate(summaries):
        yield Heading(f"{each.task}, model {each.model}")
        yield from _task_blocks(each, f"{NAME}-{number}", sweep.curves or sweep.methods)
    yield Heading("Run it again")
    yield Text("With this file as sweep.toml; what is already there is not done again.")
    yield Code(to_toml(sweep), "toml")
    outside = run.get(OUTSIDE)
    names = ":".join(Path(each).name for each in (outside or "").split(os.pathsep))
    setting = [f"export {OUTSIDE}={shlex.quote(names)}"] if outside else []
    commands = (*setting, "kvlab sweep sweep.toml --out DIR", "kvlab report DIR")
    yield Code("\n".join([*commands, f"# last run: {run['command']}"]))
    versions = {**stored.plan.provenance, **run["versions"], "machine": run["machine"]}
    versions |= {f"model {each.model}": each.fingerprint for each in stored.plan.subjects}
    versions |= {"source of outside methods": stored.plan.outside} if outside else {}
    rows = [(name, str(value)) for name, value in versions.items()]
    yield Table(("what", "was"), rows, words=2, title="Versions and hashes")


def _task_blocks(summary: TaskSummary, name: str, curves: Sequence[str]) -> Iterator[Block]:
    stated = ", ".join(f"{text} = {entries}" for text, entries in summary.budgets.items())
    seeds = f"seed{'s' * (len(summary.seeds) > 1)} {', '.join(map(str, summary.seeds))}"
    most = max(point.problems for point in summary.points)
    yield Text(
        f"{counted(most, 'problem')}, drawn with {seeds}. Prompt and solution, or a window of a "
        f"text, have {summary.mean_length:.0f} tokens on average. "
        f"Budgets in entries per KV head and layer: {stated or 'none'}."
    )
    measure = main_measure(summary.points)
    main = next(quality for quality in QUALITIES if quality.measure is measure)
    yield replace(accuracy_table(summary), title=main.title)
    if summary.gains:
        yield gains_table(summary.gains, measure)
    if len({point.budget for point in summary.points} - {None}) > 1:
        draw = partial(over_budget, summary, main, curves)
        caption = f"{main.title.partition(',')[0]} over the budget, {DRAWN}"
        yield Drawing(f"{name}-budget", caption, draw(), partial(draw, narrow=True))
    if any("nbytes" in point.figures for point in summary.points):
        draw = partial(over_memory, summary, curves)
        caption = f"Quality over memory, {DRAWN}; {FRONT}"
        yield Drawing(f"{name}-memory", caption, draw(), partial(draw, narrow=True))
    along = {measure.name for measure in ALONG}
    tests = [test for test in summary.tests if test.measure not in along]
    if tests := [test for test in tests if (test.only_first, test.only_second) != (0, 0)]:
        table = table_of_tests(tests, title="Pairs on the same problems")
        if len(tests) < len(summary.tests):
            more = "Pairs that never differ, or differ in error and KL, are in the CSV file"
            table = replace(table, legend=[*table.legend, more])
        yield table
    for title, shown in (("Memory", "memory"), ("Errors and time", "errors")):
        if (found := figures_table(summary, shown, main.column)) is not None:
            yield replace(found, title=title)


def figures_table(summary: TaskSummary, name: str, shown: str = "") -> Table | None:
    """Return a table of ``tables.toml`` without empty columns, and without what was said before."""
    points, known = sorted(summary.points, key=_full_first), layout(name)
    columns = [
        column
        for column in known.columns[2:]
        if column.name != shown and any(column.cell(point) != MISSING for point in points)
    ]
    made = replace(known, columns=[*known.columns[:2], *columns])
    return replace(made.table(points), notes=()) if columns else None


def accuracy_table(summary: TaskSummary) -> Table:
    """Methods × budgets, as LazyEviction's and CAOTE's tables are; the full cache comes first."""
    rows: dict[str, dict[int | None, Point]] = defaultdict(dict)
    for point in sorted(summary.points, key=_full_first):
        rows[point.method][point.budget] = point
    stated: dict[int | None, str] = {None: "no budget"}
    for text, entries in sorted(summary.budgets.items(), key=itemgetter(1)):
        stated[entries] = f"{stated[entries]} = {text}" if entries in stated else text
    asked = [each for each in stated if any(each in row for row in rows.values())]
    cells = [
        (method, *(accuracy_cell(summary, row[each]) if each in row else "" for each in asked))
        for method, row in rows.items()
    ]
    refused = [
        point for row in rows.values() for point in row.values() if point.refusal is not None
    ]
    return Table(
        columns=("method", *(stated[each] for each in asked)),
        rows=cells,
        title=f"{summary.task}, model {summary.model}",
        legend=Layout([Column("method"), *[_figure(summary)] * len(asked)]).legend(cells),
        notes=[f"{each.method}, {stated[each.budget]}: {each.refusal}" for each in refused],
    )


def _figure(summary: TaskSummary) -> Column:
    """What a cell of the first table shows."""
    (figure,) = layout(main_measure(summary.points).name).columns
    return figure


def _full_first(point: Point) -> bool:
    return point.method != FULL


def accuracy_cell(summary: TaskSummary, point: Point) -> Cell:
    """The share solved or accepted, or the perplexity, with interval and marks; or a dash."""
    figure, mark = text_of(_figure(summary).cell(point)), summary.gain_mark(point)
    if figure == MISSING:
        return MISSING
    nothing = f" {NOTHING}" if point.measures_nothing else ""
    text = f"{figure}{mark}{budget_mark(point)}{nothing}"
    won = point.budget is not None and point.method == summary.winners.get(point.budget)
    return Bold(text) if won and not mark else text
