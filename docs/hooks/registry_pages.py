"""What pages take from the registry: the list of methods, their modules, the count of vectors."""

import inspect
import json
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from operator import add
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.pages import Page
from mkdocs.utils.meta import get_data
from notebook_pages import folded
from symbols import ROOT

from kvlab.reference import methods
from kvlab.reference.conformance import published
from kvlab.reference.conformance.operation import OPERATIONS
from kvlab.reference.conformance.report import ABOUT_GROUPS
from kvlab.reference.conformance.targets import STEPS
from kvlab.reference.files import divergences_in
from kvlab.reference.observation import Needs
from kvlab.reference.policy import Policy
from kvlab.reference.precisions import families
from kvlab.reference.quantization import FULL_BITS
from kvlab.reference.simulator.occupancy import bits_on_arrival
from study import equal_bytes

BUGS = ROOT / "tests" / "conformance" / "bugs.toml"
REPORTS = ROOT / "docs" / "examples" / "conformance" / "reports"
LINK = "examples/conformance/reports"

MOST_TARGETS = 8
"""More targets of one implementation are counted together."""

PAGES = ROOT / "docs" / "methods"
HEAD_DIM = 128
"""Channels for which bits per element are given."""
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
    """Return a row per page: its methods, their answers, and what they read, in a few words."""
    lines = [("method", *COLUMNS, "reads of attention"), ("---",) * (2 + len(COLUMNS))]
    for path in method_pages():
        meta = front_matter(path)
        wrapping = ":…" if meta["method"] in methods.wrappers() else ""
        names = ", ".join(f"{name}{wrapping}" for name in (meta["method"], *meta.get("also", ())))
        answers = (meta["row"][column] for column in COLUMNS)
        read = evidence(example_policy(meta["method"]).score.needs)
        lines.append((f"[`{names}`](methods/{path.name})", *answers, read))
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def example_policy(name: str) -> Policy:
    """Return the policy of a method's first example."""
    example = methods.examples_of(name)[0]
    return methods.get(example.spec, example.budget)


def evidence(needs: Needs) -> str:
    """Say what an attention kernel has to hand out besides its output."""
    if needs.rows == "none":
        return "–"
    rows = "newest row" if needs.rows == "last" else "sums of rows" if needs.sums_rows else "rows"
    when = "" if needs.prompt else ", of written tokens"
    joined = "per query head" if needs.heads == "apart" else f"{needs.heads} per KV head"
    return f"{rows}{when}; {joined}"


def table_of_precisions() -> str:
    """Return a row per precision: bits per element at 128 channels, scales included; source."""
    lines = [
        "| precision | keys | values | keys and values against 16 bits | source |",
        "|---|---|---|---|---|",
    ]
    for family in families().values():
        for name, precision in family.precisions.items():
            keys, values = bits_on_arrival(precision, HEAD_DIM)
            share = 100 * (keys + values) / (2 * FULL_BITS)
            lines.append(f"| `{name}` | {keys:g} | {values:g} | {share:.1f} % | {family.source} |")
    return "\n".join(lines)


def divergences_of_precisions() -> str:
    """Return a table per file of precisions: where its source and engines differ."""
    parts = []
    for name, divergences in divergences_in("precisions").items():
        parts += [f"### {name}", ""]
        parts += [
            "| topic | source | elsewhere | kvlab | other interpretations |",
            "|---|---|---|---|---|",
        ]
        for each in divergences:
            cells = (each.topic, each.paper, each.elsewhere, each.default, each.option)
            parts.append(f"| {' | '.join(cells)} |")
        parts.append("")
    return "\n".join(parts)


def modules_of_methods() -> str:
    """Return the directive that documents the module of each method of this repository."""
    modules = dict.fromkeys(
        methods.lookup(name).__module__
        for name in methods.names()
        if Path(inspect.getfile(methods.lookup(name))).is_relative_to(ROOT)
    )
    return "\n\n".join(f"::: {module}" for module in modules)


def rows_of_groups(of_caches: bool) -> str:
    """Return a row per group, of whole caches or all others: what it stresses, and a bug it finds.

    The bug has a link to its public thread, or the note that it was planted.
    """
    lines = ["| group | stresses | finds, among others |", "|---|---|---|"]
    for group, about in ABOUT_GROUPS.items():
        if group.startswith("cache_") == of_caches:
            thread = f"[thread]({about['thread']})" if "thread" in about else "planted"
            lines.append(f"| `{group}` | {about['stresses']} | {about['what']} ({thread}) |")
    return folded(f"{len(lines) - 2} groups of cases", ["\n".join(lines)], "note")


def rows_of_bugs(kind: str) -> str:
    """Return a row per planted bug: what notices it, and the file of the reference it is in."""
    of_reference = kind == "vectors"
    lines = ["| bug | what notices |", "|---|---|"]
    if of_reference:
        lines = ["| bug | what notices | planted in |", "|---|---|---|"]
    for bug in tomllib.loads(BUGS.read_text(encoding="utf-8"))[kind]:
        met = f" ([users met it]({bug['thread']}))" if "thread" in bug else ""
        file = f" `{bug['file']}` |" if of_reference else ""
        lines.append(f"| {bug['name']}{met} | `{bug['target']}` |{file}")
    return "\n".join(lines)


def table_of_contenders() -> str:
    """Return a row per measured implementation and target, from the reports of the examples.

    Targets of an implementation that has many are counted together, step by step.
    """
    lines = ["| implementation | target | passed | failed | not tested | what fails first |"]
    lines.append("|---|---|---|---|---|---|")
    for file in sorted(REPORTS.glob("*.json")):
        report = json.loads(file.read_text(encoding="utf-8"))
        many = len(report["targets"]) > MOST_TARGETS
        rows: dict[str, list[int]] = {}
        firsts: dict[str, str] = {}
        for target, counts in report["targets"].items():
            method, _, step = target.rpartition(".")
            label = "building blocks" if many and not method else f"`{target}`"
            label = f"`*.{step}`" if many and method else label
            rows[label] = list(map(add, rows.get(label, [0, 0, 0]), counts))
            if target in report["failures"]:
                firsts.setdefault(label, report["failures"][target].partition("\n")[0])
        for label, counts in rows.items():
            told = " | ".join([label, *map(str, counts), firsts.get(label, "")])
            lines.append(f"| [{report['what']}]({LINK}/{file.name}) | {told} |")
    return folded("Implementations and targets", ["\n".join(lines)], "note")


PARTS: Mapping[str, Callable[[], str]] = {
    "table of methods": table_of_methods,
    "table of precisions": table_of_precisions,
    "divergences of precisions": divergences_of_precisions,
    "equal bytes": lambda: equal_bytes.chart(equal_bytes.read_panels()).figure,
    "modules of methods": modules_of_methods,
    "groups of whole caches": lambda: rows_of_groups(of_caches=True),
    "groups": lambda: rows_of_groups(of_caches=False),
    "table of contenders": table_of_contenders,
    "bugs of the reference": lambda: rows_of_bugs("vectors"),
    "bugs of whole caches": lambda: rows_of_bugs("cache"),
    "cases": lambda: f"{len(published()):,}",
    "building blocks": lambda: str(len(OPERATIONS) - len(STEPS)),
}
"""What may be asked for, by name."""
