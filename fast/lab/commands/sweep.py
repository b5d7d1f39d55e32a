"""``kvlab sweep``: many comparisons, on one process or a Ray cluster, that survive being killed."""

import json
from pathlib import Path
from typing import Annotated

import typer

from kvlab.fast.lab.commands.options import prepare_output
from kvlab.fast.lab.commands.terminal import AsJson, console, errors, progress, results_only

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
    from kvlab.fast.lab.sweep.choice import choose_engine
    from kvlab.fast.lab.sweep.configuration import read_sweep
    from kvlab.fast.lab.sweep.dataset import Dataset
    from kvlab.fast.lab.sweep.jobs import make_plan

    wanted = read_sweep(configuration)
    chosen = choose_engine(engine, workers, gpus)
    directory = out or Path("kvlab-sweep") / configuration.stem
    if not dry_run:
        prepare_output("out", directory / running.PLAN)
    plan = make_plan(wanted)
    data = Dataset(directory / running.RESULTS)
    if dry_run:
        jobs = list(plan.jobs())
        missing = len({job.id for job in jobs} - data.done())
        _say({"jobs": len(jobs), "missing": missing, "directory": str(directory)}, as_json)
        return
    try:
        with results_only(), progress() as bar:
            task = bar.add_task("starting", total=None)
            ran = running.run(
                plan,
                directory,
                chosen,
                lambda done, total, job: bar.update(
                    task, completed=done, total=total, description=job.label if job else "starting"
                ),
                compact,
            )
    except KeyboardInterrupt:
        errors.print("stopped; nothing that was done is lost: the same command goes on from here")
        raise typer.Exit(STOPPED) from None
    for job, failure in ran.failures:
        where = f" ({directory / running.FAILURES / job.id}.txt)"
        errors.print(f"failed: {job.label}: {failure.reason}{where}", style="red", markup=False)
    if ran.failures:
        raise typer.Exit(1)
    _say({"jobs": ran.total, "done now": ran.done, "directory": str(directory)}, as_json)


def _say(facts: dict[str, int | str], as_json: bool) -> None:
    if as_json:
        print(json.dumps(facts, indent=1))
        return
    console.print(", ".join(f"{name}: {value}" for name, value in facts.items()), highlight=False)
