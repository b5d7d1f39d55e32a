"""The page of benchmarks: every committed result as it was measured."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page
from notebook_pages import folded

from kvlab.fast.lab.drawing import Picture
from kvlab.fast.lab.reports import Drawing, markdown as written
from kvlab.fast.lab.tables import Table
from study.benchmarks import gpu_of, result_blocks, results
from study.pays import drawn_map

MARK, MAP = "<!-- results -->", "<!-- map -->"
SHOWN = 16
"""Rows of a table that stands open where nothing is drawn of it."""
FEW = 17
"""Rows of a table that says all without a picture."""
NO_GPU = (
    "**No result of a GPU is committed yet.** On a machine with one, `make gpu PYTHON=...` "
    "measures kernels and whole models ([Kernels](kernels.md)); its files appear here once they "
    "are committed."
)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the marks of the page by the results, and by the map of what eviction gains.

    Raises:
        PluginError: if a mark is missing.
    """
    if page.file.src_uri != "benchmarks.md":
        return markdown
    for mark in (MARK, MAP):
        if markdown.count(mark) != 1:
            raise PluginError(f"docs/benchmarks.md must hold {mark} once")
    return markdown.replace(MARK, written_results()).replace(MAP, shown(drawn_map()))


def shown(picture: Picture) -> str:
    """Return a picture as a part of the page, as wide as the text."""
    return f'<div class="kvlab-shown">{picture.figure}</div>'


def written_results() -> str:
    """Write every result; say so if no GPU was measured."""
    found = results()
    parts = [] if any(map(gpu_of, found.values())) else [NO_GPU]
    for each in found.items():
        drawn, blocks = False, [*result_blocks(*each)]
        for block, after in zip(blocks, [*blocks[1:], None], strict=True):
            if isinstance(block, Drawing) and isinstance(after, Table) and len(after.rows) <= FEW:
                continue
            parts.append(shown(block.picture) if isinstance(block, Drawing) else written(block))
            if isinstance(block, Table) and (drawn or len(block.rows) > SHOWN):
                parts[-1] = folded("The figures", [parts[-1]], "note")
            drawn = drawn or isinstance(block, Drawing)
    return "\n\n".join(parts)
