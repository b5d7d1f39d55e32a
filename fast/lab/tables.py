"""Tables: typed rows in one form, written for a terminal, Markdown, HTML, LaTeX or plain text.

What tables show is data: ``tables.toml`` has columns, what they mean, and marks. `layout` reads a
`Layout` of it, and `tabulate` makes one of columns; either makes a `Table` of dataclasses or
dictionaries. Where the cells are texts already, a `Table` is made directly.

Rows and lines are laid out by the library tabulate, in a terminal by rich, which knows its width,
and HTML is what markdown-it makes of the Markdown. Of the libraries that write all forms,
great-tables and pandas' Styler would bring dozens of megabytes into the smallest installation;
tabulate is one package of pure Python that needs no other.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import takewhile
from typing import Any, NamedTuple

from markdown_it import MarkdownIt
from rich import box
from rich.markup import escape as escape_rich
from rich.table import Table as RichTable
from tabulate import DataRow, Line, TableFormat, tabulate as lay_out

MISSING = "–"
LONG = 32
"""In a terminal, columns of figures break into lines only if a cell has more characters."""
ROW = DataRow("| ", " | ", " |")
MARKDOWN = TableFormat(None, None, None, None, ROW, ROW, padding=0, with_header_hide=None)
"""No lines yet, rows of head and body, and no padding, so that a cell changes only its line."""


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
    shown = visible(text).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]>|#])", r"\\\1", shown)


@dataclass(frozen=True)
class Column:
    """How one column of a table is made from the rows."""

    heading: str
    value: str | Callable[[Any], Any] = ""
    """Name of a row's field, or of a field's field, as in ``means.kl``; by default the heading. Or
    a function of the row."""
    format: str | Callable[[Any], str] = ""
    """How a value is written: a specification for Python's `format`, or a function."""
    bold: str | Callable[[Any], bool] = ""
    """Field, or function, of the row that says whether the cell stands out."""
    width: int = 9
    """Characters, where rows are printed one by one; the first column has 20."""
    scale: float = 1
    """What numbers are multiplied with."""
    unit: str = ""
    """What follows a number."""
    to: str = "–"
    """What stands between the ends of an interval."""
    least: float | None = None
    """A smaller number is only said to be smaller."""
    missing: str = MISSING
    """What stands for None."""
    means: Sequence[str] = ()
    """What the column holds, in sentences without their stops."""
    marks: Sequence[str] = ()
    """Names of marks that are explained if they stand in the column."""
    name: str = ""
    """What ``tables.toml`` calls the column."""

    def cell(self, row: Any) -> Cell:
        """Return the cell of one row."""
        value = value_of(row, self.value or self.heading)
        if isinstance(value, Bold):
            return value
        text = self.written(value)
        return Bold(text) if self.bold and value_of(row, self.bold) else text

    def written(self, value: Any) -> str:
        """Return a value as text."""
        if value is None:
            return self.missing
        if callable(self.format):
            return self.format(value)
        if hasattr(value, "written"):  # an interval, or a count of how many
            return value.written(self.format, self.to, self.scale)
        if isinstance(value, bool):
            return "yes" if value else "no"
        if self.least is not None and value < self.least:
            return f"< {self.least}"
        return f"{value if self.scale == 1 else self.scale * value:{self.format}}{self.unit}"


def value_of(row: Any, wanted: str | Callable[[Any], Any]) -> Any:
    """Return a row's field, or one of a field as in ``means.kl``, or what a function returns."""
    if callable(wanted):
        return wanted(row)
    for name in wanted.split("."):
        if row is not None:
            row = row[name] if isinstance(row, Mapping) else getattr(row, name)
    return row


def refusal(row: Any) -> str | None:
    """Return why a row has no figures; None if it has them, or says nothing of it."""
    return row.get("refusal") if isinstance(row, Mapping) else getattr(row, "refusal", None)


@dataclass(frozen=True)
class Table:
    """Cells of text, with a title and what explains them."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    words: int = 1
    """How many columns from the left hold words; the others are aligned to the right."""
    title: str = ""
    legend: Sequence[str] = ()
    """What columns and marks mean, in sentences without their stops."""
    notes: Sequence[str] = ()
    """What holds of this table alone: why rows have no figures."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"row {list(row)} must have {len(self.columns)} cells")

    def markdown(self, first: Callable[[str], str] = escape_markdown) -> str:
        """Write the table in Markdown; ``first`` writes the cells of the first column."""
        marks = ["---" if number < self.words else "--:" for number in range(len(self.columns))]
        form = MARKDOWN._replace(linebelowheader=Line(f"| {' | '.join(marks)} |", "", "", ""))

        def write(cell: Cell, number: int) -> str:
            text = _written(cell, escape_markdown if number else first, "**{}**")
            return text.replace("\n", " ")

        return self.laid_out(form, write, escape_markdown)

    def laid_out(
        self, form: TableFormat, write: Callable[[Cell, int], str], head: Callable[[str], str]
    ) -> str:
        """Write the table as the library lays it out.

        ``write`` escapes the cell of a column, by its number, and ``head`` what stands above one.
        """
        rows = [[write(cell, number) for number, cell in enumerate(row)] for row in self.rows]
        heads = [head(name) for name in self.columns]
        return lay_out(rows, heads, tablefmt=form, stralign=None, disable_numparse=True)

    def html(self) -> str:
        """Write the table as an HTML element."""
        return html_of(self.markdown())

    _repr_html_ = html

    def terminal(self) -> RichTable:
        """Lay the table out for a terminal."""
        shown = RichTable(
            title=_escape_terminal(self.title) or None,
            title_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
            show_lines=any("\n" in text_of(cell) for row in self.rows for cell in row),
        )
        for number, name in enumerate(map(_escape_terminal, self.columns)):
            longest = max((len(text_of(row[number])) for row in self.rows), default=0)
            if number < self.words:
                width = min(20, longest) if number == 0 else None
                shown.add_column(name, overflow="fold", min_width=width)
            else:
                shown.add_column(name, justify="right", no_wrap=longest <= LONG)
        for row in self.rows:
            shown.add_row(*(_written(cell, escape_rich, "[bold]{}[/]") for cell in row))
        return shown

    def __str__(self) -> str:
        sides = ["left" if n < self.words else "right" for n in range(len(self.columns))]
        rows = [[visible(text_of(cell)) for cell in row] for row in self.rows]
        heads = list(map(visible, self.columns))
        return lay_out(rows, heads, "simple", colalign=sides, disable_numparse=True)

    __repr__ = __str__


