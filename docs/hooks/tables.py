"""Pages that fit: tables open on a click, long names break, phones get narrow pictures."""

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.pages import Page
from notebook_pages import folded

LONGEST = 30
"""Rows that stand open on a page."""
FOLDED = {
    "conformance.md": {
        "Whole caches": "For engines: test a cache in a whole model",
        "Pages, shared heads and codes": "Options of pages, heads and codes",
    }
}
"""Sections that open on a click, by page, and what their blocks are called."""
TABLE = re.compile(r"^\|.*\n\|[-:| ]+\|\n((?:\|.*\n?)+)", re.MULTILINE)
CELL = re.compile(r"(<t([dh])\b[^>]*>)(.*?)(</t\2>)", re.DOTALL)
JOINT = re.compile(r"(?<=[@:=/_])(?=\w)|(?<=[,.])(?=[A-Za-z_])|(?<=[a-z0-9])(?=[A-Z])")
WORD = re.compile(r"(<[^>]*>)|[^\s<]{9,}")
NARROW = Path(__file__).parents[1] / "images" / "narrow"
"""Pictures for a phone, by the names of the wide ones."""
IMAGE = re.compile(r'<img\b[^>]*\bsrc="([^"]*images/)([^"/]+\.svg)"[^>]*>')
INTERVAL = re.compile(r"\([−+.\d]+ to [−+.\d]+\)(?: ≈)?")


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Fold tables of many rows, and sections that few readers need."""

    def fold(found: re.Match[str]) -> str:
        rows = found[1].count("\n")
        return found[0] if rows <= LONGEST else folded(f"{rows} rows", [found[0]], "note") + "\n"

    text = TABLE.sub(fold, f"{markdown}\n")
    for title, label in FOLDED.get(page.file.src_uri, {}).items():
        before, heading, section = text.partition(f"\n## {title}\n")
        inside, following, after = section.partition("\n## ")
        if not after:
            raise PluginError(f"{page.file.src_uri} must hold a section {title}, and one after it")
        block = folded(label, [inside.strip()], "note")
        text = f"{before}{heading}\n{block}\n{following}{after}"
    return text


def on_page_content(html: str, **_: Any) -> str:
    """Offer a phone the narrow drawing of a picture that has one."""

    def both(found: re.Match[str]) -> str:
        if not (NARROW / found[2]).exists():
            return found[0]
        narrow = f"{found[1]}narrow/{found[2]}"
        source = f'<source media="(max-width: 45em)" srcset="{narrow}">'
        return f"<picture>{source}{found[0]}</picture>"

    return IMAGE.sub(both, html)


def on_page_context(context: Any, page: Page, **_: Any) -> Any:
    """Let the words of cells break at their joints, once the search has read the page."""
    page.content = CELL.sub(jointed, page.content or "")
    return context


def jointed(cell: re.Match[str]) -> str:
    """Mark where the long words of a cell may break, and its intervals; tags stay as they are."""
    breakable = WORD.sub(lambda word: word[1] or JOINT.sub("<wbr>", word[0]), cell[3])
    marked = INTERVAL.sub(r'<span class="kvlab-interval">\g<0></span>', breakable)
    return f"{cell[1]}{marked}{cell[4]}"
