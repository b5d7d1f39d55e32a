"""``kvlab report``: what a sweep found, as HTML, Markdown and JSON."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from kvlab.fast.lab.commands.options import prepare_output
from kvlab.fast.lab.commands.terminal import AsJson, console, working


def report(
    directory: Annotated[Path, typer.Argument(help="Directory of a sweep.")],
    out: Annotated[
        Path | None, typer.Option(help="Directory of the report; default: the sweep's.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Report on a sweep: tables, curves, intervals, paired tests, and how to run it again."""
    from kvlab.fast.lab.sweep import report as reporting  # needs pyarrow
    from kvlab.fast.lab.sweep.run import read_stored

    stored = read_stored(directory)
    place = out or directory
    prepare_output("out", place / f"{reporting.NAME}.html")
    with working("reading the results"):
        summaries = reporting.write_report(stored, place)
    if as_json:
        print(json.dumps(reporting.to_json(stored, summaries), indent=1))
        return
    for each in summaries:
        grid = reporting.accuracy_table(each)
        table = Table(title=f"{each.task}, model {each.model}", box=box.SIMPLE_HEAD)
        for number, name in enumerate(grid.columns):
            table.add_column(name, justify="right" if number else "left", overflow="fold")
        for row in grid.rows:
            table.add_row(*(cell if isinstance(cell, str) else cell.text for cell in row))
        console.print(table)
    console.print(f"report: {place / reporting.NAME}.html", highlight=False, soft_wrap=True)
