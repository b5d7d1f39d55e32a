"""Tables of stored results, in the place of marks such as ``<!-- gains: study -->``."""

import re
from typing import Any

from mkdocs.exceptions import PluginError

from kvlab.fast.lab.evaluate.controls import gains_table
from kvlab.fast.lab.points import After
from kvlab.fast.lab.sweep.summary import main_measure
from kvlab.fast.lab.tables import Table, layout
from study import effects_figures, map as study_map, pays
from study.speeds import in_blocks as in_blocks_rows
from study.stored import sorted_gains, stored_file, stored_summary

MARK = re.compile(r"<!-- (\w+): ([\w ]+) -->")


def gains(sweep: str) -> Table:
    """List what methods gain over their controls, if any gain is significant."""
    return gains_table(sorted_gains(sweep), main_measure(stored_summary(sweep).points))


def needles(short: str, long: str) -> Table:
    """List the shares of needles that methods and their controls find in two sweeps."""
    headings = ("1,000 tokens", "its control", "2,000 tokens", "its control")
    rows: dict[str, list[str]] = {}
    for found in map(stored_summary, (short, long)):
        controls = {each.first: each.second for each in found.gains}
        for point in found.points[1:]:
            control = found.point(controls.get(point.method, point.method), point.budget)
            shares = (each.interval for each in (point, control))
            rows.setdefault(point.method, []).extend(
                x.written(".1f", scale=100) for x in shares if x
            )
    return Table(("found, %", *headings), [[method, *cells] for method, cells in rows.items()])


def agreement(file: str) -> Table:
    """List in how many tokens an engine agrees with kvlab's specifications, as it was checked."""
    known = ({"reference": None} | row for row in stored_file(file)["rows"])
    rows = [row | {"after_eviction": After(**row["after_eviction"])} for row in known]
    return layout("plugin").table(rows)


def in_blocks(memory: str) -> Table:
    """List what methods that evict within prompts write at a share of the memory, in percent."""
    headings = ("tokens/s of CPU time", "of the full cache", "rounds", "at once", "evicted")
    rows = []
    for row in in_blocks_rows():
        if row["share"] == int(memory) / 100:
            rounds = row["rounds"]
            said = f"{row['times_full']:.2f} ({min(rounds):.2f}–{max(rounds):.2f})"
            counts = len(rounds), row["at_once"], row["blocks"].get("evicted", 0)
            speed = f"{row['tokens_per_second']:.1f}"
            rows.append([row["method"], speed, said, *map(str, counts)])
    return Table((f"{memory} % of the memory", *headings), rows)


TABLES = {
    "inblocks": (in_blocks, "`{}`"),
    "agreement": (agreement, "`{}`"),
    "gains": (gains, "`{}`"),
    "needles": (needles, "`{}`"),
    "planned": (pays.beside_the_planner, "`{}`"),
    "papers": (study_map.papers, "`{}`"),
    "apart": (study_map.told_apart, "{}"),
    **{name: (table, "{}") for name, table in effects_figures.TABLES.items()},
}
"""By the first word of a mark; the others name sweeps, a length or a machine. With the form of the
first cell of a row."""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the marks of a page.

    Raises:
        PluginError: if a mark asks for a table that is not known.
    """

    def table(found: re.Match[str]) -> str:
        if found[1] not in TABLES:
            raise PluginError(f"{found[0]} must name one of {', '.join(TABLES)}")
        make, form = TABLES[found[1]]
        return make(*found[2].split()).markdown(form.format)

    return MARK.sub(table, markdown)
