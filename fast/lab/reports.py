"""Reports of headings, texts, tables and drawings, as Markdown or as one HTML page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from kvlab.fast.lab.drawing import Picture
from kvlab.fast.lab.files import write_text
from kvlab.fast.lab.tables import Table, escape_markdown, html_of


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
    """A picture with a title."""

    name: str
    """Name of its file, without the ending, where the report is written in Markdown."""
    title: str
    picture: Picture
    narrow: Callable[[], Picture] | None = None
    """Draws the same for a column of a paper."""


def told(sentences: Sequence[str]) -> str:
    """Write sentences without their stops as a paragraph."""
    return "".join(f"{each}. " for each in sentences).rstrip()


Block = Heading | Text | Code | Table | Drawing


def write_html(blocks: Sequence[Block], path: Path) -> None:
    """Write one HTML page with the drawings inside; a file of that name is replaced."""
    title = next(block.text for block in blocks if isinstance(block, Heading))
    write_page(path, "report.html.jinja", title=title, body=Markup("\n").join(map(_html, blocks)))


def write_markdown(blocks: Sequence[Block], path: Path) -> None:
    """Write Markdown, and the drawings as files beside it."""
    for block in blocks:
        if isinstance(block, Drawing):
            block.picture.save(path.with_name(f"{block.name}.svg"))
    write_text(path, "\n\n".join(map(markdown, blocks)) + "\n")


def markdown(block: Block) -> str:
    """Write one block in Markdown."""
    match block:
        case Heading(text, level):
            return f"{'#' * level} {escape_markdown(text)}"
        case Text(text):
            return escape_markdown(text)
        case Code(text, language):
            return f"```{language}\n{text.rstrip()}\n```"
        case Drawing(name, title):
            return f"![{escape_markdown(title)}]({name}.svg)\n\n*{escape_markdown(title)}*"
        case Table(title=title):
            below = [*block.legend, *block.notes]
            parts = [markdown(Heading(title, 3))] * bool(title)
            parts += [block.markdown()] * bool(block.rows)
            return "\n\n".join([*parts, *([markdown(Text(told(below)))] if below else [])])


def _html(block: Block) -> Markup:
    if not isinstance(block, Drawing):
        return Markup(html_of(markdown(block)))
    figure = Markup("<figure>{}<figcaption>{}</figcaption></figure>")
    return figure.format(Markup(block.picture.on_white), block.title)


def write_page(path: Path, template: str, **content: Any) -> None:
    """Fill a template of ``kvlab/fast/lab/templates``; all content but `Markup` is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kvlab.fast.lab", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    page = environment.get_template(template).render(**content)
    write_text(path, page)
