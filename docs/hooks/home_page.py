"""The first page: the study's tables and picture, and a generation to play."""

from functools import cache
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils.meta import get_data

from kvlab.fast.lab import problem_source, record_methods, stored_summary, write_viewer
from kvlab.fast.lab.pictures import study
from kvlab.fast.lab.sweep.configuration import ORACLE
from kvlab.fast.lab.tables import escape_markdown
from kvlab.fast.lab.viewing import Row
from kvlab.reference import methods

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "methods"

BUDGETS = ("20%", "30%", "50%")

VIEWER = "viewer.html"
PLAYED = (
    "h2o",
    "caote:h2o",
    "lazy_eviction@window=16,threshold=0.01",
    "desirekv@interval=32,selector=8,group=32",
    "ahakv@recent=16",
    "kivi@key_bits=4,value_bits=4,residual=32",
)
PLAYED_BUDGET = "50%"
MOST_VALUES = 2**15
"""Entries in the snapshots of a method: a page of this size has to be small."""
LARGEST = 2_000_000
"""Bytes of the page that is played."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page that plays a generation."""
    path = ROOT / "build" / VIEWER
    recorded(path)
    files.append(File.generated(config, VIEWER, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the marks of the page by what the package found.

    Raises:
        PluginError: if a mark is missing.
    """
    if page.file.src_uri != "index.md":
        return markdown
    for name, part in parts().items():
        mark = f"<!-- {name} -->"
        if markdown.count(mark) != 1:
            raise PluginError(f"docs/index.md must hold {mark} once")
        markdown = markdown.replace(mark, part)
    return markdown


# --- the study -----------------------------------------------------------------------------------


@cache
def parts() -> dict[str, str]:
    """Return the generated parts, each by the mark that it replaces."""
    stored, found = study.read_study()
    specs = study.families(stored)
    return {
        "budgets": study.under_budgets(found, specs, BUDGETS).markdown(linked),
        "budgets explained": escape_markdown(study.explained(stored, found, specs)),
        "own rules": study.under_own_rules(stored_summary("arithmetic")).markdown(linked),
        "picture": study.solved_over_memory(found, specs)._repr_html_(),
        "played": played(),
    }


def linked(spec: str) -> str:
    """Write a method as a link to its page, its options on a line of their own."""
    if spec == ORACLE:
        return f"{ORACLE}<br><small>knows what will be needed</small>"
    name, _, options = spec.partition("@")
    options = f"<br><small>{escape_markdown(options)}</small>" if options else ""
    return f"[`{name}`](methods/{method_pages()[methods.base_name(spec)]}){options}"


@cache
def method_pages() -> dict[str, str]:
    """Return the file of every method's page."""
    found = {}
    for path in PAGES.glob("*.md"):
        _, meta = get_data(path.read_text(encoding="utf-8"))
        for name in (meta["method"], *meta.get("also", ())):
            found[name] = path.name
    return found


# --- the generation ------------------------------------------------------------------------------


@cache
def recorded(path: Path) -> tuple[Row, ...]:
    """Write the page that plays a generation; return what became of every method.

    Raises:
        PluginError: if a method cannot be played, or the page is too large to stand on another.
    """
    path.parent.mkdir(exist_ok=True)
    found = record_methods(problem_source(), PLAYED, PLAYED_BUDGET, most_values=MOST_VALUES)
    refused = [f"{row.method}: {row.refusal}" for row in found.rows if row.refusal is not None]
    if refused:
        raise PluginError(f"the first page cannot play {'; '.join(refused)}")
    write_viewer(found.timeline, path)
    if (size := path.stat().st_size) > LARGEST:
        raise PluginError(f"{path} has {size} bytes, more than {LARGEST}")
    return found.rows


def played() -> str:
    """Say which methods are played, and which of them solve the problem."""
    rows = recorded(ROOT / "build" / VIEWER)
    budget = next(row.budget for row in rows if row.budget is not None)
    right, wrong = (
        ", ".join(f"`{row.method}`" for row in rows if row.solved is solved) or "none"
        for solved in (True, False)
    )
    return (
        f"Budget: {budget} entries, {PLAYED_BUDGET.replace('%', ' %')} of what the full cache "
        f"holds in the end. On this one problem these write the right solution: {right}; these a "
        f"wrong one: {wrong}."
    )
