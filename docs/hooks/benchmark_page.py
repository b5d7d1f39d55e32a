"""The page of benchmarks: what was gained, a form, and every result as it was measured."""

import json
from collections.abc import Mapping
from html import escape

from marks import replaced
from method_figures import unsearched
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page
from notebook_pages import folded

from kvlab.fast.lab.drawing import Picture
from kvlab.fast.lab.reports import Drawing, Heading, markdown as written
from kvlab.fast.lab.tables import Table
from kvlab.reference.simulator.cost import Runtime
from kvlab.reference.simulator.sizes import HARDWARE, SHAPES
from study.benchmarks import gpu_of, result_blocks, results
from study.gained import drawn_gains
from study.pays import DEVICE, MODEL, drawn_map, weights_read

MARK, MAP, GAINS, FORM = (f"<!-- {name} -->" for name in ("results", "map", "gained", "form"))
NO_GPU = (
    "**No result of a GPU is committed yet.** On a machine with one, `make gpu PYTHON=...` "
    "measures kernels and whole models ([Kernels](kernels.md)); its files appear here once they "
    "are committed."
)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the marks of the page by the results, the form, and what eviction gains.

    Raises:
        PluginError: if a mark is missing.
    """
    if page.file.src_uri != "benchmarks.md":
        return markdown
    made = {GAINS: lambda: unsearched(drawn_gains()), FORM: form}
    return replaced(
        markdown, page, {**made, MAP: lambda: shown(drawn_map()), MARK: written_results}
    )


def form() -> str:
    """Write the form of models and devices; a script shows it and answers."""
    shapes = {
        name: {"weights": x.weight_bytes, "read": weights_read(x), "token": x.token_bytes}
        for name, x in SHAPES.items()
    }
    devices = {name: {"name": x.name, "memory": x.memory} for name, x in HARDWARE.items()}
    given = {"shapes": shapes, "devices": devices, "memoryShare": Runtime().memory_share}
    models = options({name: name for name in shapes}, MODEL)
    gpus = options({name: x["name"] for name, x in devices.items()}, DEVICE)
    return (
        '<link rel="stylesheet" href="stylesheets/forms.css">\n'
        '<form id="kvlab-pays" class="kvlab-form" style="--kvlab-field: 8rem" hidden>'
        f'<label>Model<select name="model">{models}</select></label>'
        f'<label>Device<select name="gpu">{gpus}</select></label>'
        '<label>Tokens of a text<input name="tokens" type="number" required min="16" '
        'value="32768"></label>'
        '<label>Texts at once<input name="batch" type="number" required min="1" value="4"></label>'
        '<label>Entries kept, %<input name="percent" type="number" required min="1" '
        'max="100" value="25"></label></form>\n'
        '<div id="kvlab-paid" class="kvlab-answer" aria-live="polite" hidden><p></p><p></p>'
        "<pre><code></code></pre></div>\n"
        f'<script type="application/json" id="kvlab-sizes">{json.dumps(given)}</script>\n'
        '<script src="javascripts/pays.js" defer></script>\n'
    )


def options(texts: Mapping[str, str], chosen: str) -> str:
    """Write the options of a choice, one of them chosen."""
    return "".join(
        f'<option value="{name}"{" selected" * (name == chosen)}>{escape(text)}</option>'
        for name, text in texts.items()
    )


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
