"""Measures a row of the ledger again.

    python -m study.repeat caote 'Table 4'

The stored figures are printed first, with the command that is run, then what the command prints.
"""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from kvlab.fast.lab.terminal import print_line
from kvlab.reference.checks import check_choice
from kvlab.reference.proofs import PAPERS
from kvlab.reference.proofs.ledger import Measured, ledger


def measured(paper: str, place: str) -> dict[str, list[Measured]]:
    """Return what was measured for a row of the ledger, by the command that measures it.

    Raises:
        ValueError: if the paper is unknown, or has no such row, or nothing was measured for it.
    """
    check_choice(PAPERS, paper=paper)
    places = {row.place: row for row in ledger() if row.paper == paper and row.measured}
    check_choice(places, place=place)
    commands: dict[str, list[Measured]] = {}
    for each in places[place].measured:
        commands.setdefault(each.command, []).append(each)
    return commands


def main(
    paper: Annotated[str, typer.Argument(help=f"One of {', '.join(PAPERS)}.")],
    place: Annotated[str, typer.Argument(help="A row of the ledger, such as 'Table 4'.")],
) -> None:
    """Measure a row of the ledger again."""
    for command, stored in measured(paper, place).items():
        for each in stored:
            print_line(f"stored: {each.text()}")
        print_line(command)
        program, *arguments = shlex.split(command)
        subprocess.run([Path(sys.executable).with_name(program), *arguments], check=True)


if __name__ == "__main__":
    typer.run(main)
