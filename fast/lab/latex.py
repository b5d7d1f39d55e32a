"""Reports in LaTeX, to be included in a paper of one or two columns."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2
from tabulate import DataRow, Line, TableFormat

from kvlab.fast.lab.files import read_data, write_text
from kvlab.fast.lab.reports import Block, Drawing, Heading, told
from kvlab.fast.lab.tables import Bold, Cell, Table, text_of, visible

LETTERS, TYPED = (str.maketrans(each) for each in read_data("latex.toml").values())
"""How LaTeX writes text; and what it writes otherwise in code, so that a reader can copy it."""
POINTS, GAP = 4.3, 6
"""Width of a letter of footnotesize, and between columns, in points."""
COLUMN = 235
"""Points of a column of a paper, about: what is a little wider is made smaller."""
WORDS = 25
"""Letters after which words in a table are broken into lines."""
LINES = 40
"""Lines of a table on one page; longer ones have parts."""
WITH_INTERVAL = re.compile(r"([+−]?[\d.]+) (\(.*\))(.*)")
ROW = DataRow("", " & ", r" \tabularnewline")
TOP, MIDDLE, BOTTOM = (Line(rf"\{each}rule", "", "", "") for each in ("top", "mid", "bottom"))
BOOKTABS = TableFormat(TOP, MIDDLE, None, BOTTOM, ROW, ROW, padding=0, with_header_hide=None)


def escape_latex(text: str) -> str:
    """Write text so that LaTeX shows it as it is."""
    return visible(text).translate(LETTERS)


def breakable(text: str) -> str:
    """Write text as it is, and let lines end after punctuation, too."""
    return _with_breaks(escape_latex(text))


def _with_breaks(written: str) -> str:
    return re.sub(r"(\\_|[,@:=/])(?=\S)", r"\1\\allowbreak{}", written)


def typed(line: str) -> str:
    """Write a line of code; one that is too long goes on, indented, in the next line."""
    written = _with_breaks(visible(line).translate(LETTERS | TYPED))
    return written.replace("--", "-{}-").replace("  ", r"\ \ ")


def write_latex(blocks: Sequence[Block], path: Path) -> None:
    """Write LaTeX to be included in a document, and the drawings as PDF beside it."""
    environment = jinja2.Environment(
        *("<%", "%>", "<<", ">>", "<#", "#>"),
        loader=jinja2.PackageLoader("kvlab.fast.lab", "templates"),
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"breakable": breakable, "typed": typed}
    path.parent.mkdir(parents=True, exist_ok=True)
    for block in blocks:
        if isinstance(block, Drawing):
            picture = block.picture if block.narrow is None else block.narrow()
            picture.save(path.with_name(f"{block.name}.pdf"))
    template = environment.get_template("report.tex.jinja")
    write_text(path, template.render(parts=_parts(blocks, path.stem)) + "\n")


def _parts(blocks: Sequence[Block], stem: str) -> Iterator[tuple[str, Block, dict[str, Any]]]:
    """Yield kind, block, and what the template asks of it; a long table becomes several."""
    section, number = "", -1
    for block in blocks:
        if isinstance(block, Heading) and block.level < 3:
            section, number = block.text, number + block.level - 1
        about: dict[str, Any] = {"section": section}
        if not isinstance(block, Table):
            yield type(block).__name__, block, about
            continue
        starts = [*range(0, max(1, len(block.rows)), LINES), len(block.rows)]
        for part, (start, end) in enumerate(pairwise(starts), start=1):
            title = block.title if part == 1 else f"{block.title}, part {part}"
            name = re.sub("[^a-z0-9]+", "-", title.lower()).strip("-")
            where = f" ({section})" if section else ""
            about |= {"title": f"{title}{where}", "label": f"tab:{stem}-{number}-{name}"}
            about["legend"] = told([*block.legend, *block.notes]) if end == len(block.rows) else ""
            text, width = tabular(replace(block, rows=block.rows[start:end]))
            about |= {"tabular": text, "float": "table*" if width > COLUMN else "table"}
            yield "Table", block, about


def tabular(table: Table) -> tuple[str, float]:
    """Return the table for the package booktabs, and about how many points wide it is.

    Where it is wider than a column, and a page has the lines, intervals stand below their means.
    """
    if sum(widths := _widths(table)) > COLUMN and len(table.rows) <= LINES / 2:
        heads = [
            name.replace(" ", "\n") if n >= table.words else name
            for n, name in enumerate(table.columns)
        ]
        rows = [[_in_lines(cell) for cell in row] for row in table.rows]
        table = replace(table, columns=heads, rows=rows)
        widths = _widths(table)
    most = GAP + POINTS * WORDS
    sides = [
        "r" if n >= table.words else f"p{{{most - GAP:.0f}pt}}" if width >= most else "l"
        for n, width in enumerate(widths)
    ]

    def write(cell: Cell, number: int) -> str:
        text = text_of(cell)
        text = breakable(text) if number < table.words else _in_a_cell(text)
        text = rf"\textbf{{{text}}}" if isinstance(cell, Bold) else text
        return text if len(sides[number]) == 1 else rf"\raggedright {text}"

    inside = table.laid_out(BOOKTABS, write, _in_a_cell)
    opening = rf"\begin{{tabular}}{{{''.join(sides)}}}"
    return "\n".join([opening, inside, r"\end{tabular}"]), sum(widths)


def _in_lines(cell: Cell) -> Cell:
    """Return a cell whose interval has a line of its own."""
    text = WITH_INTERVAL.sub("\\1\\3\n\\2", text_of(cell))
    return Bold(text) if isinstance(cell, Bold) else text


def _in_a_cell(text: str) -> str:
    first, *below = map(escape_latex, text.split("\n"))
    lines = [
        first,
        *(rf"{{\scriptsize {each}}}" if each.startswith("(") else each for each in below),
    ]
    inside = r" \\ ".join(lines)
    return rf"\begin{{tabular}}[t]{{@{{}}r@{{}}}}{inside}\end{{tabular}}" if below else first


def _widths(table: Table) -> list[float]:
    """Return about how many points each column takes."""
    widths = []
    for n, column in enumerate(zip(table.columns, *table.rows, strict=True)):
        lines = [line for cell in column for line in text_of(cell).split("\n")]
        most = POINTS * WORDS if n < table.words else COLUMN
        widths.append(GAP + min(POINTS * max(map(len, lines)), most))
    return widths
