"""The report of a sweep or a comparison: the papers' tables, curves, tests, how to run it again."""

import csv
import json
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvlab.fast.lab.evaluate.controls import (
    CONTROL_CAPTION,
    NO_GAIN,
    NO_GAIN_CAPTION,
    explained,
    gains_table,
)
from kvlab.fast.lab.evaluate.pairs import LEVEL, T_INTERVAL, TESTS, explained_tests
from kvlab.fast.lab.files import named, write_text
from kvlab.fast.lab.latex import write_latex
from kvlab.fast.lab.points import (
    AFTER_CAPTION,
    AFTER_EVICTION,
    BUDGET_CAPTION,
    ENTRIES,
    EXCEEDED,
    NOTHING,
    STEPS_AFTER,
    STEPS_CAPTION,
    UNKNOWN,
    budget_mark,
    marked_budget,
    nothing_mark,
)
from kvlab.fast.lab.reports import (
    Block,
    Code,
    Drawing,
    Heading,
    Text,
    write_html,
    write_markdown,
)
from kvlab.fast.lab.sweep.compare import BITS, HELD
from kvlab.fast.lab.sweep.curves import DRAWN, FRONT, QUALITIES, over_budget, over_memory
from kvlab.fast.lab.sweep.design import to_plain, to_toml
from kvlab.fast.lab.sweep.summary import (
    ALONG,
    FULL,
    Point,
    Results,
    TaskSummary,
    main_measure,
    plain,
    summarise,
)
from kvlab.fast.lab.tables import MISSING, Bold, Cell, Column, Table, counted, tabulate, text_of
from kvlab.reference.outside import OUTSIDE

if TYPE_CHECKING:
    from kvlab.fast.lab.sweep.run import Stored  # needs pyarrow

NAME = "report"


def write_report(stored: "Stored", directory: Path) -> list[TaskSummary]:
    """Write ``report.html``, ``.md``, ``.tex``, ``.json``, three ``.csv``; ValueError if empty."""
    summaries = summarise(stored)
    if not any(point.problems for each in summaries for point in each.points):
        raise ValueError(f"{stored.directory} holds no results of this sweep yet")
    report, path = list(_blocks(stored, summaries)), directory / NAME
    write_html(report, path.with_suffix(".html"))
    write_markdown(report, path.with_suffix(".md"))
    write_latex(report, path.with_suffix(".tex"))
    _write_csv(_point_rows(summaries), path.with_suffix(".csv"))
    for kind in ("tests", "gains"):
        _write_csv(_test_rows(summaries, kind), path.with_name(f"{NAME}-{kind}.csv"))
    content = json.dumps(to_json(stored, summaries), indent=1, default=vars)
    write_text(path.with_suffix(".json"), f"{content}\n")
    return summaries


def write_comparison(found: Results, path: Path) -> None:
    """Write a sweep of one task as one HTML page that needs no network."""
    summary, plan = found.summary, found.plan
    title = f"KV-cache compression compared: {summary.task}, model {summary.model}"
    where = Text(f"{'; '.join(f'{k}: {v}' for k, v in plan.provenance.items())}.")
    write_html(
        [Heading(title, 1), *_task_blocks(summary, path.stem, plan.sweep.methods, set()), where],
        path,
    )


def _point_rows(summaries: Sequence[TaskSummary]) -> list[dict[str, Any]]:
    return [
        {"model": each.model, **plain(point)}
        for each in summaries
        for point in (*each.points, *each.controls)
    ]


def _test_rows(summaries: Sequence[TaskSummary], kind: str) -> list[dict[str, Any]]:
    return [
        {
            "model": each.model,
            "task": each.task,
            **{name: value for name, value in vars(test).items() if name != "difference"},
            "difference": test.difference.mean,
            "difference_low": test.difference.low,
            "difference_high": test.difference.high,
        }
        for each in summaries
        for test in getattr(each, kind)
    ]


def _write_csv(rows: Sequence[dict[str, Any]], path: Path) -> None:
    if not rows:  # no pairs were named
        path.unlink(missing_ok=True)
        return
    with named(path), path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


