"""``kvlab board``: rows of the board of eviction while a model writes."""

from pathlib import Path
from typing import TYPE_CHECKING

from typer import Exit, Typer

from kvlab.fast.lab.commands.options import add_commands, check_output, read_methods, say, words
from kvlab.fast.lab.terminal import errors, print_json, print_line, reporting, results_only
from kvlab.reference import methods as registry
from kvlab.reference.checks import check_at_least, check_between

if TYPE_CHECKING:
    from kvlab.fast.lab.sweep.run import Stored

app = Typer(no_args_is_help=True, help="Measure a method for the board, and check what others did.")


def run(
    methods: str | None = None,
    tasks: str = "jumps",
    model: str | None = None,
    text: str | None = None,
    out: Path = Path("kvlab-board"),
    workers: int | None = None,
) -> None:
    """Measure methods and their controls by the board's protocol; write a file for each."""
    from kvlab.fast.lab import board
    from kvlab.fast.lab.evaluate.controls import evicts, is_control
    from kvlab.fast.lab.sweep import run as running
    from kvlab.fast.lab.sweep.plan import make_plan

    every = [each for each in registry.names() if evicts(each) and not is_control(each)]
    asked = every if methods is None else read_methods(methods)
    sweeps = {task: board.sweep_of(task, asked, model, text) for task in words(tasks)}
    for task in sweeps:
        check_output("out", out / f"{task}.json")
    engine, failed = running.choose_engine("local", workers), False
    for task, sweep in sweeps.items():
        folder = out / "units" / f"{task}-{Path(sweep.models[0]).name}"
        with results_only(), reporting() as told:
            ran = running.run_sweep(make_plan(sweep), folder, engine, told)
        say(f"failed: {job.label}: {why.reason}" for job, why in ran.failures)
        failed |= bool(ran.failures)
        stored = running.read_stored(folder)
        for each in asked:
            print_line(_written(stored, task, each, out))
    if failed:
        raise Exit(1)


def _written(stored: "Stored", task: str, method: str, out: Path) -> str:
    """Write a method's row, and say where; or why it has none."""
    from kvlab.fast.lab import board

    try:
        row = board.row_of(stored, task, method)
        why = "; ".join(board.faults(row))
    except ValueError as error:
        return f"no row: {error}"
    return f"no row: {why}" if why else f"row: {board.write(row, out)}"


def check(file: Path, share: float = 0.1, seed: int = 0, json: bool = False) -> None:
    """Derive a row's figures again, do a drawn share of its jobs again, and say what differs."""
    from kvlab.fast.lab import board

    check_between(0, 1, share=share)
    check_at_least(0, seed=seed)
    row = board.read(file)
    if row.digest != board.digest(row.method):
        say([f"{row.method}'s source is not the one that the row was measured with"])
    found = list(board.faults(row))
    if not found:
        with results_only(), reporting() as told:
            found = list(board.do_again(row, share, seed, told))
    if json:
        print_json({"row": str(file), "faults": found})
    elif not found:
        print_line(f"{file}: its figures follow from its results, and what was done again agrees")
    else:
        errors.print("\n".join(found), style="red", markup=False)
    if found:
        raise Exit(1)


add_commands(app, "board", run=run, check=check)
