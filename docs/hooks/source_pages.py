"""Pages of the site that show a source file, every line with an address: ``#L42``."""

import re
from html import unescape
from pathlib import Path

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from symbols import ROOT, Target, stale

LINE = re.compile(
    r'<span class="kvlab-line" id="L(\d+)">(.*?)</span>(?=<span class="kvlab-line"|</code>)',
    re.DOTALL,
)


def place(path: str) -> str:
    """Return the address of a file's page inside the documentation."""
    return f"source/{path.removesuffix('.py')}.md"


def page(path: str) -> str:
    """Return the page's Markdown; the listing is added after it is rendered."""
    return (
        f"---\ntitle: {path}\nsource: {path}\nsearch: {{exclude: true}}\n"
        f"hide: [navigation, toc]\n---\n\n# <code>{path}</code>\n"
    )


def listing(path: str, root: Path = ROOT) -> str:
    """Return a file as highlighted HTML, every line with its address; the style numbers lines."""
    code = (root / path).read_text(encoding="utf-8")
    formatter = HtmlFormatter(nowrap=True)
    lines = highlight(code, PythonLexer(stripnl=False), formatter).rstrip("\n").split("\n")
    shown = "".join(
        f'<span class="kvlab-line" id="L{number}">'
        f'<a class="kvlab-number" href="#L{number}" aria-label="line {number}"></a>'
        f"{line or ' '}</span>"
        for number, line in enumerate(lines, start=1)
    )
    return f'<div class="highlight kvlab-source"><pre><code>{shown}</code></pre></div>'


def texts(shown: str) -> dict[int, str]:
    """Return the text of every line that a listing shows, by its number."""
    return {
        int(number): unescape(re.sub("<.*?>", "", line)) for number, line in LINE.findall(shown)
    }


def stale_links(links: list[tuple[Target, str]], shown: dict[str, str]) -> list[str]:
    """Say which links do not lead to the line that they promise.

    Args:
        links: for each link, its target and its address as written.
        shown: HTML of the pages of the site, by file.
    """
    lines = {path: texts(html) for path, html in shown.items()}
    problems = []
    for target, address in links:
        number = int(address.partition("#L")[2] or 0)
        line = lines.get(target.path, {}).get(number)
        if line is None or stale(target, line):
            problems.append(f"{address} does not show {target.name} of {target.path}: {line!r}")
    return problems