REPORTED = (
    *("method", "budget", "refusal", "failed", "after_eviction", "holds_budget", "problems"),
    *("solved", "interval", "perplexity", "perplexity_interval", "gap", "nats"),
    *("measured", "peak_entries"),
    *("seconds_per_token", "until_rejected", "steps_after_eviction"),
)


def to_json(stored: "Stored", summaries: Sequence[TaskSummary]) -> dict[str, Any]:
    """Return plain data: all figures, and what it takes to run the sweep again."""
    tasks = []
    for each in summaries:
        points = {
            kind: [
                {name: getattr(point, name) for name in REPORTED} for point in getattr(each, kind)
            ]
            for kind in ("points", "controls")
        }
        tasks.append({**vars(each), **points})
    return {
        "sweep": to_plain(stored.plan.sweep),
        "run": {**stored.run, "outside": stored.plan.outside},
        "provenance": stored.plan.provenance,
        "missing_jobs": len(stored.missing()),
        "tasks": tasks,
    }


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
    said: set[str] = set()
    for number, each in enumerate(summaries):
        yield Heading(f"{each.task}, model {each.model}")
        yield from _task_blocks(each, f"{NAME}-{number}", sweep.curves or sweep.methods, said)
    yield Heading("Run it again")
    yield Text("With this file as sweep.toml; what is already there is not done again.")
    yield Code(to_toml(sweep), "toml")
    outside = run.get(OUTSIDE)
    names = ":".join(Path(each).name for each in (outside or "").split(os.pathsep))
    setting = [f"export {OUTSIDE}={shlex.quote(names)}"] if outside else []
    commands = (*setting, "kvlab sweep sweep.toml --out DIR", "kvlab report DIR")
    yield Code("\n".join([*commands, f"# last run: {run['command']}"]))
    versions = {**stored.plan.provenance, **run["versions"], "machine": run["machine"]}
    versions |= {f"model {name}": mark for name, mark in stored.plan.fingerprints.items()}
    versions |= {"source of outside methods": stored.plan.outside} if outside else {}
    yield Heading("Versions and hashes", 3)
    yield Table(("what", "was"), [(name, str(value)) for name, value in versions.items()], words=2)


def _legend(sentences: Sequence[str], said: set[str], *own: str) -> Iterator[Text]:
    """Say below a table what was not said below one before; ``own``: what is always said."""
    new = [each for each in sentences if each not in said]
    begin = "Other marks" if new or own else "Marks"
    rest = [f"{begin} and columns: as in the tables before"] * (len(new) < len(sentences))
    said.update(new)
    if shown := [*new, *own, *rest]:
        yield Text(f"{'. '.join(shown)}.")


