"""``kvlab compare``: methods side by side on a task, by default that of an embedded model."""

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvlab.fast.lab.bars import Bars
from kvlab.fast.lab.commands.options import (
    PROCESSORS,
    USUAL,
    Loading,
    check_output,
    read_budgets,
    read_methods,
    say,
    say_notes,
)
from kvlab.fast.lab.evaluate.backends import default_backend, devices_of
from kvlab.fast.lab.evaluate.controls import gains_table, seen
from kvlab.fast.lab.evaluate.pairs import Measure, Test
from kvlab.fast.lab.evaluate.statistics import Interval
from kvlab.fast.lab.evaluate.tasks import Own, find_task
from kvlab.fast.lab.points import ORACLE, check_any, check_points
from kvlab.fast.lab.sweep.compare import layout_of, run_in_memory
from kvlab.fast.lab.sweep.design import MODEL, Sweep
from kvlab.fast.lab.sweep.plan import make_plan
from kvlab.fast.lab.sweep.summary import FULL, Point, Results, TaskSummary, main_measure
from kvlab.fast.lab.tables import Table, counted
from kvlab.fast.lab.terminal import (
    RowPrinter,
    console,
    finish,
    keep_tables,
    print_caption,
    print_line,
    print_table,
    print_texts,
    progress_bar,
    working,
)
from kvlab.fast.models import model_location
from kvlab.reference import methods as registry
from kvlab.reference.models import EMBEDDED, embedded_directory

WHAT_IT_IS = (
    "A language model keeps a key and a value of every token that it has read: the KV cache. Each "
    "method keeps a part of them, or rounds them, and the model has to solve the same problems."
)


def compare(
    methods: str | None = None,
    model: str | None = None,
    task: str | None = None,
    backend: str | None = None,
    report: Path | None = None,
    budgets: list[str] | None = None,
    controls: bool = True,
    problems: int | None = None,
    seed: int = 0,
    loading: Loading = USUAL,
    workers: int | None = None,
    play: str = "",
    table: bool = False,
    json: bool = False,
) -> None:
    """Compare methods on an embedded model: accuracy, error, memory, time.

    A budget in percent is that share of the mean tokens of prompt and solution.
    """
    check_output("report", report)
    backend, model = backend or default_backend(), model or MODEL
    model_location(model, hub=backend == "fast")  # a model that is missing is refused as such
    task = task or task_of(model)
    asked = find_task(task)
    if problems is None:
        problems = min(16, len(asked.lines())) if isinstance(asked, Own) else 16
    batch, measured = (32, 4) if backend == "fast" else (1, 1)
    sweep = Sweep(
        methods=registry.compared() if methods is None else read_methods(methods),
        budgets=read_budgets(budgets, "70%", "85%"),
        problems=problems,
        measured=min(problems, measured),  # errors and memory are of the first problems
        models=(model,),
        tasks=(task,),
        seeds=(seed,),
        batch=batch,
        backend=backend,
        to_first_error=asked.one_answer,
        controls=controls,
        **vars(loading),
    )
    say_notes(sweep.methods)
    if not json:
        print_caption(WHAT_IT_IS)
        if play:
            play_first(sweep, read_methods(play))
    many, started = counted(problems, "problem"), time.perf_counter()
    title = f"{many}: {sweep.tasks[0]}\n"
    shown = f"{many} like this; docs/results.md has longer ones" if play else title
    rows = RowPrinter(layout_of(sweep), shown, not json, held=not table)
    found = run_shown(sweep, rows, workers or _workers(sweep))
    seconds = time.perf_counter() - started
    summary, plan, written = found.summary, found.plan, ""
    if report is not None:
        from kvlab.fast.lab.sweep.report import write_comparison

        write_comparison(found, report)
        written = f"report: {report.resolve().as_uri()}"
    own = isinstance(asked, Own)
    wrong = wrong_answers(summary.points, asked.problems(problems, seed)) if own else []
    if not json:
        measure = main_measure(summary.points)
        gains = [gains_table(summary.gains, measure)] if summary.gains else []
        tables = [rows.layout.table(summary.points, title), *gains]
        print_found(bars_of(summary, measure), "compare", tables, table)
        for each in wrong:
            said = "{method} is wrong after {given!r}: wanted {wanted!r}, got {written!r}"
            print_line(said.format(**{**each, "given": each["given"][-60:]}))
        written = "\n".join(filter(None, [written, told_at_the_end(summary.gains, model, own)]))
    data = {"settings": asdict(plan.sweep), "wrong_answers": wrong}
    data |= summary.plain() if json else {}
    data |= {"seconds": seconds, "provenance": plan.provenance}
    finish(data, summary.points, json, rows.legend, written)


