"""Pages of the site from the notebooks, with the outputs that ``make notebooks`` leaves in them."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "notebooks"))

from exercises import predicted, read  # noqa: E402  (the notebooks' own)
from kvlab.fast.lab.drawing import LIGHT_OR_DARK  # noqa: E402

NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
PAGES = {path.stem[:2]: f"{path.stem}.md" for path in NOTEBOOKS}
ASKED = "Predict, then open"
"""What opens outputs that a reader predicts first."""
MENTION = re.compile(r"\b(?P<claim>(?:AK|CA|DE|LE)-\d+[a-z]?)\b|\bnotebook (?P<number>\d\d)\b")
"""Claims and other notebooks, which a page links."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page, the executed notebook and the script of every notebook."""
    for path in NOTEBOOKS:
        notebook, name = nbformat.read(path, as_version=4), f"notebooks/{path.stem}"
        page = markdown(notebook, path.stem)
        files.append(File.generated(config, f"{name}.md", content=page))
        for kind in (path, path.with_suffix(".py")):
            files.append(File.generated(config, f"notebooks/{kind.name}", abs_src_path=str(kind)))
    return files


def markdown(notebook: nbformat.NotebookNode, name: str) -> str:
    """Write a page; hints and a solution are folded, and so is what a reader is to predict."""
    title, *cells = notebook.cells
    exercises = iter(read(name).values())
    heading, _, introduction = title.source.partition("\n")
    parts = [
        "---\nhide: [toc]\n---",
        heading,
        '<p class="kvlab-downloads" markdown>Run it: [notebook]'
        f"({name}.ipynb) · [script]({name}.py) · [how](../use.md#notebooks)</p>",
        MENTION.sub(linked, introduction.strip()),
    ]
    asked = predicted(notebook)
    for cell in cells:
        if cell.cell_type == "markdown":
            parts.append(MENTION.sub(linked, cell.source))
        elif "exercise" in cell.metadata.get("tags", []):
            hints, solution, check = next(exercises)
            parts += [
                fence(cell.source),
                folded("Hints", [f"{n}. {hint}" for n, hint in enumerate(hints, start=1)]),
                folded("A solution", [fence(solution), fence(check, heading="the check")]),
            ]
        else:
            shown = list(outputs(cell))
            parts += [fence(cell.source), *(behind_a_click(shown) if cell in asked else shown)]
    return "\n\n".join(parts) + "\n"


def behind_a_click(shown: list[str]) -> list[str]:
    """Fold outputs that a reader predicts first; pictures are HTML, which may not be indented."""
    opening = f'<details class="question" markdown><summary>{ASKED}</summary>'
    return [opening, *shown, "</details>"] if shown else []


def linked(mention: re.Match[str]) -> str:
    """Link a claim, or another notebook."""
    claim, number = mention["claim"], mention["number"]
    place = f"../claims.md#{claim.lower()}" if claim else PAGES[number]
    return f"[{mention[0]}]({place})"


def fence(text: str, language: str = "python", heading: str = "", kind: str = "") -> str:
    """Write a block of code."""
    options = f".{language}" + (f" .{kind}" if kind else "")
    options += f' title="{heading}"' if heading else ""
    ticks = "`" * max(3, longest_run(text) + 1)
    return f"{ticks} {{{options}}}\n{text.rstrip()}\n{ticks}"


def longest_run(text: str) -> int:
    """Return the length of the longest run of backticks."""
    return max(
        (len(run) for run in "".join(c if c == "`" else " " for c in text).split()), default=0
    )


def folded(heading: str, parts: list[str], kind: str = "success") -> str:
    """Write a block that opens on a click."""
    inside = "\n\n".join(parts)
    indented = "\n".join(f"    {line}" if line else "" for line in inside.splitlines())
    return f'??? {kind} "{heading}"\n\n{indented}'


def outputs(cell: Any) -> Iterator[str]:
    """Write what a cell printed, then what it showed."""
    found = cell.get("outputs", [])
    printed = "".join(output.text for output in found if output.output_type == "stream")
    if printed:
        yield fence(printed, "text", kind="kvlab-output")
    for output in found:
        shown = output.get("data", {})
        if "image/svg+xml" in shown:
            svg = shown["image/svg+xml"].replace(f"<style>{LIGHT_OR_DARK}</style>", "", 1)
            yield f'<div class="kvlab-shown"><figure class="kvlab-picture">{svg}</figure></div>'
        elif "text/html" in shown:
            yield f'<div class="kvlab-shown">{shown["text/html"]}</div>'
        elif "text/plain" in shown:
            yield fence(shown["text/plain"], "text", kind="kvlab-output")
