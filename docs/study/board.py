"""The board's page: its rows as a table that can be filtered, and gains at 30 % as a picture."""

import math
from functools import cache
from html import escape

from kvlab.fast.lab import board
from kvlab.fast.lab.board import Figures, Row
from kvlab.fast.lab.drawing import GREY, NARROW, Picture, canvas, finish, name_rows
from kvlab.fast.lab.evaluate.statistics import LEVEL, Interval, holm
from kvlab.fast.lab.points import LARGE
from kvlab.reference import methods
from kvlab.reference.precisions import Full
from study.gains import draw_gain
from study.speeds import measured_methods, of_limit
from study.stored import RESULTS, plain_name

SORTED_AT = "30%"
DOTS = {SORTED_AT: "o", "50%": "s"}
"""Budgets in the picture, and their marks."""
HEADINGS = (
    "task",
    "budget",
    "method",
    "gain, points",
    "own",
    "control",
    "after an eviction",
    "answer, full cache's",
    "bytes of the full cache's: most, mean",
    "speed on a CPU, of a full cache with as few entries",
)


@cache
def rows() -> list[Row]:
    """Return the rows of the board, task by task, first what gains most at `SORTED_AT`."""
    found = [board.read(path) for path in sorted((RESULTS / "board").glob("*.json"))]
    order = [*board.TASKS]
    return sorted(found, key=lambda row: (order.index(row.task), *_most_first(row)))


def _most_first(row: Row) -> tuple[float, float]:
    """Return what sorts rows of a task: the gain at `SORTED_AT`, then that at all budgets."""
    return -sorting(row).gain, -sum(each.gain for each in row.figures)


def sorting(row: Row) -> Figures:
    """Return a row's figures at `SORTED_AT`, or by its own rule."""
    return next((each for each in row.figures if each.budget == SORTED_AT), row.figures[0])


@cache
def significant() -> set[tuple[str, str, str]]:
    """Return task, method and budget of significant gains and losses, by Holm over a task."""
    found = set()
    for task in board.TASKS:
        shown = [(row, each) for row in rows() if row.task == task for each in row.figures]
        adjusted = holm([each.p for _, each in shown])
        for (row, each), p in zip(shown, adjusted, strict=True):
            if p < 1 - LEVEL:
                found.add((task, row.method, each.budget))
    return found


def draw(task: str) -> Picture:
    """Draw what the methods on a task gain over their controls at the budgets of `DOTS`."""
    shown = [row for row in rows() if row.task == task]
    figure, (axes,) = canvas(width=NARROW, height=1.2 + 0.37 * len(shown))
    rows_of = range(len(shown))
    axes.vlines([0] * len(shown), [x - 0.3 for x in rows_of], [x + 0.1 for x in rows_of], GREY)
    for place, row in enumerate(reversed(shown)):
        for each in row.figures:
            if dot := DOTS.get(each.budget, "D" if each.entries is None else ""):
                gains = each.gain > 0 and (task, row.method, each.budget) in significant()
                found, height = Interval(each.gain, each.low, each.high), -0.2 * (dot != "o")
                draw_gain(axes, place + height, found, 100, gains, dot)
    for label, dot in (DOTS | {"own rule": "D"}).items():
        axes.plot([], [], dot, color="tab:blue", markersize=5, label=label)
    name_rows(axes, [plain_name(row.method) for row in shown])
    axes.set_xlabel("points gained over the control")
    return finish(figure, f"What methods gain on {task}, over their matched controls", "below")


def table() -> str:
    """Write all rows, a line per budget, with what a filter reads."""
    head = "".join(f"<th>{each}</th>" for each in HEADINGS)
    body = "".join(line(row, each) for row in rows() for each in row.figures)
    return f'<table id="kvlab-board"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def line(row: Row, found: Figures) -> str:
    """Write one line of the table."""
    shown = (row.task, row.method, found.budget) in significant()
    mark = " ≈" if not shown else " ▼" if found.gain < 0 else ""
    gain, low, high = (f"{100 * x:+.1f}" for x in (found.gain, found.low, found.high))
    share, mean = _share(found.nbytes, found), _share(found.mean_nbytes, found)
    cells = (
        row.task,
        found.budget + (f", {found.entries}" if found.entries else ""),
        f"<code>{escape(row.method)}</code>",
        f"{gain} ({low} to {high})" + mark,
        *(f"{100 * each:.1f}" for each in (found.mean, found.control)),
        f"{100 * min(1.0, found.after_eviction):.0f} %",
        f"{found.tokens:.0f}, {found.full_tokens:.0f}",
        "–"
        if share is None or mean is None
        else f"{share:.0f} %, {mean:.0f} %{beside(row, found)}",
        speed(row),
    )
    inside = "".join(f"<td>{each}</td>" for each in cells)
    known = "" if share is None else f"{share:.1f}"
    data = {"task": row.task, "budget": found.budget, "bytes": known}
    read = " ".join(f'data-{name}="{value}"' for name, value in data.items())
    return f"<tr {read}>{inside}</tr>"


def speed(row: Row) -> str:
    """Return a method's share of the limit, if it was measured with SmolLM2."""
    known = row.method in measured_methods() and row.plan.sweep.models == ("smollm2",)
    return f"{of_limit(row.method):.0f} %" if known else "–"


def beside(row: Row, found: Figures) -> str:
    """Say what solves most without codes in as many bytes (2 % more at most), beside codes."""
    if not _codes(row.method):
        return ""
    others = [
        (each.mean, other.method, each.budget)
        for other in rows()
        for each in other.figures
        if other.task == row.task and not _codes(other.method)
        if (each.nbytes or math.inf) <= 1.02 * (found.nbytes or 0)
    ]
    if not others:
        return "; without codes: no row"
    mean, method, budget = max(others)
    return f"; without codes {100 * mean:.1f}, <code>{escape(method)}</code> at {budget}"


@cache
def _codes(spec: str) -> bool:
    policy = methods.get(spec, LARGE if methods.takes_budget(spec) else None)
    return not isinstance(policy.precision, Full)


def _share(nbytes: float | None, found: Figures) -> float | None:
    full = found.full_nbytes
    return None if nbytes is None or not full else 100 * nbytes / full


def tasks() -> list[str]:
    """Return the tasks that have rows."""
    return list(dict.fromkeys(row.task for row in rows()))
