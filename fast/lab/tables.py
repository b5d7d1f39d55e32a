"""Tables: rows of data in one form, written for a terminal, Markdown, HTML or plain text.

`tabulate` makes a `Table` of dataclasses or dictionaries and a description of the columns. Where
the cells are texts already, a `Table` is made directly.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

from markdown_it import MarkdownIt
from rich import box
from rich.console import Console
from rich.markup import escape as escape_rich
from rich.table import Table as RichTable

MISSING = "–"
LONG = 32
"""In a terminal, columns of figures break into lines only if a cell has more characters."""
WIDE = 200
"""Characters of a line of plain text."""


class Bold(NamedTuple):
    """A cell that stands out."""

    text: str


Cell = str | Bold


def percent(share: float | None, digits: int = 0, sign: str = "") -> str:
    """Write a share in percent, or a dash if there is none."""
    return MISSING if share is None else f"{100 * share:{sign}.{digits}f} %"


def counted(number: int, noun: str) -> str:
    """Write a number of things, as in ``1 problem`` and ``1,200 problems``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def escape_markdown(text: str) -> str:
    """Write text so that Markdown shows it as it is; Python-Markdown knows no escape of ``<``."""
    return re.sub(r"([\\`*_\[\]>|#])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))


@dataclass(frozen=True)
class Column:
    """How one column of a table is made from the rows."""

    heading: str
    value: str | Callable[[Any], Any] = ""
    """Name of a row's field, by default the heading, or a function of the row; None is a dash."""
    format: str | Callable[[Any], str] = ""
    """How a value is written: a specification for Python's `format`, or a function."""
    bold: Callable[[Any], bool] = lambda row: False
    width: int = 9
    """Characters, where rows are printed one by one; the first column has 20."""

    def cell(self, row: Any) -> Cell:
        """Return the cell of one row."""
        value = self.value(row) if callable(self.value) else _field(row, self.value or self.heading)
        if value is None:
            return MISSING
        text = self.format(value) if callable(self.format) else format(value, self.format)
        return Bold(text) if self.bold(row) else text


def _field(row: Any, name: str, *default: Any) -> Any:
    if not isinstance(row, Mapping):
        return getattr(row, name, *default)
    return row.get(name, *default) if default else row[name]


@dataclass(frozen=True)
class Table:
    """Cells of text; a row that is too short says in its last cell why it has no figures."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    words: int = 1
    """How many columns from the left hold words; the others are aligned to the right."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if not min(2, len(self.columns)) <= len(row) <= len(self.columns):
                raise ValueError(f"row {list(row)} must have {len(self.columns)} cells")

    def markdown(self, first: Callable[[str], str] = escape_markdown) -> str:
        """Write the table in Markdown; ``first`` writes the cells of the first column."""
        marks = ["---" if number < self.words else "--:" for number in range(len(self.columns))]
        lines = [[escape_markdown(name) for name in self.columns], marks]
        for row in self.rows:
            cells = [_written(cell, escape_markdown, "**{}**") for cell in row[1:]]
            missing = [""] * (len(self.columns) - len(row))
            lines.append([first(text_of(row[0])), *cells, *missing])
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def html(self) -> str:
        """Write the table as an HTML element."""
        return html_of(self.markdown())

    _repr_html_ = html

    def terminal(self, title: str = "") -> RichTable:
        """Lay the table out for a terminal; a reason stands below the first cell of its row."""
        shown = RichTable(
            title=escape_rich(visible(title)) or None,
            title_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
            show_lines=any("\n" in text_of(cell) for row in self.rows for cell in row),
        )
        for number, name in enumerate(self.columns):
            cells = [text_of(row[number]) for row in self.rows if number < len(row)]
            longest = max(map(len, cells), default=0)
            if number < self.words:
                width = min(20, longest) if number == 0 else None
                shown.add_column(escape_rich(name), overflow="fold", min_width=width)
            else:
                short = longest <= LONG
                shown.add_column(escape_rich(name), justify="right", no_wrap=short)
        for row in self.rows:
            cells = [_written(cell, _escape_terminal, "[bold]{}[/]") for cell in row]
            if missing := len(self.columns) - len(row):
                cells[0] += f"\n[dim]{cells.pop()}[/]"
                cells += [MISSING] * (missing + 1)
            shown.add_row(*cells)
        return shown

    def __str__(self) -> str:
        console = Console(width=WIDE, color_system=None)
        with console.capture() as shown:
            console.print(self.terminal())
        return "\n".join(line[1:].rstrip() for line in shown.get().splitlines()).strip("\n")

    __repr__ = __str__


def tabulate(rows: Iterable[Any], columns: Sequence[Column], words: int = 1) -> Table:
    """Make a table of dataclasses or dictionaries; ``words`` columns from the left hold words.

    A row with a ``refusal`` keeps its cells up to the first missing one; the reason follows.
    """
    made: list[tuple[Cell, ...]] = []
    for row in rows:
        cells = (column.cell(row) for column in columns)
        refusal = _field(row, "refusal", None)
        if refusal is None:
            made.append(tuple(cells))
        else:
            made.append((*takewhile(lambda cell: cell != MISSING, cells), refusal))
    return Table([column.heading for column in columns], made, words)


def html_of(markdown: str) -> str:
    """Turn Markdown into HTML; HTML within it is shown as text."""
    return MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)


def visible(text: str) -> str:
    """Write control characters, which a terminal would obey, as Python writes them."""
    return "".join(
        letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1] for letter in text
    )


def text_of(cell: Cell) -> str:
    """Return the text of a cell."""
    return cell if isinstance(cell, str) else cell.text


def _written(cell: Cell, escape: Callable[[str], str], bold: str) -> str:
    text = escape(text_of(cell))
    return bold.format(text) if isinstance(cell, Bold) else text


def _escape_terminal(text: str) -> str:
    return escape_rich(visible(text))
