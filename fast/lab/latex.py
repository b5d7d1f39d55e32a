"""Reports in LaTeX, to be included in a paper of one or two columns."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from kvlab.fast.lab.files import write_text
from kvlab.fast.lab.reports import Block, Code, Drawing, Heading
from kvlab.fast.lab.reports import Text as Paragraph
from kvlab.fast.lab.tables import Bold, Cell, Table, text_of

LATEX = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "≈": r"$\approx$",
    "†": r"$\dagger$",
    "−": "$-$",
    "∅": r"$\emptyset$",
    **{letter: f"${letter}$" for letter in "<>|"},
}
"""How LaTeX writes what stands for something else in it, or is in no common font."""
TYPED = {"'": r"\textquotesingle{}", "`": r"\textasciigrave{}", "<": "<", ">": ">", "|": "|"}
"""What it writes otherwise in code, so that a reader can copy it."""
POINTS, SMALL, GAP = 4.3, 3.8, 6
"""Width of a letter of footnotesize and of scriptsize, and between columns, in points."""
COLUMN = 235
"""Points of a column of a paper, about: what is a little wider is made smaller."""
WORDS = 25
"""Letters after which words in a table are broken into lines."""
LINES = 40
"""Lines of a table on one page; longer ones have parts."""
WITH_INTERVAL = re.compile(r"([+−]?[\d.]+) (\(.*\))(.*)")
FLOAT = "\\begin{{{0}}}[htbp]\n\\centering\n{1}\n{2}\n\\end{{{0}}}"
FITTED = r"""\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"""


def escape_latex(text: str) -> str:
    """Write text so that LaTeX shows it as it is."""
    return text.translate(str.maketrans(LATEX))


def breakable(text: str) -> str:
    """Write text as it is, and let lines end after punctuation, too."""
    return _with_breaks(escape_latex(text))


def _with_breaks(written: str) -> str:
    return re.sub(r"(\\_|[,@:=/])(?=\S)", r"\1\\allowbreak{}", written)


def write_latex(blocks: Sequence[Block], path: Path) -> None:
    """Write LaTeX to be included in a document, and the drawings as PDF beside it.

    A heading above a table is its caption, and a text below it its legend.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = [r"% \usepackage{booktabs,graphicx}", *_written(blocks, path)]
    write_text(path, "\n\n".join(parts) + "\n")


def _written(blocks: Sequence[Block], path: Path) -> Iterator[str]:
    waiting, caption, section, number = [*blocks], "", "", -1
    while waiting:
        block, after = waiting.pop(0), waiting[:1]
        if isinstance(block, Heading):
            caption = block.text
            if block.level < 3:
                section, number = caption, number + block.level - 1
            if not (after and isinstance(after[0], Table)):
                kind = ("section*", "subsection*", "paragraph")[block.level - 1]
                yield rf"\{kind}{{\raggedright {breakable(caption)}}}"
        elif isinstance(block, Table):
            legends = [each.text for each in after if isinstance(each, Paragraph)]
            del waiting[: len(legends)]
            name = re.sub("[^a-z0-9]+", "-", caption.lower()).strip("-")
            if more := block.rows[LINES:]:
                waiting = [replace(block, rows=more), *map(Paragraph, legends), *waiting]
                title, _, part = caption.partition(", part ")
                waiting.insert(0, Heading(f"{title}, part {int(part or 1) + 1}", 3))
                legends = []
            text, width = tabular(replace(block, rows=block.rows[:LINES]))
            parts = [r"\smallskip\footnotesize\setlength{\tabcolsep}{3pt}", FITTED, f"{text}}}"]
            parts += [rf"\par\smallskip\raggedright {breakable(each)}" for each in legends]
            kind = "table*" if width > COLUMN else "table"
            label = f"tab:{path.stem}-{number}-{name}"
            title = caption if caption == section else f"{caption} ({section})"
            yield FLOAT.format(kind, _caption(title, label), "\n".join(parts))
        elif isinstance(block, Drawing):
            picture = block.picture if block.narrow is None else block.narrow()
            picture.save(path.with_name(f"{block.name}.pdf"))
            shown = f"{FITTED}\n\\includegraphics{{{block.name}.pdf}}}}"
            title = _caption(f"{block.title} ({section})", f"fig:{block.name}")
            yield FLOAT.format("figure", shown, title)
        elif isinstance(block, Code):
            yield _typed(block.text)
        else:
            yield breakable(block.text)


