"""Pages of methods: every equation one click away from the lines that compute and test it."""

from pathlib import Path
from posixpath import normpath
from typing import Any
from urllib.parse import urljoin

import method_figures
import method_sections
import source_pages
import symbols
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from mkdocs.utils.meta import get_data
from symbols import ROOT, Target

METHODS = ROOT / "docs" / "methods"
ARCHITECTURE = "architecture.md"
"""Another page that links lines of the sources."""

links: list[tuple[Target, str]] = []
"""What the links of the site that is being built have to show, and the file and line they name."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the style of these pages."""
    config.extra_css.append("stylesheets/methods.css")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every source file that a method's page links."""
    links.clear()
    symbols.forget()
    for path in sorted(linked_files()):
        address = source_pages.place(path)
        file = File.generated(config, address, content=source_pages.page(path))
        file.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(file)
    return files


def linked_files() -> set[str]:
    """Return the source files that the pages link."""
    found = set()

    def note(target: Target) -> str:
        found.add(target.path)
        return ""

    for path in METHODS.glob("*.md"):
        body, meta = get_data(path.read_text(encoding="utf-8"))
        written(path.stem, meta, body, note, picture="", cost="")
    method_sections.linked((ROOT / "docs" / ARCHITECTURE).read_text(encoding="utf-8"), note)
    return found


def written(
    name: str,
    meta: method_figures.Meta,
    body: str,
    link: method_sections.Link,
    picture: str,
    cost: str,
) -> str:
    """Write a page.

    Raises:
        PluginError: if it names a function that is not there, or lacks an entry.
    """
    try:
        return method_sections.page(meta, body, link, picture, cost)
    except ValueError as error:
        raise PluginError(f"docs/methods/{name}.md: {error}") from error
    except KeyError as error:
        raise PluginError(f"docs/methods/{name}.md: its front matter lacks {error}") from error


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Complete the page of a method."""
    if "method" not in page.meta and page.file.src_uri != ARCHITECTURE:
        return markdown

    def link(target: Target) -> str:
        file = files.get_file_from_path(source_pages.place(target.path))
        assert file is not None
        address = f"{file.url_relative_to(page.file)}#L{target.line}"
        links.append((target, normpath(urljoin(page.url, address))))
        return address

    if page.file.src_uri == ARCHITECTURE:
        return method_sections.linked(markdown, link)
    page.meta["search"] = {"boost": 2}  # who looks for a method wants its page first
    meta, name = page.meta, Path(page.file.src_uri).stem
    picture, cost = method_figures.pictures(meta), method_figures.costs(meta)
    return written(name, meta, markdown, link, picture, cost)


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Put the listing into the page of a source file; mark a method's page, for its style."""
    if path := page.meta.get("source"):
        return html + source_pages.listing(path)
    if "method" not in page.meta:
        return html
    return f'<div class="kvlab-method">{html}</div>'


def on_post_build(config: MkDocsConfig) -> None:
    """Follow every link to a line in the site as it was written.

    Raises:
        PluginError: if one does not lead to the function or the equation that it promises, or if
            there are none.
    """
    if not links:
        raise PluginError("docs/methods: no page was built")
    shown = {
        target.path: built(Path(config.site_dir), address).read_text(encoding="utf-8")
        for target, address in links
    }
    if problems := source_pages.stale_links(links, shown):
        raise PluginError("\n".join(problems))


def built(site: Path, address: str) -> Path:
    """Return the file behind an address."""
    file = site / address.partition("#")[0]
    return file / "index.html" if file.is_dir() else file
