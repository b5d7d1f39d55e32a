"""``kvlab sweep`` and ``kvlab report``: many comparisons that survive being killed."""

from pathlib import Path

from typer import Exit

from kvlab.fast.lab import terminal
from kvlab.fast.lab.commands.options import check_output, read_methods, say, say_notes
from kvlab.fast.lab.tables import Table, counted
from kvlab.reference.methods import UnknownMethodError


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
    from kvlab.fast.lab.sweep import run
    from kvlab.fast.lab.sweep.design import only, read_sweep
    from kvlab.fast.lab.sweep.plan import make_plan

    directory = out or Path("kvlab-sweep") / configuration.stem
    try:
        asked = read_sweep(configuration)
    except UnknownMethodError as error:
        raise ValueError(f"{error}{run.where_from(directory)}") from None
    chosen = asked.methods if methods is None else only(asked, read_methods(methods)).methods
    check_output("out", directory / run.PLAN)
    do_jobs, device = run.choose_engine(asked, engine, workers, gpus)
    say_notes(chosen)
    say(asked.too_few())
    plan = make_plan(asked, device)
    plan.check_methods()
    try:
        with terminal.results_only(), terminal.progress_bar() as progress:
            ran = run.run_sweep(plan, directory, do_jobs, progress, chosen)
    except KeyboardInterrupt as stop:
        asked_for = {job.id for job in plan.jobs()}
        done = {row.job for row in run.read_rows(directory, asked_for)} & asked_for
        kept = f"{counted(len(done), 'stored job')} in {directory}"
        stop.add_note(f"nothing that was done is lost: {kept}; the same command goes on from here")
        raise
    for job, failure in ran.failures:
        said = f"failed: {job.label}: {failure.reason} ({directory / run.FAILURES / job.id}.txt)"
        terminal.errors.print(said, style="red", markup=False)
    facts = {"jobs": ran.total, "done now": ran.done, "directory": str(directory)}
    if json:
        terminal.print_json(facts)
    else:
        terminal.print_line(", ".join(f"{name}: {value}" for name, value in facts.items()))
    if ran.failures:
        raise Exit(1)


def report(directory: Path, out: Path | None = None, json: bool = False) -> None:
    """Report on a sweep: tables, curves, intervals, paired tests, and how to run it again."""
    from kvlab.fast.lab.sweep import report as reports
    from kvlab.fast.lab.sweep.run import read_stored

    stored = read_stored(directory)
    place = out or directory
    check_output("out", place / f"{reports.NAME}.html")
    with terminal.working("reading the results"):
        summaries = reports.write_report(stored, place)
    if json:
        terminal.print_json(reports.to_json(stored, summaries))
        return
    for table in reports.told_once(map(reports.accuracy_table, summaries)):
        if isinstance(table, Table):
            terminal.print_table(table)
    terminal.print_line(f"report: {place / reports.NAME}.html")
