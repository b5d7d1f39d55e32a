"""What the commands and the benchmarks print with."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from threading import Event, Thread
from typing import Any, NoReturn, TextIO

import typer
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from typer.core import TyperCommand

from kvlab.fast.lab.files import write_text
from kvlab.fast.lab.tables import MISSING, Layout, Table, counted, refusal, text_of, visible

console = Console(width=None if sys.stdout.isatty() else 100)
errors = Console(stderr=True)

OnProgress = Callable[[int, int, str], None]
"""A long computation calls it with the steps done, the steps in all, and what it is doing."""


SILENT, LONGEST = 30.0, 300.0
"""Seconds before the first line where stderr is no terminal, doubled for each, and at most."""


@contextmanager
def _lines() -> Iterator[Callable[[str], None]]:
    """Print now and then, unless stderr is a terminal, what the function was told last."""
    said, ended = ["starting"], Event()

    def print_said() -> None:
        pause, last = SILENT, ""
        while not ended.wait(pause):
            if last != (last := said[-1]):
                print_aside(last)
            pause = min(2 * pause, LONGEST)

    if not errors.is_terminal:
        Thread(target=print_said, daemon=True).start()
    try:
        yield lambda text: said.__setitem__(-1, text)
    finally:
        ended.set()


@contextmanager
def progress_bar(transient: bool = False) -> Iterator[OnProgress]:
    """Show on stderr what a computation reports: a bar on a terminal, else a line now and then.

    What is printed meanwhile appears above the bar, and goes into a pipe if stdout is one.
    """
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=errors,
        transient=transient,
        redirect_stdout=sys.stdout.isatty(),
    )
    with bar, _lines() as say:
        task = bar.add_task("starting", total=None)

        def progress(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=escape(what))
            say(f"{done} of {total}: {what}")

        yield progress
        bar.update(task, completed=bar.tasks[task].total)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say on stderr what is going on, for as long as the context lasts."""
    with errors.status(escape(what)), _lines() as say:
        say(what)
        yield


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


def print_aside(text: str) -> None:
    """Print a line on stderr, which is for people only."""
    errors.print(visible(text), markup=False, highlight=False, soft_wrap=True)


def print_caption(*sentences: str) -> None:
    """Print what explains a table, if anything does."""
    if sentences:
        console.print(visible(" · ".join(sentences)), style="dim", markup=False)


def print_table(table: Table) -> None:
    """Print a table that has rows; then why some have no figures, what columns and marks mean."""
    if table.rows:
        console.print(table.terminal())
    print_caption(*table.notes, *table.legend)


def print_texts(lines: Iterable[RenderableType]) -> None:
    """Print what is styled already."""
    for line in lines:
        console.print(line, highlight=False)


def keep_tables(name: str, tables: Iterable[Table]) -> None:
    """Keep all columns in a file, if one can be written here, and say where they are."""
    texts = ["\n".join([each.title, str(each), *each.notes, *each.legend]) for each in tables]
    path = Path("kvlab-report", f"{name}.txt")
    where = f"{path}, or the option --table"
    try:
        write_text(path, "\n".join([*texts, ""]))
    except OSError:
        where = "the option --table"
    print_caption(f"All columns, and what they mean: {where}")


class RowPrinter:
    """Prints the rows of a table one by one, as they are made; Ctrl-C says how many there are.

    Rows that are ``held`` back are printed only then.
    """

    def __init__(
        self, layout: Layout, title: str = "", wanted: bool = True, held: bool = False
    ) -> None:
        """Print the title, unless nothing is wanted."""
        self.layout, self.wanted, self.held = layout, wanted, held
        self.rows: list[Any] = []
        if wanted and title:
            print_line(title)

    def __enter__(self) -> "RowPrinter":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, KeyboardInterrupt):
            for row in self.rows if self.held else ():
                self._print_row(row)
            seen = "" if self.wanted else "not "
            why = "" if self.wanted else ", because --json prints them at the end"
            error.add_note(f"{counted(len(self.rows), 'row')} {seen}printed{why}, no file written")

    def __call__(self, row: Any) -> None:
        """Take a row, and print it unless rows are held back."""
        self.rows.append(row)
        if not self.held:
            self._print_row(row)

    def _print_row(self, row: Any) -> None:
        """Print a row; one without figures ends in the reason."""
        cells, why = [text_of(column.cell(row)) for column in self.layout.columns], refusal(row)
        if why is not None:
            cells = [*takewhile(lambda text: text != MISSING, cells)]
        if self.wanted and row is self.rows[0]:
            self._print([column.heading for column in self.layout.columns])
        if self.wanted:
            self._print(cells, why or "")

    def _print(self, cells: Sequence[str], why: str = "") -> None:
        """Print a line; a name that is too wide for its column has a line of its own."""
        name, *others = cells
        pairs = zip(others, self.layout.columns[1:], strict=False)
        line = "".join([f" {cell:>{column.width - 1}}" for cell, column in pairs])
        above = name if len(name) <= 20 else f"{name}\n{'':20}"
        print_line(f"{above:20}{line}{why and '  '}{why}")

    @property
    def legend(self) -> Sequence[str]:
        """What the columns, and the marks that were printed, mean."""
        shown = self.wanted and not self.held
        return self.layout.table(self.rows).legend if shown else ()


STOPPED = 130
"""Exit code after Ctrl-C, as shells have it."""


class Stoppable:
    """A command, or a group of them, that says what is left when Ctrl-C has ended it."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command, until Ctrl-C."""
        try:
            return super().invoke(ctx)  # type: ignore[misc]
        except KeyboardInterrupt as stop:
            stopped_by(stop)


def stopped_by(stop: KeyboardInterrupt) -> NoReturn:
    """Say what is left of a command that Ctrl-C has ended, and end it."""
    notes = getattr(stop, "__notes__", ["nothing was written"])
    print_aside(f"stopped: {'; '.join(reversed(notes))}")  # the innermost was added first
    raise SystemExit(STOPPED) from None


class StoppableCommand(Stoppable, TyperCommand):
    """A single command; every name that is given to an option counts."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse names of which only the last would count; of numbers the last one does."""
        parsed: tuple[dict[str, Any], Any, list[Any]] = self.make_parser(ctx).parse_args([*args])
        values, _, given = parsed
        for each in given:
            number = str(values.get(each.name)).replace(".", "").isdecimal()
            if given.count(each) > 1 and not (number or each.multiple or each.is_flag):
                raise typer.BadParameter("may be given once", ctx, each)
        return super().parse_args(ctx, args)


def run(main: Callable[..., Any]) -> NoReturn:
    """Run a function as a command of its own, with its parameters as options."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(cls=StoppableCommand)(main)
    app()
    raise SystemExit


def finish(
    data: Any, rows: Iterable[Any], as_json: bool, legend: Sequence[str] = (), written: str = ""
) -> None:
    """Print the data, or what follows their rows; end with code 1 if a method failed."""
    if as_json:
        print_json(data)
    else:
        print_caption(*legend)
        if written:
            print_texts([written])
    if any(row.failed for row in rows):
        raise typer.Exit(1)


def print_facts(facts: dict[str, str]) -> None:
    """Print names and values below each other."""
    print_table(Table(("figure", "value"), list(facts.items()), words=2))
