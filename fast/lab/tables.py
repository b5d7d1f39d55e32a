"""Tables: rows of data in one form, written for a terminal, Markdown, HTML or plain text.

`tabulate` makes a `Table` of dataclasses or dictionaries and a description of the columns. Where
the cells are texts already, a `Table` is made directly.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import takewhile
from typing import Any, NamedTuple

from rich import box
from rich.markup import escape as escape_rich
from rich.table import Table as RichTable

MISSING = "–"
"""Stands in a cell that has no figure."""
LONG = 32
"""In a terminal, columns of figures break into lines only if a cell has more characters."""


class Bold(NamedTuple):
    """A cell that stands out."""

    text: str


class Specification(NamedTuple):
    """A cell with a method in registry syntax: its name, and its options where they fit."""

    text: str

    @property
    def name(self) -> str:
        """The method without its options."""
        return self.text.partition("@")[0]

    @property
    def options(self) -> str:
        """The options, separated by commas and blanks."""
        return self.text.partition("@")[2].replace(",", ", ")


Cell = str | Bold | Specification


def percent(share: float | None, digits: int = 0, sign: str = "") -> str:
    """Write a share in percent, or a dash if there is none."""
    return MISSING if share is None else f"{100 * share:{sign}.{digits}f} %"


def counted(number: int, noun: str) -> str:
    """Write a number of things, as in ``1 problem`` and ``1,200 problems``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def percent_interval(mean: float, low: float, high: float) -> str:
    """Write a share and its interval in percent."""
    return f"{percent(mean)} ({100 * low:.0f}–{100 * high:.0f})"


