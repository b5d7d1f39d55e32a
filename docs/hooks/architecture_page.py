"""The page on the architecture: its picture and its table are made from the code."""

from collections import Counter
from html import escape

from marks import replaced
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page
from package_picture import draw
from token_life import Call, follow_token


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the marks of the page by the picture of the packages and the life of a token.

    Raises:
        PluginError: if a mark is missing.
    """
    if page.file.src_uri != "architecture.md":
        return markdown
    return replaced(markdown, page, {"<!-- packages -->": draw, "<!-- life -->": life})


def life() -> str:
    """Return the calls of one step as a table; what runs several times is left out."""
    calls = follow_token()
    times = Counter((call.module, call.name) for call in calls)
    rows = [row(call) for call in calls if times[call.module, call.name] == 1]
    return (
        '<table class="kvlab-life"><thead><tr><th>function</th><th>what it does</th>'
        f"<th>entries</th></tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def row(call: Call) -> str:
    """Return one call as a row, indented by its depth."""
    place = call.module.removeprefix("kvlab.").replace(".", "/") + ".py"
    return (
        f'<tr><td style="padding-left: {call.depth}em"><code>{escape(call.name)}</code>'
        f"<br><small>{escape(place)}</small></td>"
        f"<td>{escape(call.says.replace('`', ''))}</td><td>{call.entries}</td></tr>"
    )
