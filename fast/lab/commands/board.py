"""``kvlab board``: rows of the board of eviction while a model writes."""

from pathlib import Path
from typing import TYPE_CHECKING

from typer import Exit, Typer

from kvlab.fast.lab.commands.options import add_commands, check_output, read_methods, say, words
from kvlab.fast.lab.terminal import errors, print_line, progress_bar, results_only
from kvlab.reference import methods as registry
from kvlab.reference.checks import check_between

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
    failed = False
    for task, sweep in sweeps.items():
        folder = out / "units" / f"{task}-{Path(sweep.models[0]).name}"
        engine, _ = running.choose_engine(sweep, workers=workers)
        with results_only(), progress_bar() as told:
            ran = running.run_sweep(make_plan(sweep), folder, engine, told)
        say(f"failed: {job.label}: {why.reason}" for job, why in ran.failures)
        stored = running.read_stored(folder)
        made = [_written(stored, task, each, out) for each in asked]
        failed |= bool(ran.failures) or not any(made)
    if failed:
        raise Exit(1)


def _written(stored: "Stored", task: str, method: str, out: Path) -> bool:
    """Write a method's row, and say where, and what it found; or why it has none."""
    from kvlab.fast.lab import board

    try:
        row = board.row_of(stored, task, method)
        why = "; ".join(board.faults(row))
    except ValueError as error:
        row, why = None, str(error)
    if row is None or why:
        print_line(f"no row of {method}: {why}")
        return False
    print_line("\n".join([f"row: {board.write(row, out)}", *map(str, row.figures)]))
    return True


def check(file: Path, share: float = 0.1) -> None:
    """Derive a row's figures again, do a drawn share of its jobs again, and say what differs."""
    from kvlab.fast.lab import board

    check_between(0, 1, share=share)
    row = board.read(file)
    if row.digest != board.digest(row.method):
        say([f"{row.method}'s source is not the one that the row was measured with"])
    with results_only(), progress_bar() as told:
        found = list(board.faults(row)) or list(board.do_again(row, share, told))
    if found:
        errors.print("\n".join(found), style="red", markup=False)
        raise Exit(1)
    agrees = f"these figures follow from its results; {share:.0%} of its jobs, done again, agree"
    print_line("\n".join([*map(str, row.figures), f"{file}: {agrees}"]))


add_commands(app, "board", run=run, check=check)
