"""Compares methods on one task: a sweep that is run at once, kept in memory, and put into words."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kvlab.fast.lab import viewing
from kvlab.fast.lab.drawing import Picture, canvas, curve_style, finish
from kvlab.fast.lab.evaluate.backends import load_backend
from kvlab.fast.lab.evaluate.tasks import find_task
from kvlab.fast.lab.points import check_some_ran
from kvlab.fast.lab.reports import (
    Block,
    Drawing,
    Heading,
    Page,
    Text,
    write_drawings,
    write_html,
)
from kvlab.fast.lab.sweep.jobs import MEASURED, Failure, Found, in_processes, in_this_process
from kvlab.fast.lab.sweep.plan import ORACLE, Sweep, make_plan
from kvlab.fast.lab.sweep.report import over_memory
from kvlab.fast.lab.sweep.summary import (
    CONTROL,
    FULL,
    LEVEL,
    Point,
    Results,
    TaskSummary,
    point_of,
    summarise,
)
from kvlab.fast.lab.tables import Column, Specification, Table, counted, percent_interval, tabulate
from kvlab.fast.lab.terminal import Report
from kvlab.fast.models import model_location
from kvlab.reference.methods import base_name
from kvlab.reference.models import EMBEDDED, embedded_directory
from kvlab.reference.quantization import FULL_BITS
from kvlab.reference.simulator.timeline import Timeline

MOST = 3
"""Methods that are recorded for the viewer."""

DEFAULT_BUDGETS = ("70%", "85%")

ENGINES = {
    "fast": "PyTorch, all problems of a batch at once",
    "reference": "NumPy, one problem after the other",
}


Tell = Callable[[Point], None]
"""Called with every point as soon as it is complete."""

COLUMNS = (
    Column("method", cell_type=Specification),
    Column("solved (95 %)", "interval", lambda share: percent_interval(*vars(share).values())),
    Column("error", lambda point: point.mean("output_error"), ".3f"),
    Column("KL", lambda point: point.mean("kl"), ".3f"),
    Column("entries", lambda point: point.mean("entries"), ".0f"),
    Column("KiB", lambda point: point.mean("nbytes"), lambda nbytes: f"{nbytes / 1024:.0f}"),
    Column("bits", lambda point: point.mean("average_bits"), ".1f"),
    Column("ms", "seconds_per_token", lambda seconds: f"{1000 * seconds:.1f}"),
)
"""What the tables of a comparison say of a point."""


@dataclass(frozen=True)
class Comparison:
    """What `compare` found."""

    sweep: Sweep
    summary: TaskSummary
    """Every method at every budget, with intervals."""
    memory: dict[str, list[float]]
    """KiB of keys and values after each token of the first problem, per label."""
    workers: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "settings": asdict(self.sweep),
            "mean_length": self.summary.mean_length,
            "budgets": self.summary.budgets,
            "rows": [_plain(point) for point in self.summary.points],
            "memory": self.memory,
            "seconds": self.seconds,
        }


def label(method: str, budget: int | None) -> str:
    """Name a method at a budget."""
    return method if budget is None else f"{method} · {budget}"


def compare(
    sweep: Sweep, workers: int = 0, report: Report | None = None, tell: Tell | None = None
) -> Comparison:
    """Sum up what every method does at every budget on every problem.

    Args:
        sweep: what to compare, on one model and one task; with ``measured`` 0, all problems are
            measured.
        workers: processes, each of one thread; 0 computes in this process.
        report: is called after each job.
        tell: see `run_in_memory`.

    Raises:
        ValueError: if there is more than one model or task, or no method could run.
        FileNotFoundError: if the model directory is incomplete.
    """
    started = time.perf_counter()
    if len(sweep.models) > 1 or len(sweep.tasks) > 1:
        raise ValueError(
            f"models = {sweep.models} and tasks = {sweep.tasks} must be one model and one task"
        )
    sweep = replace(sweep, measured=sweep.measured or sweep.problems)
    results = run_in_memory(sweep, workers, report, tell)
    (summary,) = summarise(results)
    check_some_ran(summary.points)
    memory = {
        label(row["method"], row["budget"]): [each / 1024 for each in row["nbytes_over_tokens"]]
        for row in results.rows
        if (row["problem"], row["seed"]) == (0, sweep.seeds[0]) and "nbytes_over_tokens" in row
    }
    return Comparison(sweep, summary, memory, workers, time.perf_counter() - started)


def run_in_memory(
    sweep: Sweep, workers: int = 0, report: Report | None = None, tell: Tell | None = None
) -> Results:
    """Do all jobs of a sweep, and keep what they find.

    Args:
        sweep: what to run.
        workers: processes, each of one thread; 0 computes in this process.
        report: is called after each job.
        tell: is called with each point of the first model and task as soon as it is complete. The
            jobs of a point then follow each other, and methods without a budget come last.

    Raises:
        ValueError: if a budget is not allowed.
        FileNotFoundError: if a model directory is incomplete.
        RuntimeError: if a job fails.
    """
    plan = make_plan(sweep)
    for model in sweep.models:  # so that errors come before processes are started
        load_backend(sweep.backend, model_location(model))
    engine = partial(in_processes, workers=workers) if workers else in_this_process
    jobs = list(plan.jobs())
    if tell is not None:
        order = list(plan.points(sweep.models[0], sweep.tasks[0]))
        jobs.sort(key=lambda job: (job.budget is None, order.index((job.method, job.budget))))
    rows: list[Found] = []
    of_point: dict[tuple[str, int | None], list[Found]] = defaultdict(list)
    wanted = sweep.problems * len(sweep.seeds)
    for done, (job, made) in enumerate(engine(jobs), start=1):
        if isinstance(made, Failure):
            raise RuntimeError(f"{job.label} failed\n\n{made.trace}")
        rows += made
        if report is not None:
            report(done, len(jobs), job.label)
        if tell is not None:
            own = of_point[job.method, job.budget]
            own += made
            if len(own) == wanted:
                tell(point_of(job.method, job.budget, own, wanted))
    return Results(plan, rows)


def _plain(point: Point) -> dict[str, Any]:
    """Return what was found at one point as plain data; the figures are means."""
    share, seconds, nbytes = point.interval, point.seconds_per_token, point.mean("nbytes")
    return {
        "spec": point.method,
        "budget": point.budget,
        "problems": point.problems,
        "refusal": point.refusal,
        "accuracy": point.solved,
        "accuracy_low": None if share is None else share.low,
        "accuracy_high": None if share is None else share.high,
        **{name: point.mean(name) for name in MEASURED if name != "nbytes"},
        "kilobytes": None if nbytes is None else nbytes / 1024,
        "milliseconds_per_token": None if seconds is None else 1000 * seconds,
    }


def tables(comparison: Comparison) -> list[tuple[str, Table]]:
    """Return a title and a table for the methods with a rule of their own, and for each budget."""
    titles: dict[int | None, str] = {None: "memory by the method's own rule"}
    for text, entries in comparison.summary.budgets.items():
        percent = text.endswith("%")
        titles[entries] = f"budget {text} = {entries} entries" if percent else f"budget {entries}"
    found = []
    for budget, title in titles.items():
        points = [point for point in comparison.summary.points if point.budget == budget]
        if points:
            found.append((title, tabulate(points, COLUMNS)))
    return found


def caption(sweep: Sweep) -> str:
    """Explain the columns."""
    count = sweep.measured
    few = "all problems" if count == sweep.problems else f"the first {count} problems"
    return (
        "solved: whole solution right, with 95 % interval · error: attention output against "
        "everything seen, L2 per head · KL in nats from the full cache · entries, KiB: peak · "
        "bits: stored per element of the full cache, scales included · from error to bits: on "
        f"{'the first problem' if count == 1 else few} · ms: per token, {ENGINES[sweep.backend]}"
    )


# --- sentences -----------------------------------------------------------------------------------


def budget_of_largest_spread(comparison: Comparison) -> int | None:
    """Return the budget at which methods differ most, the smallest of equal ones.

    A budget does not count if it holds the whole text, or if only one method has figures there.
    """
    length = comparison.summary.mean_length
    spread: dict[int, float] = {}
    for budget in sorted(each for each in comparison.summary.budgets.values() if each < length):
        shares = [point.solved or 0.0 for point in _points_at(comparison, budget)]
        if len(shares) > 1:
            spread[budget] = max(shares) - min(shares)
    return max(spread, key=spread.__getitem__, default=None)


def _points_at(comparison: Comparison, budget: int | None) -> list[Point]:
    """Return the methods' points of a budget that have figures, the best first.

    The oracle is left out because it is no method: it reads the solution.
    """
    points = [
        point
        for point in comparison.summary.points
        if point.budget == budget and point.interval is not None and point.method != ORACLE
    ]
    return sorted(points, key=lambda point: point.solved or 0.0, reverse=True)


def sentences(comparison: Comparison) -> list[str]:
    """Say what lost least, what eviction at random does, and what the other methods do.

    The sentences are computed from the figures and their intervals.
    """
    budget = budget_of_largest_spread(comparison)
    found = [_without_budget(comparison)]
    if budget is not None:
        found = [_least_lost(comparison, budget), _beside_control(comparison, budget), *found]
    return [sentence for sentence in found if sentence]


def _least_lost(comparison: Comparison, budget: int) -> str:
    """Say which methods solved most under a budget, beside the full cache, and which come next."""
    points, length = _points_at(comparison, budget), comparison.summary.mean_length
    forgotten = f"{100 * (1 - budget / length):.0f} % of what the model had read"
    best = [point for point in points if point.solved == points[0].solved]
    if not points[0].solved:
        return f"No method forgot {forgotten} and still solved a problem."
    full = [point for point in _points_at(comparison, None) if point.method == FULL]
    beside = f"; the full cache, which forgets nothing, solved {_solved(full[0])}" if full else ""
    return (
        f"{_names(best)} lost least: with {forgotten} forgotten, the model solved "
        f"{_solved(best[0])}{beside}.{_next_best(comparison, budget, points[len(best) :])}"
    )


def _next_best(comparison: Comparison, budget: int, points: Sequence[Point]) -> str:
    """Say which of the other methods solved most, and whether they are shown to be worse."""
    following = [p for p in points if p.solved and p.solved == points[0].solved]
    if not following:
        return ""
    leaders = comparison.summary.leaders.get(budget, ())
    level = [point for point in following if point.method in leaders]
    doubt = ""
    if level:
        few = f"{following[0].problems} problems are too few to say"
        doubt = f"; {few} that {_names(level)} {'is' if len(level) == 1 else 'are'} worse"
    return f" Next: {_names(following)}, {_solved(following[0])}{doubt}."


def _beside_control(comparison: Comparison, budget: int) -> str:
    """Say what eviction at random solved, and which methods are shown to solve more."""
    points = _points_at(comparison, budget)
    controls = [point for point in points if base_name(point.method) == CONTROL]
    if not controls:
        return ""
    not_above = {point.method for point in controls} | comparison.summary.chance[budget]
    above = [point for point in points if point.method not in not_above]
    shown = f"Only {_names(above)}" if above else "No method"
    return (
        f"With as much forgotten at random, the model solved {_solved(controls[0])}. {shown} "
        f"{'are' if len(above) > 1 else 'is'} shown to solve more than that (McNemar's exact test, "
        "Holm's correction over all budgets)."
    )


def _without_budget(comparison: Comparison) -> str:
    """Say what was solved by the methods whose memory follows from their own parameters."""
    parts = [
        f"{_names([point])} solved {_solved(point)} with {100 * bits / FULL_BITS:.0f} % of the "
        "memory"
        for point in _points_at(comparison, None)
        if point.method != FULL and (bits := point.mean("average_bits")) is not None
    ]
    return f"By a rule of their own: {'; '.join(parts)}." if parts else ""


def _solved(point: Point) -> str:
    assert point.interval is not None
    low, high = 100 * point.interval.low, 100 * point.interval.high
    return (
        f"{sum(point.outcomes)} of {counted(point.problems, 'problem')} "
        f"({100 * LEVEL:.0f} % interval {low:.0f} to {high:.0f} %)"
    )


def _names(points: Sequence[Point]) -> str:
    """List methods without their options, unless two would then have one name."""
    short = [point.method.partition("@")[0] for point in points]
    shown = short if len(set(short)) == len(short) else [point.method for point in points]
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


# --- one problem for the viewer ------------------------------------------------------------------


def record_example(comparison: Comparison, report: Report | None = None) -> Timeline | None:
    """Record the best methods, and eviction at random, on the problem that splits them most evenly.

    Return None if the model is not embedded, because the reference may not be able to read it, and
    if no two methods differ on a problem.
    """
    sweep, budget = comparison.sweep, budget_of_largest_spread(comparison)
    (model,), (spec,) = sweep.models, sweep.tasks
    if model not in EMBEDDED or budget is None:
        return None
    points = _points_at(comparison, budget)
    controls = [point for point in points if base_name(point.method) == CONTROL][:1]
    others = [point for point in points if point not in controls]
    points = [*others[: MOST - len(controls)], *controls]
    shares = np.mean([point.outcomes for point in points], axis=0)
    number = int(np.argmin(np.abs(shares - 0.5)))
    if shares[number] in (0.0, 1.0):
        return None
    points.sort(key=lambda point: point.outcomes[number], reverse=True)
    points.insert(1, points.pop())  # the viewer opens with the first two: one of each kind
    task = find_task(spec)
    problem = task.problems(sweep.problems, sweep.seeds[0])[number]
    source = viewing.text_source(
        problem.prompt,
        embedded_directory(model),
        len(problem.solution.split(" ")) * 5 // 4,
        lambda text: task.grade(problem, text).solved,
    )
    record = partial(viewing.record_methods, source, [point.method for point in points], budget)
    return (record() if report is None else record(report=report)).timeline


# --- the report ----------------------------------------------------------------------------------


def write_report(
    comparison: Comparison, path: Path, example: Timeline | None = None
) -> Path | None:
    """Write one HTML file that needs no network, its curves as SVG files, and the viewer's page.

    Args:
        comparison: what was found.
        path: path of the report.
        example: methods on one problem, for the viewer.

    Returns:
        The path of the viewer's page, if there is an example.
    """
    page = None
    if example is not None:
        page = path.with_name(f"{path.stem}-viewer.html")
        viewing.write_viewer(example, page)
    blocks = list(_blocks(comparison, path.stem, page))
    write_html(blocks, path)
    write_drawings(blocks, path.parent)
    return page


def _blocks(comparison: Comparison, name: str, page: Path | None) -> Iterator[Block]:
    """Yield the report from top to bottom; the names of the drawings begin with ``name``."""
    sweep = comparison.sweep
    yield Heading("KV-cache compression compared", 1)
    for sentence in sentences(comparison):
        yield Text(sentence)
    yield Drawing(
        f"{name}-accuracy",
        "Problems solved over memory, with 95 % intervals: higher is better, further left is less "
        "memory.",
        over_memory(comparison.summary, sweep.methods).on_white,
    )
    if page is not None:
        yield Heading("One problem on which methods differ")
        yield Page("What the methods kept", page.read_text(encoding="utf-8"))
    yield Heading("All figures")
    for title, table in tables(comparison):
        yield Heading(title, 3)
        yield table
    yield Text(caption(sweep))
    yield Drawing(f"{name}-memory", "Memory over tokens", _memory_over_tokens(comparison).on_white)
    yield Text(
        f"Task {sweep.tasks[0]}: {sweep.problems} held-out problems, seed {sweep.seeds[0]}; "
        f"{comparison.summary.mean_length:.0f} tokens of prompt and solution on average. Model: "
        f"{sweep.models[0]}. {sweep.backend} backend, {comparison.workers or 1} processes, "
        f"{comparison.seconds:.0f} s in all."
    )


def _memory_over_tokens(comparison: Comparison) -> Picture:
    """Draw KiB of keys and values over tokens, at the smallest budget (LazyEviction Fig. 6)."""
    smallest = min(comparison.summary.budgets.values(), default=None)
    specs = comparison.sweep.methods
    figure, (axes,) = canvas(height=4.6)
    for number, spec in enumerate(specs):
        for budget in (None, smallest):
            curve = comparison.memory.get(label(spec, budget))
            if curve is not None:
                color = curve_style(number, len(specs))["color"]
                axes.plot(curve, label=spec, linewidth=1.2, color=color)
                break
    axes.set(xlabel="tokens written (first problem)", ylabel="KiB of keys and values")
    axes.set_ylim(0, None)
    return finish(figure, "KiB of keys and values over the tokens written.", legend="below")
