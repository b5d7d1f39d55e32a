"""The page of kernels: what compilers make of them, from the stored report."""

import json
from collections.abc import Iterator
from typing import Any

from marks import replaced
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page
from notebook_pages import folded

from kvlab.fast.lab.reports import markdown as written
from kvlab.fast.lab.tables import Table
from study.stored import RESULTS

MARK = "<!-- compiled -->"
GPU = "sm_90"
"""H100 and H200."""
HEADINGS = (
    *("kernel", "configuration", "registers", "spilled", "occupancy"),
    *("128 bit loads", "per byte"),
)

Row = dict[str, Any]
"""Figures by name, with the configuration that they are of."""


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the mark of the page by the tables.

    Raises:
        PluginError: if the mark is missing.
    """
    if page.file.src_uri != "kernels.md":
        return markdown
    report = json.loads((RESULTS / "kernels.json").read_text("utf-8"))
    return replaced(markdown, page, {MARK: lambda: tables(report)})


def tables(report: Row) -> str:
    """Return the first and the worst configuration of every kernel, and other GPUs, folded."""
    rows = []
    for kernel in report["kernels"]:
        found = list(configurations(report, kernel, GPU))
        rows.append(cells(kernel, "first", found[0]))
        if (worst := max(found, key=badness)) is not found[0]:
            rows.append(cells("", "worst", worst))
    names = ("sm_80", "sm_89", "sm_100", "sm_120", "gfx942")
    others = []
    for kernel in report["kernels"]:
        firsts = (next(configurations(report, kernel, gpu)) for gpu in names)
        others.append(
            (kernel, *(f"{x['registers']}, {x['spilled']}, {x['occupancy']} %" for x in firsts))
        )
    shown = written(Table(("kernel", *names), tuple(others)))
    about = "First configurations on other GPUs: registers, spilled bytes, occupancy"
    return f"{written(Table(HEADINGS, tuple(rows)))}\n\n{folded(about, [shown], 'note')}"


def configurations(report: Row, kernel: str, gpu: str) -> Iterator[Row]:
    """Yield the figures of every configuration of a kernel on a GPU."""
    for tried in report["kernels"][kernel].values():
        for configuration, figures in tried.items():
            if gpu in figures:
                named = dict(zip(report["figures"], figures[gpu], strict=True))
                yield named | {"configuration": configuration.partition(": ")[2]}


def badness(row: Row) -> tuple[int, int]:
    """Return what makes a configuration worse than another: spills, then a low occupancy."""
    return row["spilled"], -row["occupancy"]


def cells(kernel: str, which: str, row: Row) -> tuple[str, ...]:
    """Return a row of the table of one GPU."""
    about = f"{which}: {row['configuration']}".removesuffix(": ").replace("num_", "")
    fits = f"{row['occupancy']} %" if row["occupancy"] else "does not fit"
    memory = (str(row["registers"]), str(row["spilled"]), fits)
    per_byte = "–" if row["per_byte"] is None else f"{row['per_byte']:.1f}"
    return (kernel, about, *memory, f"{row['wide']} %", per_byte)