def escape_markdown(text: str) -> str:
    """Write text so that Markdown shows it as it is; Python-Markdown knows no escape of ``<``."""
    return re.sub(r"([\\`*_\[\]>|#])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))


@dataclass(frozen=True)
class Column:
    """How one column of a table is made from the rows."""

    heading: str
    value: str | Callable[[Any], Any] = ""
    """Name of a row's field or key, or a function of the row; by default, the heading is the name.
    The value None becomes a dash."""
    format: str | Callable[[Any], str] = ""
    """How a value is written: a specification for Python's `format`, or a function."""
    unit: str = ""
    """Follows every figure."""
    mark: Callable[[Any], str] | None = None
    """Returns the footnote mark that a row gets in this column; an empty one is left out."""
    bold: Callable[[Any], bool] | None = None
    """Says in which rows the cell stands out."""
    cell_type: type[Specification] | None = None
    """What kind of cell it is, if it is no plain text."""

    def cell(self, row: Any) -> Cell:
        """Return the cell of one row."""
        value = self.value(row) if callable(self.value) else field(row, self.value or self.heading)
        if value is None:
            return MISSING
        text = self.format(value) if callable(self.format) else format(value, self.format)
        text = " ".join(filter(None, (text, self.unit, self.mark(row) if self.mark else "")))
        if self.cell_type is not None:
            return self.cell_type(text)
        return Bold(text) if self.bold is not None and self.bold(row) else text


def field(row: Any, name: str, *default: Any) -> Any:
    """Return a field of a dataclass, or the value of a dictionary's key."""
    if not isinstance(row, Mapping):
        return getattr(row, name, *default)
    return row.get(name, *default) if default else row[name]


@dataclass(frozen=True)
class Table:
    """Cells of text.

    A row that is shorter than the columns says in its last cell why it has no figures.

    Raises:
        ValueError: if a row has more cells than there are columns, or fewer than two.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    words: int = 1
    """How many columns from the left hold words; the others are aligned to the right."""
    wrap: bool = False
    """Whether long cells break into lines in HTML, those of the first column excepted."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if not min(2, len(self.columns)) <= len(row) <= len(self.columns):
                raise ValueError(f"row {list(row)} must have {len(self.columns)} cells")

    def reason(self, row: Sequence[Cell]) -> str:
        """Return why a row has no figures; an empty text if it has them."""
        return text_of(row[-1]) if len(row) < len(self.columns) else ""

    def markdown(self, first: Callable[[str], str] = escape_markdown) -> str:
        """Write the table in Markdown.

        Args:
            first: writes the cells of the first column.
        """
        marks = ["---" if number < self.words else "--:" for number in range(len(self.columns))]
        lines = [[escape_markdown(name) for name in self.columns], marks]
        for row in self.rows:
            missing = [""] * (len(self.columns) - len(row))
            cells = [first(text_of(row[0])), *map(_markdown_cell, row[1:])]
            lines.append([*cells, *missing])
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def html(self) -> str:
        """Write the table as an HTML element."""
        head = "".join(
            self._element("th", number, name) for number, name in enumerate(self.columns)
        )
        body = "".join(f"<tr>{self._html_cells(row)}</tr>" for row in self.rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    _repr_html_ = html

    def _html_cells(self, row: Sequence[Cell]) -> str:
        reason = self.reason(row)
        cells = row[:-1] if reason else row
        shown = "".join(self._element("td", number, cell) for number, cell in enumerate(cells))
        if reason:
            across = len(self.columns) - len(cells)
            shown += f'<td class="reason" colspan="{across}">{escape(reason)}</td>'
        return shown

    def _element(self, kind: str, column: int, cell: Cell) -> str:
        side = "left" if column < self.words else "right"
        breaks = "; white-space: normal" if self.wrap and column else ""
        shown = _html_cell(cell)
        return f'<{kind} style="text-align: {side}{breaks}">{shown}</{kind}>'

    def terminal(self, title: str = "") -> RichTable:
        """Lay the table out for a terminal; a reason stands below the first cell of its row."""
        shown = RichTable(
            title=escape_rich(visible(title)) or None,
            title_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
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
            shown.add_row(*self._terminal_cells(row))
        return shown

    def _terminal_cells(self, row: Sequence[Cell]) -> list[str]:
        reason = self.reason(row)
        cells = [_terminal_cell(cell) for cell in (row[:-1] if reason else row)]
        if reason:
            cells[0] += f"\n[dim]{escape_rich(visible(reason))}[/]"
        return cells + [MISSING] * (len(self.columns) - len(cells))

    def __str__(self) -> str:
        """Return aligned text."""
        lines = [self.columns, *([text_of(cell) for cell in row] for row in self.rows)]
        complete = [line for line in lines if len(line) == len(self.columns)]
        widths = [max(map(len, cells)) for cells in zip(*complete, strict=True)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if number < self.words else cell.rjust(width)
                for number, (cell, width) in enumerate(zip(line, widths, strict=False))
            ).rstrip()
            for line in lines
        )

    __repr__ = __str__


def tabulate(
    rows: Iterable[Any], columns: Sequence[Column], words: int = 1, wrap: bool = False
) -> Table:
    """Make a table.

    A row with a field ``refusal`` that is not None keeps its cells up to the first missing one;
    the reason follows.

    Args:
        rows: dataclasses or dictionaries.
        columns: how each column is made.
        words: how many columns from the left hold words.
        wrap: whether long cells break into lines in HTML.
    """
    made: list[tuple[Cell, ...]] = []
    for row in rows:
        cells = (column.cell(row) for column in columns)
        refusal = field(row, "refusal", None)
        if refusal is None:
            made.append(tuple(cells))
        else:
            made.append((*takewhile(lambda cell: cell != MISSING, cells), refusal))
    return Table([column.heading for column in columns], made, words, wrap)


@dataclass(frozen=True)
class Lines:
    """Rows that are printed one by one, before all of them are known."""

    columns: Sequence[Column]
    widths: Sequence[int]
    """Characters of each column; the first is aligned to the left."""

    def head(self) -> str:
        """Return the line of headings."""
        return self._line([column.heading for column in self.columns])

    def row(self, row: Any) -> str:
        """Return the line of a row; the options of a method, and a refusal, follow in a second.

        A name that is too wide for its column has a line of its own.
        """
        first, *rest = (column.cell(row) for column in self.columns)
        name, options = text_of(first), ""
        if isinstance(first, Specification):
            name, options = first.name, first.options
        refusal = field(row, "refusal", None)
        below = "\n".join(f"  {text}" for text in (options, refusal) if text)
        above = f"{name}\n" if len(name) > self.widths[0] else ""
        line = above + self._line(["" if above else name, *map(text_of, rest)])
        return f"{line}\n{below}" if below else line

    def _line(self, cells: Sequence[str]) -> str:
        first, *rest = zip(cells, self.widths, strict=True)
        return "  ".join(
            [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]
        ).rstrip()


def visible(text: str) -> str:
    """Write control characters, which a terminal would obey, as Python writes them."""
    return "".join(
        letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1] for letter in text
    )


def text_of(cell: Cell) -> str:
    """Return the text of a cell."""
    return cell if isinstance(cell, str) else cell.text


def _html_cell(cell: Cell) -> str:
    if isinstance(cell, Specification):
        options = f"<br><small>{escape(cell.options)}</small>" if cell.options else ""
        return escape(cell.name) + options
    text = escape(text_of(cell))
    return f"<b>{text}</b>" if isinstance(cell, Bold) else text


def _markdown_cell(cell: Cell) -> str:
    text = escape_markdown(text_of(cell))
    return f"**{text}**" if isinstance(cell, Bold) else text


def _terminal_cell(cell: Cell) -> str:
    text = escape_rich(visible(text_of(cell)))
    return f"[bold]{text}[/]" if isinstance(cell, Bold) else text