@dataclass(frozen=True)
class Layout:
    """What the tables of one kind show."""

    columns: Sequence[Column]
    words: int = 1
    """How many columns from the left hold words."""
    means: Sequence[str] = ()
    """What holds of the whole table, in sentences without their stops."""

    def table(self, rows: Iterable[Any], title: str = "") -> Table:
        """Make a table of dataclasses or dictionaries; notes tell the ``refusal`` of a row."""
        cells, notes = [], []
        for row in rows:
            cells.append(tuple([column.cell(row) for column in self.columns]))
            if (why := refusal(row)) is not None:
                known = takewhile(lambda text: text != MISSING, map(text_of, cells[-1]))
                notes.append(f"{' '.join(filter(None, known))}: {why}")
        headings = [column.heading for column in self.columns]
        return Table(headings, cells, self.words, title, self.legend(cells), notes)

    def legend(self, rows: Sequence[Sequence[Cell]]) -> list[str]:
        """Return what the columns mean, and then what the marks say that stand in them."""
        said, marks = [*self.means], stored()["marks"]
        for column in self.columns:
            said += column.means
        for number, column in enumerate(self.columns):
            cells = [row[number] for row in rows] if column.marks else []
            letters = {"*" for cell in cells if isinstance(cell, Bold)}.union(*map(text_of, cells))
            said += [marks[name][1] for name in column.marks if letters & {*marks[name][0]}]
        return [*dict.fromkeys(said)]


def tabulate(rows: Iterable[Any], columns: Sequence[Column], words: int = 1) -> Table:
    """Make a table of dataclasses or dictionaries; ``words`` columns from the left hold words."""
    return Layout(columns, words).table(rows)


@cache
def stored() -> dict[str, Any]:
    """Return what ``tables.toml`` holds, with its words in place of their names."""
    text = files("kvlab.fast.lab").joinpath("tables.toml").read_text(encoding="utf-8")
    words = tomllib.loads(text)["words"]
    return tomllib.loads(re.sub(r"\{(\w+)\}", lambda name: words.get(name[1], name[0]), text))


@cache
def layout(name: str) -> Layout:
    """Return the layout of a table in ``tables.toml``."""
    own = stored()["tables"][name]
    known = stored()["columns"]
    columns = [
        Column(
            **{"heading": each.replace("_", " "), "value": each, "name": each}
            | known.get(each, {})
            | own.get(each, {})
        )
        for each in own["columns"]
    ]
    return Layout(columns, own.get("words", 1), own.get("means", ()))


def plain(name: str, row: Any) -> dict[str, Any]:
    """Return a row as plain data, under names that ``tables.toml`` has."""
    found = {}
    for key, wanted in stored()["plain"][name].items():
        path, scale = (wanted, 1) if isinstance(wanted, str) else wanted
        value = value_of(row, path)
        found[key] = value if value is None or scale == 1 else scale * value
    return found


def sentences(name: str, **said: Any) -> list[str]:
    """Return those sentences of a legend in ``tables.toml`` whose names are true, or not given.

    What a name is given stands in place of its braces.
    """
    legend = stored()["legends"][name]
    return [text.format(**said) for each, text in legend.items() if said.get(each, True)]


def html_of(markdown: str) -> str:
    """Turn Markdown into HTML; HTML within it is shown as text."""
    return MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)


def visible(text: str) -> str:
    """Write control characters, which a terminal would obey, as Python writes them."""
    if text.replace("\n", " ").isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1] for letter in text
    )


def text_of(cell: Cell) -> str:
    """Return the text of a cell."""
    return cell if isinstance(cell, str) else cell.text


def _written(cell: Cell, escape: Callable[[str], str], bold: str) -> str:
    text = escape(visible(text_of(cell)))
    return bold.format(text) if isinstance(cell, Bold) else text


def _escape_terminal(text: str) -> str:
    return escape_rich(visible(text))