def play_first(sweep: Sweep, specs: Sequence[str]) -> None:
    """Show the first problem under methods: what they evicted, and what the model then wrote."""
    (subject,) = make_plan(sweep).subjects
    task = subject.part.task
    if sweep.models[0] not in EMBEDDED or not task.startswith("jumps"):
        raise ValueError("--play shows jump programs: it needs --model jumps, and its task")
    from kvlab.fast.lab import played, viewing

    problem = find_task(task).problems(1, sweep.seeds[0])[0]
    source = viewing.text_source(problem.prompt, embedded_directory("jumps"), problem.tokens)
    with working("running a program"):
        entries = subject.budgets[sweep.budgets[0]]
        found = viewing.record_methods(source, specs, entries, most_values=1)
    runs, styled = found.timeline.runs, console.color_system is not None
    struck = "Struck out: evicted by at least half the heads, or" if styled else "Between tildes:"
    print_texts(f"{x}: {said}" for x, said in registry.summaries(sweep.methods).items())
    told = f"A program and its run: methods keep {entries} of {problem.tokens} tokens. Sums keep "
    told += f"the last digit. L<c>: the line whose number c holds. {struck} needed and lost."
    print_texts(["", told, "", played.side_by_side(runs, styled), ""])


def print_found(bars: Bars, name: str, tables: Sequence[Table], table: bool) -> None:
    """Print bars, or with --table what follows the rows, which are the first table."""
    if table:
        for each in tables[1:]:
            print_table(each)
    else:
        print_texts(bars.lines(console.width))
        keep_tables(name, tables)


def bars_of(found: TaskSummary, measure: Measure) -> Bars:
    """Return what is drawn of a task."""
    figure, says, share = {
        "solved": (lambda point: point.interval, "problems solved", True),
        "nats per token": (loss_more, "loss per token above the full cache's, in nats", False),
    }.get(measure.name, (lambda point: point.accepted, "tokens accepted", True))
    return Bars(found.points, figure, says, found.gains, found.budgets, share)


def loss_more(point: Point) -> Interval | float | None:
    """Return by how much more a point loses than the full cache; None if it measures nothing."""
    return 0.0 if point.method == FULL else point.nats


def run_shown(sweep: Sweep, rows: RowPrinter, workers: int = 0, joined: bool = False) -> Results:
    """Run a sweep in memory, and print its points one by one; return what is found.

    ``joined`` tasks are tested as one.
    """
    say(sweep.too_few(joined))
    if named := [each for each in sweep.methods if each != ORACLE]:
        check_points(named, sweep.budgets)
    with progress_bar(transient=True) as progress, rows as tell:
        found = run_in_memory(sweep, workers, progress, tell)
    check_any([point for each in found.summaries for point in each.points])
    return found


def _workers(sweep: Sweep) -> int:
    """Return a process for each GPU or core; none for a model that is spread over all GPUs."""
    if sweep.backend == "reference":
        return PROCESSORS
    devices = devices_of(sweep.device)
    return PROCESSORS if devices[0].type == "cpu" else 0 if sweep.parallel else len(devices)


def task_of(model: str) -> str:
    """Return the task that an embedded model solves; ValueError for any other model."""
    if model in EMBEDDED:
        return EMBEDDED[model]
    raise ValueError(
        f"task must be given for model = {model!r}: a name (jumps, needle, …) or FILE.jsonl. To "
        f"measure without a task: kvlab perplexity --model {model} --window 512 --windows 12"
    )


def wrong_answers(points: Sequence[Point], problems: Sequence[Any]) -> list[dict[str, str]]:
    """Return the first three wrong answers of the full cache, or of the first method without it.

    Only results of one's own problems hold the answers.
    """
    first = next((each for each in points if each.method == FULL), points[0])
    return [
        {"method": first.method, "given": asked.prompt, "wanted": asked.solution, "written": text}
        for each in first.results
        if each.solved is False and (text := each.written) is not None
        for asked in [problems[each.problem]]
    ][:3]


def told_at_the_end(gains: Sequence[Test], model: str, own: bool) -> str:
    """Say what the rows show, and what to look at next; `view` reads no model on the hub."""
    if not (said := seen(gains)):
        return ""
    try:
        model_location(model, hub=False)
    except FileNotFoundError:
        return said
    more = f" --model {model}" * (model != MODEL) + ' --prompt "…"' * own
    return and_next(said, f"view run.html --budget 50%{more}")


def and_next(said: str, words: str) -> str:
    """Add to a sentence what to type next."""
    program = sys.argv[0] if Path(sys.argv[0]).name == "kvlab" else "kvlab"  # as it was called
    return f"{said}\nNext: {program} {words}".lstrip()
