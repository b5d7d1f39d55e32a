"""``kvlab sweep`` and ``kvlab report``: many comparisons that survive being killed."""

from pathlib import Path
from typing import TYPE_CHECKING

from typer import Exit

from kvlab.fast.lab.commands.options import check_output, read_methods, say, say_notes
from kvlab.fast.lab.tables import Table, counted
from kvlab.fast.lab.terminal import (
    errors,
    print_json,
    print_line,
    print_table,
    reporting,
    results_only,
    working,
)
from kvlab.reference.methods import UnknownMethodError

if TYPE_CHECKING:
    from kvlab.fast.lab.sweep.design import Sweep


def sweep(
    configuration: Path,
    out: Path | None = None,
    methods: str | None = None,
    engine: str = "local",
    workers: int | None = None,
    gpus: float | None = None,
    json: bool = False,
) -> None:
    """Run what is missing of a sweep: methods × budgets × tasks × models × seeds."""
    from kvlab.fast.lab.sweep import run as running
    from kvlab.fast.lab.sweep.design import only, read_sweep
    from kvlab.fast.lab.sweep.plan import make_plan
    from kvlab.fast.lab.sweep.summary import Results

    directory = out or Path("kvlab-sweep") / configuration.stem
    try:
        wanted = read_sweep(configuration)
    except UnknownMethodError as error:
        raise ValueError(f"{error}{running.where_from(directory)}") from None
    if methods is not None:
        wanted = only(wanted, read_methods(methods))
    chosen = running.choose_engine(engine, _workers(wanted, engine, workers), gpus)
    check_output("out", directory / running.PLAN)
    say_notes(wanted.methods)
    say(wanted.too_few())
    device = None
    if engine == "ray" and wanted.backend == "fast":
        from kvlab.fast.lab.sweep.cluster import device_of_workers

        device = device_of_workers(gpus, wanted.device)
    plan = make_plan(wanted, device)
    plan.check_methods()
    try:
        with results_only(), reporting() as told:
            ran = running.run_sweep(plan, directory, chosen, told)
    except KeyboardInterrupt as stop:
        missing = len(Results(plan, running.read_rows(directory)).missing())
        stored = counted(sum(1 for _ in plan.jobs()) - missing, "stored job")
        stop.add_note(
            f"nothing that was done is lost: {stored} in {directory}; the same command goes on "
            "from here"
        )
        raise
    for job, failure in ran.failures:
        where = f" ({directory / running.FAILURES / job.id}.txt)"
        errors.print(f"failed: {job.label}: {failure.reason}{where}", style="red", markup=False)
    if ran.failures:
        raise Exit(1)
    facts = {"jobs": ran.total, "done now": ran.done, "directory": str(directory)}
    if json:
        print_json(facts)
    else:
        print_line(", ".join(f"{name}: {value}" for name, value in facts.items()))


def _workers(wanted: "Sweep", engine: str, asked: int | None) -> int | None:
    """Return how many processes take the devices that a sweep names."""
    if engine != "local" and wanted.workers:
        raise ValueError(f"device = {wanted.device} must be one: Ray shares out the devices")
    workers = wanted.workers or None if asked is None else asked
    if wanted.parallel and workers is not None:
        raise ValueError(f"workers = {workers} cannot be given: parallel takes all devices")
    return workers


def report(directory: Path, out: Path | None = None, json: bool = False) -> None:
    """Report on a sweep: tables, curves, intervals, paired tests, and how to run it again."""
    from kvlab.fast.lab.sweep import report as reporting
    from kvlab.fast.lab.sweep.run import read_stored

    stored = read_stored(directory)
    place = out or directory
    check_output("out", place / f"{reporting.NAME}.html")
    with working("reading the results"):
        summaries = reporting.write_report(stored, place)
    if json:
        print_json(reporting.to_json(stored, summaries))
        return
    for each in reporting.told_once(map(reporting.accuracy_table, summaries)):
        if isinstance(each, Table):
            print_table(each)
    print_line(f"report: {place / reporting.NAME}.html")
