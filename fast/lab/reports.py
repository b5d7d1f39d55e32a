"""Reports of headings, texts, tables and drawings, as Markdown, as one HTML page, or in LaTeX."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from kvlab.fast.lab.drawing import Picture
from kvlab.fast.lab.files import write_text
from kvlab.fast.lab.tables import Table, escape_latex, escape_markdown, html_of


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


def write_latex(blocks: Sequence[Block], path: Path) -> None:
    """Write LaTeX to be included in a document, and the drawings as PDF beside it.

    A heading above a table is its caption, and a text below it its legend.
    """
    parts, waiting, caption = [r"% \usepackage{booktabs,graphicx}"], [*blocks], ""
    while waiting:
        block, after = waiting.pop(0), waiting[:1]
        if isinstance(block, Heading):
            caption = block.text
            if not (after and isinstance(after[0], Table)):
                kind = ("section*", "subsection*", "paragraph")[block.level - 1]
                parts.append(rf"\{kind}{{{escape_latex(caption)}}}")
        elif isinstance(block, Table):
            legends = [each.text for each in after if isinstance(each, Text)]
            del waiting[: len(legends)]
            parts.append(_latex_table(block, caption, "".join(legends)))
        elif isinstance(block, Drawing):
            block.picture.save(path.with_name(f"{block.name}.pdf"))
            parts.append(LATEX_FIGURE.format(block.name, escape_latex(block.title)))
        elif isinstance(block, Code):
            parts.append(f"\\begin{{verbatim}}\n{block.text.rstrip()}\n\\end{{verbatim}}")
        else:
            parts.append(escape_latex(block.text))
    write_text(path, "\n\n".join(parts) + "\n")


LATEX_FIGURE = r"""\begin{{figure}}[htbp]
\centering
\includegraphics[width=\linewidth]{{{}.pdf}}
\caption{{{}}}
\end{{figure}}"""


def _latex_table(table: Table, caption: str, legend: str) -> str:
    """Write a table, as wide as the page at most."""
    lines = [
        r"\begin{table}[htbp]",
        r"\centering",
        rf"\caption{{{escape_latex(caption)}}}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        f"{table.latex()}}}",
        rf"\par\smallskip\footnotesize\raggedright {escape_latex(legend)}" if legend else "",
        r"\end{table}",
    ]
    return "\n".join(filter(None, lines))


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
        case Table():
            return block.markdown()


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
