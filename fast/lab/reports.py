"""Reports of headings, texts, tables and drawings, written as Markdown or as one HTML page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from kvlab.fast.lab.files import write_text
from kvlab.fast.lab.tables import Table, escape_markdown


@dataclass(frozen=True)
class Heading:
    """A title; level 1 is the report's."""

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
class Drawing:
    """A drawing in SVG."""

    name: str
    """Name of its file, without the ending, where the report is written in Markdown."""
    title: str
    svg: str


@dataclass(frozen=True)
class Page:
    """A complete HTML page that stands in a frame of the report; Markdown leaves it out."""

    title: str
    html: str


Block = Heading | Text | Code | Table | Drawing | Page


def write_html(blocks: Sequence[Block], path: Path) -> None:
    """Write one HTML page with the drawings inside; a file of that name is replaced.

    Raises:
        OSError: if that fails.
    """
    title = next(block.text for block in blocks if isinstance(block, Heading))
    write_page(path, "report.html.jinja", title=title, body=Markup("\n".join(map(html, blocks))))


def write_markdown(blocks: Sequence[Block], path: Path) -> None:
    """Write Markdown, and the drawings as files beside it.

    Raises:
        OSError: if that fails.
    """
    write_drawings(blocks, path.parent)
    write_text(path, "\n\n".join(map(markdown, blocks)) + "\n")


def write_drawings(blocks: Sequence[Block], directory: Path) -> None:
    """Write the drawings of a report as SVG files.

    Raises:
        OSError: if that fails.
    """
    for block in blocks:
        if isinstance(block, Drawing):
            write_text(directory / f"{block.name}.svg", block.svg)


def html(block: Block) -> Markup:
    """Write one block in HTML."""
    match block:
        case Heading(text, level):
            return Markup(f"<h{level}>{{}}</h{level}>").format(text)
        case Text(text):
            return Markup('<p class="note">{}</p>').format(text)
        case Code(text):
            return Markup("<pre>{}</pre>").format(text)
        case Drawing(_, title, svg):
            parts = Markup(svg), title
            return Markup("<figure>{}<figcaption>{}</figcaption></figure>").format(*parts)
        case Page(title, inside):
            return Markup('<iframe title="{}" srcdoc="{}"></iframe>').format(title, inside)
        case Table():
            return Markup('<div class="scroll">{}</div>').format(Markup(block.html()))


def markdown(block: Block) -> str:
    """Write one block in Markdown."""
    match block:
        case Heading(text, level):
            return f"{'#' * level} {escape_markdown(text)}"
        case Text(text):
            return escape_markdown(text)
        case Code(text, language):
            return f"```{language}\n{text.rstrip()}\n```"
        case Drawing(name, title, _):
            return f"![{escape_markdown(title)}]({name}.svg)\n\n*{escape_markdown(title)}*"
        case Page():
            return ""
        case Table():
            return block.markdown()


def write_page(path: Path, template: str, **content: Any) -> None:
    """Fill a template of ``kvlab/fast/lab/templates``; all content but `Markup` is escaped.

    Raises:
        OSError: if the file cannot be written.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kvlab.fast.lab", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    page = environment.get_template(template).render(**content)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page)
