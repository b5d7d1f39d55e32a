"""``kvlab sweep`` and ``kvlab report``: many comparisons that survive being killed."""

from pathlib import Path
from typing import Annotated

import typer

from kvlab.fast.lab.commands.options import AsJson, prepare_output
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

STOPPED = 130
"""Exit code after Ctrl-C, as shells have it."""


def sweep(
    configuration: Annotated[Path, typer.Argument(help="TOML file; docs/sweep.md lists its keys.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Directory of plan, results and report; default: kvlab-sweep/NAME."),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(help="local: this process; ray: the cluster at RAY_ADDRESS, or one here."),
    ] = "local",
    workers: Annotated[
        int | None, typer.Option(help="With ray: workers; default: as many as fit the cluster.")
    ] = None,
    gpus: Annotated[
        float | None,
        typer.Option(help="With ray: GPUs per worker; default: 1 if the cluster has any."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    compact: Annotated[
        bool, typer.Option("--compact", help="When all is done, put the results into one file.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run what is missing of a sweep: methods × budgets × tasks × models × seeds."""
    from kvlab.fast.lab.sweep import run as running  # needs pyarrow
    from kvlab.fast.lab.sweep.configuration import read_sweep
    from kvlab.fast.lab.sweep.jobs import make_plan

    wanted = read_sweep(configuration)
    chosen = running.choose_engine(engine, workers, gpus)
    directory = out or Path("kvlab-sweep") / configuration.stem
    if not dry_run:
        prepare_output("out", directory / running.PLAN)
    plan = make_plan(wanted)
    plan.check_methods()
    if dry_run:
        total, missing = running.count_jobs(plan, directory)
        say({"jobs": total, "missing": missing, "directory": str(directory)}, as_json)
        return
    try:
        with results_only(), reporting() as told:
            ran = running.run_sweep(plan, directory, chosen, told, compact)
    except KeyboardInterrupt:
        errors.print("stopped; nothing that was done is lost: the same command goes on from here")
        raise typer.Exit(STOPPED) from None
    for job, failure in ran.failures:
        where = f" ({directory / running.FAILURES / job.id}.txt)"
        errors.print(f"failed: {job.label}: {failure.reason}{where}", style="red", markup=False)
    if ran.failures:
        raise typer.Exit(1)
    say({"jobs": ran.total, "done now": ran.done, "directory": str(directory)}, as_json)


def say(facts: dict[str, int | str], as_json: bool) -> None:
    """Print some facts in one line, or as JSON."""
    if as_json:
        print_json(facts)
    else:
        print_line(", ".join(f"{name}: {value}" for name, value in facts.items()))


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
        print_json(reporting.to_json(stored, summaries))
        return
    for each in summaries:
        print_table(reporting.accuracy_table(each), f"{each.task}, model {each.model}")
        print_caption(reporting.accuracy_caption(each))
    print_line(f"report: {place / reporting.NAME}.html")
