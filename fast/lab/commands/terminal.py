"""What all commands print with."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.status import Status
from rich.table import Table

console = Console(width=None if sys.stdout.isatty() else 100)
errors = Console(stderr=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def is_first_process() -> bool:
    """Say whether this process may print: of those that torchrun started, one."""
    return os.environ.get("RANK", "0") == "0"


def progress(transient: bool = False) -> Progress:
    """Return a progress bar on stderr; a transient one leaves nothing behind."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=errors,
        transient=transient,
    )


def working(what: str) -> Status:
    """Say on stderr what is going on, for as long as the context lasts."""
    return errors.status(escape(what))


@contextmanager
def results_only() -> Iterator[None]:
    """Send to stderr what libraries print: stdout is for what a command found."""
    with redirect_stdout(sys.stderr):
        yield


def print_facts(facts: dict[str, str]) -> None:
    """Print names and values below each other."""
    table = Table(box=box.SIMPLE, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, escape(value))
    console.print(table)


def kibibytes(count: int) -> str:
    """Format a number of bytes."""
    return f"{count / 1024:,.1f} KiB"
