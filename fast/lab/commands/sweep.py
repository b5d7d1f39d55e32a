"""``kvlab sweep`` and ``kvlab report``: many comparisons that survive being killed."""

from pathlib import Path
from typing import Annotated

import typer

from kvlab.fast.lab.commands.settings import (
    Json,
    check_output,
    command,
    read_methods,
    say_notes,
)
from kvlab.fast.lab.tables import counted
from kvlab.fast.lab.terminal import (
    errors,
    print_caption,
    print_json,
    print_line,
    print_table,
    reporting,
    results_only,
    working,
)
from kvlab.reference.methods import UnknownMethodError


class _SweepSettings(Json):
    configuration: Annotated[Path, typer.Argument()]
    """TOML file; docs/evaluate.md lists its keys."""
    out: Path | None = None
    """Directory of plan, results and report; default: kvlab-sweep/NAME."""
    methods: str | None = None
    """Run these methods of the file only, separated by ';' or blanks; default: all."""
    engine: str = "local"
    """local: this machine; ray: the cluster at RAY_ADDRESS, or one here."""
    workers: int | None = None
    """Processes; default: local works in this one, ray takes as many as fit."""
    gpus: float | None = None
    """With ray: GPUs per worker; default: 1 if the cluster has any."""
    dry_run: bool = False
    """Say what would be done, and do nothing."""
    compact: bool = False
    """When all is done, put the results into one file."""


@command
def sweep(settings: _SweepSettings) -> None:
    """Run what is missing of a sweep: methods × budgets × tasks × models × seeds."""
    from kvlab.fast.lab.sweep import run as running  # needs pyarrow
    from kvlab.fast.lab.sweep.plan import make_plan, only, read_sweep
    from kvlab.fast.lab.sweep.summary import Results

    directory = settings.out or Path("kvlab-sweep") / settings.configuration.stem
    try:
        wanted = read_sweep(settings.configuration)
    except UnknownMethodError as error:
        raise ValueError(f"{error}{running.where_from(directory)}") from None
    if settings.methods is not None:
        wanted = only(wanted, read_methods(settings.methods))
    engine = running.choose_engine(settings.engine, settings.workers, settings.gpus)
    if not settings.dry_run:
        check_output("out", directory / running.PLAN)
    say_notes(wanted.methods)
    device = None
    if settings.engine == "ray" and wanted.backend == "fast":
        from kvlab.fast.lab.sweep.cluster import device_of_workers

        device = device_of_workers(settings.gpus)
    plan = make_plan(wanted, device)
    plan.check_methods()
    if settings.dry_run:
        missing = len(Results(plan, running.read_rows(directory)).missing())
        jobs = sum(1 for _ in plan.jobs())
        _say({"jobs": jobs, "missing": missing, "directory": str(directory)}, settings.json)
        return
    try:
        with results_only(), reporting() as told:
            ran = running.run_sweep(plan, directory, engine, told, settings.compact)
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
        raise typer.Exit(1)
    _say({"jobs": ran.total, "done now": ran.done, "directory": str(directory)}, settings.json)


def _say(facts: dict[str, int | str], as_json: bool) -> None:
    if as_json:
        print_json(facts)
    else:
        print_line(", ".join(f"{name}: {value}" for name, value in facts.items()))


class _ReportSettings(Json):
    directory: Annotated[Path, typer.Argument()]
    """Directory of a sweep."""
    out: Path | None = None
    """Directory of the report; default: the sweep's."""


@command
def report(settings: _ReportSettings) -> None:
    """Report on a sweep: tables, curves, intervals, paired tests, and how to run it again."""
    from kvlab.fast.lab.sweep import report as reporting  # needs pyarrow
    from kvlab.fast.lab.sweep.run import read_stored

    stored = read_stored(settings.directory)
    place = settings.out or settings.directory
    check_output("out", place / f"{reporting.NAME}.html")
    with working("reading the results"):
        summaries = reporting.write_report(stored, place)
    if settings.json:
        print_json(reporting.to_json(stored, summaries))
        return
    for each in summaries:
        print_table(reporting.accuracy_table(each), f"{each.task}, model {each.model}")
    print_caption(reporting.ACCURACY_CAPTION)
    print_line(f"report: {place / reporting.NAME}.html")
