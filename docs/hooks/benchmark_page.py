"""The page of benchmarks: every committed result as it was measured."""

from marks import replaced
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page
from notebook_pages import folded

from kvlab.fast.lab.drawing import Picture
from kvlab.fast.lab.reports import Drawing, Heading, markdown as written
from kvlab.fast.lab.tables import Table
from study.benchmarks import gpu_of, result_blocks, results
from study.pays import drawn_map

MARK, MAP = "<!-- results -->", "<!-- map -->"
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
    return replaced(markdown, page, {MARK: written_results, MAP: lambda: shown(drawn_map())})


def shown(picture: Picture) -> str:
    """Return a picture as a part of the page, as wide as the text."""
    return f'<div class="kvlab-shown">{picture.figure}</div>'


def written_results() -> str:
    """Write every result; say so if no GPU was measured."""
    found = results()
    parts = [] if any(map(gpu_of, found.values())) else [NO_GPU]
    for each in found.items():
        label = ""
        for block in result_blocks(*each):
            if isinstance(block, Drawing):
                label = block.title
                parts.append(shown(block.picture))
            elif isinstance(block, Table):
                parts.append(folded(f"Table: {label}", [written(block)], "note"))
            else:
                text = block.text
                if isinstance(block, Heading) or text.endswith(":"):
                    label = text.partition(",")[0].rstrip(":")
                parts.append(written(block))
    return "\n\n".join(parts)
