"""What the commands and the benchmarks print with."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import version
from typing import Any, NoReturn, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.status import Status

from kvlab.fast.lab.tables import Column, Table, counted, tabulate, text_of, visible

console = Console(width=None if sys.stdout.isatty() else 100)
errors = Console(stderr=True)

Report = Callable[[int, int, str], None]
"""A long computation calls it with the steps done, the steps in all, and what it is doing."""


EVERY = 10.0
"""Seconds between two lines about a computation, where stderr is no terminal."""


@contextmanager
def reporting(transient: bool = False) -> Iterator[Report]:
    """Show on stderr what a computation reports: on a progress bar, or line by line in a file.

    A transient bar leaves nothing behind. What is printed meanwhile appears above the bar, and goes
    into a pipe if stdout is one.
    """
    if not errors.is_terminal:
        yield _lines()
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=errors,
        transient=transient,
        redirect_stdout=sys.stdout.isatty(),
    ) as bar:
        task = bar.add_task("starting", total=None)

        def report(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=escape(what))

        yield report


def _lines() -> Report:
    said = time.monotonic()

    def report(done: int, total: int, what: str) -> None:
        nonlocal said
        if time.monotonic() - said >= EVERY:
            said = time.monotonic()
            errors.print(f"{done} of {total}: {what}", markup=False, soft_wrap=True)

    return report


def working(what: str) -> Status:
    """Say on stderr what is going on, for as long as the context lasts."""
    return errors.status(escape(what))


def results_only() -> redirect_stdout[TextIO]:
    """Send to stderr what libraries print: stdout is for the results of a command."""
    return redirect_stdout(sys.stderr)


def print_json(content: Any) -> None:
    """Print data as JSON; of what is not plain, the fields."""
    print(json.dumps(content, indent=1, default=vars))


def print_line(text: str) -> None:
    """Print a line as it is, however long the line is."""
    console.print(visible(text), markup=False, highlight=False, soft_wrap=True)


def print_version(wanted: bool) -> bool:
    """Print the package's version, and end the command; do nothing unless that is wanted."""
    if wanted:
        print_line(f"kvlab {version('kvlab')}")
        raise SystemExit
    return wanted


def refuse(reason: str, code: int = 2) -> NoReturn:
    """Say on stderr, in one line, why a command cannot run, and end it with an exit code."""
    errors.print(
        f"kvlab: {visible(reason)}", style="red", markup=False, highlight=False, soft_wrap=True
    )
    raise SystemExit(code)


def print_caption(text: str) -> None:
    """Print what explains a table."""
    console.print(visible(text), style="dim", markup=False)


def print_table(table: Table, title: str = "") -> None:
    """Print a table."""
    console.print(table.terminal(title))


@contextmanager
def printing_rows(
    columns: Sequence[Column], title: str = "", wanted: bool = True
) -> Iterator[Callable[[Any], None]]:
    """Print the rows of a table one by one, as they are made; Ctrl-C says how many there are."""
    rows = 0
    if wanted and title:
        print_line(title)

    def tell(row: Any) -> None:
        nonlocal rows
        rows += 1
        if wanted:
            if rows == 1:
                print_line(_aligned([column.heading for column in columns], columns))
            cells = list(map(text_of, tabulate([row], columns).rows[0]))
            why = f"  {cells.pop()}" if len(cells) < len(columns) else ""
            print_line(_aligned(cells, columns) + why)

    try:
        yield tell
    except KeyboardInterrupt as stop:
        seen = "printed" if wanted else "lost, because --json prints them at the end"
        stop.add_note(f"{counted(rows, 'row')} {seen}, no file written")
        raise


def _aligned(cells: Sequence[str], columns: Sequence[Column]) -> str:
    """Return a line; a name that is too wide for its column has a line of its own."""
    name, *others = cells
    pairs = zip(others, columns[1:], strict=False)
    above = name if len(name) <= 20 else f"{name}\n{'':20}"
    return f"{above:20}" + "".join(f" {cell:>{column.width - 1}}" for cell, column in pairs)


STOPPED = 130
"""Exit code after Ctrl-C, as shells have it."""


def stopped(stop: KeyboardInterrupt) -> None:
    """Say what is left of a command that Ctrl-C has ended."""
    errors.print(f"stopped: {'; '.join(getattr(stop, '__notes__', ['nothing was written']))}")


def print_facts(facts: dict[str, str]) -> None:
    """Print names and values below each other."""
    print_table(Table(("figure", "value"), list(facts.items()), words=2))