def _task_blocks(
    each: TaskSummary, name: str, curves: Sequence[str], said: set[str]
) -> Iterator[Block]:
    stated = ", ".join(f"{text} = {entries}" for text, entries in each.budgets.items())
    seeds, most = ", ".join(map(str, each.seeds)), max(point.problems for point in each.points)
    yield Text(
        f"{counted(most, 'problem')}, drawn with seed{'s' * (len(each.seeds) > 1)} {seeds}. Prompt "
        f"and solution, or a window of a text, have {each.mean_length:.0f} tokens on average. "
        f"Budgets in entries per KV head and layer: {stated or 'none'}."
    )
    measure, figures = main_measure(each.points), figure_columns(each.points)
    main = next(quality for quality in QUALITIES if quality.measure is measure)
    title, heading = main.title, main.heading
    yield Heading(title, 3)
    yield accuracy_table(each)
    yield from _legend(accuracy_legend([each]), said)
    if each.gains:
        yield Heading("Gain over the matched control", 3)
        *legend, others = explained(each.gains)
        if (table := gains_table(each.gains, measure)).rows:
            yield table
            yield from _legend(legend, said, others)
        else:
            yield Text(f"{others}.")
    if len({point.budget for point in each.points} - {None}) > 1:
        draw = partial(over_budget, each, main, curves)
        caption = f"{main.title.partition(',')[0]} over the budget, {DRAWN}"
        yield Drawing(f"{name}-budget", caption, draw(), partial(draw, narrow=True))
    if any("nbytes" in point.figures for point in each.points):
        draw, caption = partial(over_memory, each, curves), f"Quality over memory, {DRAWN}; {FRONT}"
        yield Drawing(f"{name}-memory", caption, draw(), partial(draw, narrow=True))
    along = {measure.name for measure in ALONG}
    tests = [test for test in each.tests if test.measure not in along]
    if tests := [test for test in tests if (test.only_first, test.only_second) != (0, 0)]:
        yield Heading("Pairs on the same problems", 3)
        yield tabulate(tests, TESTS, words=3)
        legend = explained_tests(tests)
        if len(tests) < len(each.tests):
            legend.append("Pairs that never differ, or differ in error and KL, are in the CSV file")
        yield from _legend(legend, said)
    points, budget = sorted(each.points, key=_full_first), Column("budget", marked_budget)
    held = [column for column in figures if column in MEMORY]
    others = [column for column in figures if column not in MEMORY and column.heading != heading]
    for title, columns in (("Memory", held), ("Errors and time", others)):
        if columns:
            yield Heading(title, 3)
            table = tabulate(points, (METHOD, budget, *columns))
            yield table
            yield from _legend(_figures_legend(table), said)


def accuracy_table(each: TaskSummary) -> Table:
    """Methods × budgets, as LazyEviction's and CAOTE's tables are; the full cache comes first."""
    texts = {value: text for text, value in sorted(each.budgets.items(), key=lambda it: it[1])}
    points, columns = sorted(each.points, key=_full_first), {None: "no budget"} | texts
    found = {(point.method, point.budget): accuracy_cell(each, point) for point in points}
    shown = [at for at in columns if any(budget == at for _, budget in found)]
    rows = [
        [method, *(found.get((method, at), "") for at in shown)]
        for method in dict.fromkeys(method for method, _ in found)
    ]
    return Table(("method", *(columns[at] for at in shown)), rows)


def _full_first(point: Point) -> bool:
    return point.method != FULL


def accuracy_legend(found: Sequence[TaskSummary]) -> list[str]:
    """Say what stands in tables of accuracy, in sentences without their stops."""
    ran = [point for each in found for point in each.points if point.refusal is None]
    cells = [accuracy_cell(each, point) for each in found for point in each.points]
    written, bold = "".join(map(text_of, cells)), any(isinstance(cell, Bold) for cell in cells)
    shares, others = any(point.interval for point in ran), not all(point.interval for point in ran)
    drafts = any(point.accepted and not point.interval for point in ran)
    losses = any(point.perplexity_interval for point in ran)
    known = {
        f"In brackets: {LEVEL:.0%} intervals, Wilson's of problems solved": shares,
        f"In brackets: the {LEVEL:.0%} {T_INTERVAL} of tokens accepted": drafts,
        f"In brackets: {LEVEL:.0%} intervals, of perplexity that of the loss less the full "
        "cache's, paired over the problems": losses,
        BUDGET_CAPTION: EXCEEDED in written,
        f"{NOTHING}: nothing was evicted before any token, so the figure is the full cache's": (
            NOTHING in written
        ),
        f"{UNKNOWN}: no problem was measured, so whether it held the budget is not known": (
            UNKNOWN in written
        ),
        NO_GAIN_CAPTION: NO_GAIN in written,
        CONTROL_CAPTION: NO_GAIN in written,
        "Bold: significantly better than every other method of the column that held the budget, "
        "and than its control if that ran (paired tests, after Holm's correction over all pairs "
        "and budgets)": bold,
        f"p < {1 - LEVEL:.2f} by McNemar's exact test": shares and (bold or NO_GAIN in written),
        f"p < {1 - LEVEL:.2f} by the permutation test that flips the signs of paired differences": (
            others and (bold or NO_GAIN in written)
        ),
    }
    return [sentence for sentence, occurs in known.items() if occurs]


