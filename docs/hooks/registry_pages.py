"""What pages take from the registry: the list of methods, their modules, the count of vectors."""

import inspect
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.pages import Page
from mkdocs.utils.meta import get_data
from symbols import ROOT

from kvlab.reference import methods
from kvlab.reference.conformance import blocks, published
from kvlab.reference.conformance.cache_cases import STRESSES
from kvlab.reference.conformance.report import KNOWN_BUGS

REPORTS = ROOT / "docs" / "examples" / "conformance" / "reports"
PAGES = ROOT / "docs" / "methods"
COLUMNS = ("score", "schedule", "protected", "shared over heads", "bits")
"""Of the table of methods, besides the name; a page's front matter holds them under ``row``."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the pages of methods in the site's navigation."""
    (section,) = (each["Methods"] for each in config.nav or () if "Methods" in each)
    section += [{title(path): f"methods/{path.name}"} for path in method_pages()]
    return config


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Replace the marks ``{{ name }}`` of a page by what the package says."""
    for name, part in PARTS.items():
        mark = f"{{{{ {name} }}}}"
        if mark in markdown:
            markdown = markdown.replace(mark, part())
    return markdown


@cache
def method_pages() -> tuple[Path, ...]:
    """Return the pages of methods, in the order in which their methods were published."""
    about = {path: methods.lookup(front_matter(path)["method"]) for path in PAGES.glob("*.md")}
    return tuple(sorted(about, key=lambda path: (about[path].published, about[path].name)))


def front_matter(path: Path) -> Mapping[str, Any]:
    """Return what a page states about itself."""
    return get_data(path.read_text(encoding="utf-8"))[1]


def title(path: Path) -> str:
    """Return the heading of a page."""
    body = get_data(path.read_text(encoding="utf-8"))[0]
    return body.lstrip().splitlines()[0].removeprefix("# ")


def table_of_methods() -> str:
    """Return a row per page: the names of its methods, and their answers in a few words."""
    lines = [("method", *COLUMNS), ("---",) * (1 + len(COLUMNS))]
    for path in method_pages():
        meta = front_matter(path)
        wrapping = ":…" if meta["method"] in methods.WRAPPERS else ""
        names = ", ".join(f"{name}{wrapping}" for name in (meta["method"], *meta.get("also", ())))
        lines.append((f"[`{names}`](methods/{path.name})", *(meta["row"][c] for c in COLUMNS)))
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def modules_of_methods() -> str:
    """Return the directive that documents the module of each method of this repository."""
    modules = dict.fromkeys(
        methods.lookup(name).__module__
        for name in methods.names()
        if Path(inspect.getfile(methods.lookup(name))).is_relative_to(ROOT)
    )
    return "\n\n".join(f"::: {module}" for module in modules)


def groups_of_whole_caches() -> str:
    """Return a row per group of whole caches: what it stresses, and the bug that it catches."""
    return "\n".join(
        f"| `{group}` | {stresses} | {bug_of(group)} |" for group, stresses in STRESSES.items()
    )


def bugs_of_groups() -> str:
    """Return a row per group of all other cases: a bug that it catches."""
    others = (group for group in KNOWN_BUGS if group not in STRESSES)
    return "\n".join(f"| `{group}` | {bug_of(group)} |" for group in others)


def bug_of(group: str) -> str:
    """Return what a group catches, with a link to the thread about it, or that it was planted."""
    bug = KNOWN_BUGS[group]
    thread = f"[thread]({bug['thread']})" if "thread" in bug else "planted"
    return f"{bug['what']} ({thread})"


def table_of_whole_caches() -> str:
    """Return a row per measured implementation and target, from the reports of the examples."""
    lines = ["| implementation | target | passed | failed | not tested |", "|---|---|---|---|---|"]
    for file in sorted(REPORTS.glob("whole_cache_*.json")):
        report = json.loads(file.read_text(encoding="utf-8"))
        for target, counts in report["targets"].items():
            lines.append(f"| {report['what']} | `{target}` | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


PARTS: Mapping[str, Callable[[], str]] = {
    "table of methods": table_of_methods,
    "modules of methods": modules_of_methods,
    "groups of whole caches": groups_of_whole_caches,
    "bugs of groups": bugs_of_groups,
    "table of whole caches": table_of_whole_caches,
    "cases": lambda: f"{len(published()):,}",
    "building blocks": lambda: str(len(blocks.OPERATIONS)),
}
"""What may be asked for, by name."""
