"""The report of a sweep: the papers' tables, curves, tests, and how to run it again."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvlab.fast.lab.drawing import MARKERS, Picture, canvas, finish
from kvlab.fast.lab.evaluate.statistics import Interval
from kvlab.fast.lab.files import write_text
from kvlab.fast.lab.reports import (
    Block,
    Code,
    Drawing,
    Heading,
    Text,
    write_html,
    write_markdown,
)
from kvlab.fast.lab.sweep.plan import ORACLE, to_plain, to_toml
from kvlab.fast.lab.sweep.summary import LEVEL, Point, TaskSummary, summarise
from kvlab.fast.lab.tables import Bold, Cell, Column, Table, tabulate
from kvlab.reference import methods as registry
from kvlab.reference.methods import base_name
from kvlab.reference.proofs import PAPERS
from kvlab.reference.quantization import FULL_BITS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kvlab.fast.lab.sweep.run import Stored  # needs pyarrow

NAME = "report"

Curve = Sequence[tuple[float, float, float, float]]
"""Points of x, share solved, and the ends of its interval."""

EXCEEDED = "†"
"""Marks a point that held more entries than its budget."""

UNKNOWN = "?"
"""Marks a point for which that is not known, because no problem was measured."""

CHANCE = "≈"
"""Marks a point that is not shown to solve more than eviction at random."""


def write_report(stored: "Stored", directory: Path) -> list[TaskSummary]:
    """Write ``report.html``, ``report.md`` with its drawings, and ``report.json``.

    Raises:
        ValueError: if nothing has been run yet.
    """
    summaries = summarise(stored)
    if not any(point.problems for each in summaries for point in each.points):
        raise ValueError(f"{stored.directory} holds no results of this sweep yet")
    directory.mkdir(parents=True, exist_ok=True)
    report = list(blocks(stored, summaries))
    write_html(report, directory / f"{NAME}.html")
    write_markdown(report, directory / f"{NAME}.md")
    plain = json.dumps(to_json(stored, summaries), indent=1)
    write_text(directory / f"{NAME}.json", f"{plain}\n")
    return summaries


def to_json(stored: "Stored", summaries: Sequence[TaskSummary]) -> dict[str, Any]:
    """Return plain data: all figures, and what it takes to run the sweep again."""
    found = []
    for each in summaries:
        content = asdict(each)
        content["points"] = [_plain(point) for point in content["points"]]
        for test, written in zip(each.tests, content["tests"], strict=True):
            written["verdict"] = test.verdict
        for name in ("leaders", "chance"):
            content[name] = {k: sorted(names) for k, names in getattr(each, name).items()}
        found.append(content)
    return {
        "sweep": to_plain(stored.plan.sweep),
        "run": dict(stored.run),
        "missing_jobs": len(stored.missing()),
        "tasks": found,
    }


def _plain(point: Mapping[str, Any]) -> dict[str, Any]:
    """Return a point without its single outcomes, in the order of the stored reports."""
    first = ("method", "budget", "problems", "wanted")
    names = (*first, *(name for name in point if name not in first))
    return {name: point[name] for name in names if name not in ("outcomes", "figures")}


def blocks(stored: "Stored", summaries: Sequence[TaskSummary]) -> Iterator[Block]:
    """Yield the report from top to bottom."""
    sweep = stored.plan.sweep
    yield Heading("Report of a sweep", 1)
    yield Text(
        f"{len(sweep.methods)} methods, {sweep.problems} problems of each of {len(sweep.seeds)} "
        f"seeds ({', '.join(map(str, sweep.seeds))}), {sweep.backend} backend. {_state(stored)}"
    )
    for number, each in enumerate(summaries):
        yield Heading(f"{each.task}, model {each.model}")
        yield from _task_blocks(each, f"{NAME}-{number}", sweep.curves or sweep.methods)
    yield from _rerun_blocks(stored)


def _state(stored: "Stored") -> str:
    missing, total = len(stored.missing()), sum(1 for _ in stored.plan.jobs())
    if not missing:
        return f"All {total} jobs are done."
    return f"{missing} of {total} jobs are missing; a seed counts once all its jobs are done."


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
        yield Text(accuracy_caption(each))
        drawing = _over_budget(each, curves).on_white
        yield Drawing(f"{name}-budget", "Problems solved over the budget", drawing)
    if own:
        yield Heading("Methods whose memory follows from their own parameters", 3)
        yield tabulate(own, (METHOD, *FIGURES))
    if measured_curves(each, curves):
        drawing = over_memory(each, curves).on_white
        yield Drawing(f"{name}-memory", "Problems solved over the memory that is left", drawing)
    if each.tests:
        yield Heading("Pairs on the same problems", 3)
        yield tabulate(each.tests, TESTS, words=3)
        yield Text(TESTS_CAPTION)
    if budgeted:
        yield Heading("What it cost and what it spoiled", 3)
        yield tabulate(budgeted, (METHOD, Column("budget"), *FIGURES))
    yield Text(FIGURES_CAPTION)
    yield Text(_spread_over_seeds(each))


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


def accuracy_caption(each: TaskSummary) -> str:
    """Say what brackets, marks and bold type mean."""
    shown = [p for p in each.points if p.budget is not None and p.interval is not None]
    unknown = any(point.holds_budget is None for point in shown)
    sentences = [
        f"In brackets: Wilson's {LEVEL:.0%} interval.",
        f"{EXCEEDED}: held more entries than the budget at some time on a measured problem, "
        "because it evicts only now and then or only after the prompt, or protects more entries.",
        f"{UNKNOWN}: no problem was measured, so whether it held the budget is not known."
        if unknown
        else "",
        f"{CHANCE}: not shown to solve more than the best row of random in the column (McNemar's "
        "exact test on the same problems, after Holm's correction)."
        if each.chance
        else "",
        "Bold, among those that held the budget: not shown to be worse than the best of the "
        "column, if that solved any (McNemar's exact test of all pairs on the same problems, p < "
        f"{1 - LEVEL:.2f} after Holm's correction over all pairs and budgets).",
    ]
    return " ".join(filter(None, sentences))


def accuracy_cell(each: TaskSummary, point: Point) -> Cell:
    """One share with its interval and mark, or a dash."""
    if point.interval is None or point.budget is None:
        return "–"
    text = percent(point)
    if point.method in each.chance.get(point.budget, ()):
        text += f" {CHANCE}"
    if point.holds_budget is None:
        return f"{text} {UNKNOWN}"
    if not point.holds_budget:
        return f"{text} {EXCEEDED}"
    return Bold(text) if point.method in each.leaders[point.budget] else text


def percent(point: Point) -> str:
    """Write a share and its interval."""
    if point.interval is None:
        return "–"
    mean, low, high = (100 * x for x in vars(point.interval).values())
    return f"{mean:.1f} ({low:.1f}–{high:.1f})"


def mean(name: str) -> Callable[[Point], float | None]:
    """Return what reads the mean of a measured figure."""
    return lambda point: point.measured[name].mean if point.measured else None


def with_interval(interval: Interval) -> str:
    """Write the mean of a figure and its interval."""
    return f"{interval.mean:.3f} ({interval.low:.3f}–{interval.high:.3f})"


METHOD = Column("method")
FIGURES = (
    Column("solved %", lambda point: None if point.interval is None else percent(point)),
    Column("entries", mean("entries"), ".0f"),
    Column("KiB", mean("nbytes"), lambda nbytes: f"{nbytes / 1024:.0f}"),
    Column("bits", mean("average_bits"), ".1f"),
    Column("error", lambda point: point.measured.get("output_error"), with_interval),
    Column("KL", lambda point: point.measured.get("kl"), with_interval),
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
    Column("difference", format=lambda difference: _points(difference)),
    Column("p", format=lambda p: _p(p)),
    Column("Holm", "p_adjusted", lambda p: _p(p)),
)
TESTS_CAPTION = (
    "Pairs are those that the sweep's file names. only 1st, only 2nd: problems that one "
    "alone solved. difference: 2nd less 1st in percentage points, with the "
    f"{LEVEL:.0%} bootstrap interval over problems. p: McNemar, exact, two-sided; Holm: "
    "adjusted over all rows of this table. The interval is not adjusted."
)


def _points(difference: Interval) -> str:
    mean, low, high = (100 * share for share in vars(difference).values())
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"


def _p(p: float) -> str:
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}"


def _spread_over_seeds(each: TaskSummary) -> str:
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


def _over_budget(each: TaskSummary, methods: Sequence[str]) -> Picture:
    """Draw the share solved over the budget (LazyEviction Fig. 5)."""

    def share(point: Point) -> float | None:
        return None if point.budget is None else 100 * point.budget / each.mean_length

    found = _curves_over(each, methods, share)
    full = next((point.solved for point in each.points if point.method == "full"), None)
    return solved_over(found, "budget, % of the mean length of prompt and solution", full)


def over_memory(each: TaskSummary, methods: Sequence[str]) -> Picture:
    """Draw the share solved over what is stored at the last token."""
    label = "memory at the last token, % of the full cache"
    return solved_over(measured_curves(each, methods), label)


def measured_curves(each: TaskSummary, methods: Sequence[str]) -> Mapping[str, Curve]:
    """Return the points of which memory was measured."""

    def share(point: Point) -> float | None:
        bits = point.mean("average_bits")
        return None if bits is None else 100 * bits / FULL_BITS

    return _curves_over(each, methods, share)


def _curves_over(
    each: TaskSummary, methods: Sequence[str], x: Callable[[Point], float | None]
) -> Mapping[str, Curve]:
    """Return x, share solved and its interval of the points that have them, by method."""
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    for point in each.points:
        place = x(point)
        if place is not None and point.interval is not None and point.method in methods:
            shares = point.interval.mean, point.interval.low, point.interval.high
            found.setdefault(point.method, []).append((place, *shares))
    return found


def _rerun_blocks(stored: "Stored") -> Iterator[Block]:
    run = stored.run
    yield Heading("Run it again")
    yield Text("With this file as sweep.toml; what is already there is not done again.")
    yield Code(to_toml(stored.plan.sweep), "toml")
    commands = ("kvlab sweep sweep.toml --out DIR", "kvlab report DIR")
    yield Code("\n".join([*commands, f"# last run: {run['command']}"]))
    versions = {**run["versions"], "machine": run["machine"]}
    versions |= {f"model {name}": mark for name, mark in stored.plan.fingerprints.items()}
    yield Table(("what", "was"), [(name, str(value)) for name, value in versions.items()], words=2)


# --- curves --------------------------------------------------------------------------------------

MOST_LABELS = 14
"""Methods whose names stand at the ends of their lines; more are named below the drawing."""
COLOURS = (
    *("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:pink"),
    *("tab:olive", "tab:cyan", "teal", "goldenrod", "orchid"),
)
"""Grey is left to controls."""
MOST_TICKS = 8
"""Up to so many places of x, each one gets a label."""


def solved_over(curves: Mapping[str, Curve], horizontal: str, full: float | None = None) -> Picture:
    """Draw shares of problems solved with their intervals, one line per method.

    Args:
        curves: by method.
        horizontal: what x is.
        full: share that the full cache solves, drawn as a line.
    """
    figure, (axes,) = canvas(height=5.2)
    drawn = {spec: np.array(points, dtype=float).T for spec, points in curves.items() if points}
    styles = _curve_styles(list(drawn))
    for spec, (x, share, low, high) in drawn.items():
        interval = [100 * (share - low), 100 * (high - share)]
        style = {"elinewidth": 0.6, "capsize": 2, "markersize": 4, **styles[spec]}
        axes.errorbar(x, 100 * share, interval, label=spec, **style)
    if full is not None:
        axes.axhline(100 * full, color="black", linewidth=0.6, linestyle=(0, (1, 3)))
        place = (0.01, 100 * full + 1)
        axes.annotate("full cache", place, xycoords=("axes fraction", "data"), fontsize=7)
    axes.set(xlabel=horizontal, ylabel="problems solved, %", ylim=(-5, 105))
    places = sorted({float(place) for x, *_ in drawn.values() for place in x})
    if len(places) <= MOST_TICKS:
        axes.set_xticks(places, [f"{place:.0f}" for place in places])
    description = f"Problems solved over {horizontal.partition(',')[0]}, per method."
    if len(drawn) > MOST_LABELS:
        return finish(figure, description, legend="below")
    ends = {spec: (float(x[-1]), float(share[-1])) for spec, (x, share, _, _) in drawn.items()}
    _name_at_ends(axes, ends, {spec: style["color"] for spec, style in styles.items()})
    return finish(figure, description, legend="none")


def _curve_styles(specs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return how each method is drawn: the four papers' thick, the others thin, controls grey.

    The oracle and eviction at random are controls: they are dashed, in black and grey.
    """
    styles: dict[str, dict[str, Any]] = {}
    coloured = [spec for spec in specs if spec != ORACLE and base_name(spec) != "random"]
    for number, spec in enumerate(coloured):
        width = 2.0 if is_of_the_papers(spec) else 0.9
        color, marker = (each[number % len(each)] for each in (COLOURS, MARKERS))
        styles[spec] = {"color": color, "marker": marker, "linewidth": width}
    if ORACLE in specs:
        styles[ORACLE] = {"color": "black", "linestyle": "--", "linewidth": 1.0}
    for spec, dashes in zip(
        (spec for spec in specs if spec not in styles), cycle(("--", ":", "-."))
    ):
        styles[spec] = {"color": "0.5", "linestyle": dashes, "linewidth": 1.4}
    return styles


