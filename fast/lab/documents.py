"""Old names of `kvlab.fast.lab.reports` and `kvlab.fast.lab.tables`."""

from collections.abc import Sequence
from pathlib import Path

from kvlab.fast.lab.reports import (
    Block,
    Code,
    Drawing,
    Heading,
    Text,
    markdown,
    write_drawings,
    write_html,
    write_markdown,
)
from kvlab.fast.lab.tables import Bold, Cell
from kvlab.fast.lab.tables import Table as Grid
from kvlab.fast.lab.tables import escape_markdown as escaped

__all__ = [
    "Block",
    "Bold",
    "Cell",
    "Code",
    "Drawing",
    "Grid",
    "Heading",
    "Text",
    "escaped",
    "markdown",
    "write_document",
    "write_drawings",
    "write_html",
]


def write_document(blocks: Sequence[Block], directory: Path, name: str) -> None:
    """Write ``name.html``, drawings inside, and ``name.md``, drawings beside it."""
    write_html(blocks, directory / f"{name}.html")
    write_markdown(blocks, directory / f"{name}.md")