def accuracy_cell(each: TaskSummary, point: Point) -> Cell:
    """The share solved with its interval, or the perplexity, with marks; or a dash."""
    share, mark = point.interval or point.accepted, each.gain_mark(point)
    figure = share.percent() if share else _perplexity(point)
    if figure is None or point.refusal is not None:
        return MISSING
    text = f"{figure}{mark}{budget_mark(point)}{nothing_mark(point)}"
    won = point.budget is not None and point.method == each.winners.get(point.budget)
    return Bold(text) if won and not mark else text


def _perplexity(point: Point) -> str | None:
    """Write the perplexity with its interval; the full cache's has none, as it is the yardstick."""
    if (interval := point.perplexity_interval) is not None:
        return interval.written(".4f")
    return None if point.perplexity is None else f"{point.perplexity:.4f}"


def _with_interval(name: str) -> Callable[[Point], str | None]:
    """Return what writes the mean of a figure and, where there is one, its interval."""

    def write(point: Point) -> str | None:
        mean, interval = point.mean(name), point.measured.get(name)
        if mean is None or interval is None:
            return None if mean is None else f"{mean:.3f}"
        return interval.written(".3f")

    return write


METHOD, MEMORY = Column("method"), (*HELD, BITS, AFTER_EVICTION)
FIGURES = (
    Column("solved %", "interval", lambda share: share.percent()),
    Column("accepted %", "accepted", lambda share: share.percent()),
    Column("until rejected", "until_rejected", ".1f"),
    Column("perplexity", _perplexity),
    Column("gap", format="+.4f"),
    Column("nats", format=lambda nats: nats.written("+.4f", " to ")),
    *MEMORY,
    Column("error", _with_interval("output_error")),
    Column("KL", _with_interval("kl")),
    STEPS_AFTER,
    Column("ms", "seconds_per_token", lambda seconds: seconds.written(".2f", scale=1000)),
)
"""Figures of a point; `figure_columns` leaves out those that no point has."""


def figure_columns(points: Sequence[Point]) -> tuple[Column, ...]:
    """Return the columns of `FIGURES` that have a figure."""
    return tuple(
        column for column in FIGURES if any(column.cell(point) != MISSING for point in points)
    )


BOTH = (
    f"error, KL: means of measured problems, along the full cache's answers, each with its "
    f"{LEVEL:.0%} {T_INTERVAL}"
)
EXPLAINED = {
    "accepted %": (
        "accepted: share of the full cache's tokens that the compressed cache drafts, with the "
        f"{LEVEL:.0%} {T_INTERVAL} over the problems",
    ),
    "until rejected": (
        "until rejected: mean tokens before the first that the compressed cache does not draft",
    ),
    "gap": ("gap: perplexity less the full cache's",),
    "nats": (
        "nats: loss per token less the full cache's, paired over the problems, with the "
        f"{LEVEL:.0%} {T_INTERVAL}",
    ),
    "entries": (ENTRIES,),
    "KiB": ("KiB: most of keys and values in all layers",),
    "bits": (
        "bits: stored per element of the full cache at the last token, scales and zero points "
        "included",
    ),
    "after eviction": AFTER_CAPTION.split(" · "),
    "error": (
        "error: distance of the attention output from attention over everything seen, L2 per head",
    ),
    "KL": ("KL: in nats from the full cache", BOTH),
    "steps after": (STEPS_CAPTION,),
    "ms": (
        "ms: per token, all problems of a job in one batch; in brackets, the fastest and the "
        "slowest batch",
    ),
}
"""What the headings of `FIGURES`, and marks in their columns, mean."""


def _figures_legend(table: Table) -> list[str]:
    """Say what the columns mean; of a mark, only where it stands."""
    written = "".join(text_of(cell) for row in table.rows for cell in row)
    said = dict.fromkeys(each for name in table.columns for each in EXPLAINED.get(name, ()))
    return [each for each in said if each[0] not in (NOTHING, MISSING) or each[0] in written]