def is_of_the_papers(spec: str) -> bool:
    """Say whether a method, or the method wrapped around it, comes from one of the four papers."""
    if spec == ORACLE:
        return False
    sources = {name: facts["source"] for name, facts in registry.describe().items()}
    return sources[base_name(spec)] in {sources[paper] for paper in PAPERS}


def _name_at_ends(
    axes: "Axes", ends: Mapping[str, tuple[float, float]], colors: Mapping[str, Any]
) -> None:
    """Write names of curves to the right of the axes, beside the ends, none above another."""
    heights = _spread_out([share for _, share in ends.values()], -0.02, 1.02)
    for (spec, (x, share)), height in zip(ends.items(), heights, strict=True):
        name, _, options = spec.partition("@")
        style = {"color": colors[spec], "va": "center"}
        place = (1.05, (height + 0.05) / 1.1)
        line = {"arrowstyle": "-", "linewidth": 0.4, "color": colors[spec], "relpos": (0, 0.5)}
        axes.annotate(
            name,
            (x, 100 * share),
            place,
            textcoords="axes fraction",
            fontsize=8.5,
            arrowprops={**line, "shrinkA": 0, "shrinkB": 3},
            **style,
        )
        if options:
            below = (place[0], place[1] - 0.032)
            axes.text(*below, options, fontsize=6, transform=axes.transAxes, **style)


def _spread_out(heights: Sequence[float], low: float, high: float) -> list[float]:
    """Move heights apart until all are equally far from each other at least, in their order."""
    gap = min(0.085, (high - low) / max(1, len(heights) - 1))
    order = np.argsort(np.array(heights), kind="stable")
    placed = np.array(heights, dtype=float)
    reach = low - gap
    for number in order:  # upwards: each above the one before
        reach = placed[number] = max(placed[number], reach + gap)
    reach = high + gap
    for number in order[::-1]:  # and down again, where the highest went too far
        reach = placed[number] = min(placed[number], reach - gap)
    return placed.tolist()
