"""A report made of headings, texts, tables and drawings, as one HTML page and as Markdown."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from kvlab.fast.lab.files import write_text
from kvlab.fast.lab.pages import write_page


class Bold(NamedTuple):
    """A cell that stands out."""

    text: str


Cell = str | Bold


@dataclass(frozen=True)
class Heading:
    """A title; 1 is the document's."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Code:
    """Text to be copied as it stands."""

    text: str
    language: str = ""


@dataclass(frozen=True)
class Grid:
    """A table. A row that is shorter than the columns says in its last cell why."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    words: int = 1
    """Columns that hold words; the others hold figures."""


@dataclass(frozen=True)
class Drawing:
    """A drawing in SVG."""

    name: str
    """Of its file, without the ending."""
    title: str
    svg: str


Block = Heading | Text | Code | Grid | Drawing


def write_document(blocks: Sequence[Block], directory: Path, name: str) -> None:
    """Write ``name.html``, drawings inside, and ``name.md``, drawings beside it."""
    parts = [
        {"kind": type(block).__name__, **{k: _marked(k, v) for k, v in vars(block).items()}}
        for block in blocks
    ]
    title = next(block.text for block in blocks if isinstance(block, Heading))
    write_page(directory / f"{name}.html", "document.html.jinja", title=title, blocks=parts)
    for block in blocks:
        if isinstance(block, Drawing):
            write_text(directory / f"{block.name}.svg", block.svg)
    text = "\n\n".join(map(markdown, blocks)) + "\n"
    write_text(directory / f"{name}.md", text)


def markdown(block: Block) -> str:
    """Write one block."""
    match block:
        case Heading(text, level):
            return f"{'#' * level} {escaped(text)}"
        case Text(text):
            return escaped(text)
        case Code(text, language):
            return f"```{language}\n{text.rstrip()}\n```"
        case Drawing(name, title, _):
            return f"![{escaped(title)}]({name}.svg)\n\n*{escaped(title)}*"
        case Grid():
            return _markdown_table(block)


def escaped(text: str) -> str:
    """Write text so that Markdown shows it as it is; Python-Markdown knows no escape of ``<``."""
    return re.sub(r"([\\`*_\[\]>|#])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))


def _markdown_table(grid: Grid) -> str:
    marks = ["---" if n < grid.words else "--:" for n in range(len(grid.columns))]
    rows = [[_markdown_cell(cell) for cell in row] for row in grid.rows]
    padded = [row + [""] * (len(grid.columns) - len(row)) for row in rows]
    lines = [list(map(escaped, grid.columns)), marks, *padded]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _markdown_cell(cell: Cell) -> str:
    return f"**{escaped(cell.text)}**" if isinstance(cell, Bold) else escaped(cell)


def _marked(name: str, value: object) -> object:
    return Markup(value) if name == "svg" else value