def _caption(text: str, label: str) -> str:
    return rf"\caption{{\raggedright {breakable(text)}}}\label{{{label}}}"


def _typed(text: str) -> str:
    """Write code line by line; a line that is too long goes on, indented, in the next one."""
    known = str.maketrans(LATEX | TYPED)
    lines = [_with_breaks(line.translate(known)) for line in text.rstrip().split("\n")]
    lines = [line.replace("--", "-{}-").replace("  ", r"\ \ ") for line in lines]
    setting = r"\footnotesize\ttfamily\raggedright\parskip=0pt\everypar{\hangindent=2em}"
    return "\n\n".join([rf"\smallskip{{{setting}", *lines, r"\par}\smallskip"])


class Part(NamedTuple):
    """A cell, and the interval that stands below it."""

    cell: Cell
    below: str = ""


def tabular(table: Table) -> tuple[str, float]:
    """Return the table for the package booktabs, and about how many points wide it is.

    Where it is wider than a column, and a page has the lines, intervals stand below their means.
    """
    rows = [[Part(cell) for cell in row] for row in table.rows]
    heads = [[name] for name in table.columns]
    if sum(_widths(table, rows, heads)) > COLUMN and len(rows) <= LINES / 2:
        rows = [[_parted(part.cell) for part in row] for row in rows]
        heads = [
            name.split(" ") if n >= table.words else [name] for n, name in enumerate(table.columns)
        ]
    widths = _widths(table, rows, heads)
    most = GAP + POINTS * WORDS
    sides = [
        "r" if n >= table.words else f"p{{{most - GAP:.0f}pt}}" if width >= most else "l"
        for n, width in enumerate(widths)
    ]
    end = r"\\" if len(sides[-1]) == 1 else r"\tabularnewline"
    body = []
    for row in rows:
        cells = [_cell(part.cell, side) for part, side in zip(row, sides, strict=False)]
        if (across := len(sides) - len(row) + 1) > 1:
            side = f"p{{{sum(widths[len(row) - 1 :]) - GAP:.0f}pt}}"
            cells[-1] = rf"\multicolumn{{{across}}}{{{side}}}{{{_cell(row[-1].cell, side)}}}"
        body.append(" & ".join(cells))
        if any(part.below for part in row):
            body.append(" & ".join(map(_below, row)))
    lines = [
        f"{' & '.join(map(_head, heads))} {end}",
        r"\midrule",
        *(f"{line} {end}" for line in body),
    ]
    opening = rf"\begin{{tabular}}{{{''.join(sides)}}}"
    return "\n".join([opening, r"\toprule", *lines, r"\bottomrule", r"\end{tabular}"]), sum(widths)


def _head(lines: Sequence[str]) -> str:
    text = r"\\".join(map(escape_latex, lines))
    return rf"\shortstack[r]{{{text}}}" if len(lines) > 1 else text


def _parted(cell: Cell) -> Part:
    found = WITH_INTERVAL.fullmatch(text_of(cell))
    if found is None:
        return Part(cell)
    own = f"{found[1]}{found[3]}"
    return Part(own if isinstance(cell, str) else Bold(own), found[2])


def _cell(cell: Cell, side: str) -> str:
    written = text_of(cell)
    text = escape_latex(written) if len(side) == 1 else breakable(written)
    text = rf"\textbf{{{text}}}" if isinstance(cell, Bold) else text
    return text if len(side) == 1 else rf"\raggedright {text}"


def _below(part: Part) -> str:
    return rf"{{\scriptsize {escape_latex(part.below)}}}" if part.below else ""


def _widths(
    table: Table, rows: Sequence[Sequence[Part]], heads: Sequence[Sequence[str]]
) -> list[float]:
    """Return about how many points each column takes, without the reason that ends a short row."""
    widths = []
    for n, lines in enumerate(heads):
        parts = [row[n] for row in rows if n < len(row) - (len(row) < len(heads))]
        sizes = [POINTS * len(text_of(part.cell)) for part in parts]
        sizes += [SMALL * len(part.below) for part in parts] + [
            POINTS * len(line) for line in lines
        ]
        widths.append(GAP + min(max(sizes), POINTS * WORDS if n < table.words else COLUMN))
    return widths
