"""``kvlab simulate``: replay a trace under methods and budgets. Needs the reference alone."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from kvlab.fast.lab.commands.options import prepare_output, read_methods
from kvlab.fast.lab.commands.simulation import COLUMNS, Row, cells, summed_up, title
from kvlab.fast.lab.commands.terminal import AsJson, console, progress
from kvlab.fast.lab.evaluate.compare import takes_budget
from kvlab.reference import methods as registry
from kvlab.reference.policy import Policy
from kvlab.reference.selection import budget_entries
from kvlab.reference.traces.judge import EXACT, judge
from kvlab.reference.traces.stored import StoredTrace
from kvlab.reference.traces.trace import Recording

DEFAULT_METHODS = "streaming_llm tova h2o caote:h2o lazy_eviction@window=16,threshold=0.01"


def simulate(
    trace: Annotated[Path, typer.Argument(help="Trace, as `kvlab trace` writes it.")],
    methods: Annotated[
        str, typer.Option(help="Registry syntax, separated by ';' or blanks.")
    ] = DEFAULT_METHODS,
    budget: Annotated[
        list[str] | None,
        typer.Option(help="Entries, or percent of the trace's tokens; may be repeated."),
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(help="Tokens per block of the prompt; default: all at once.")
    ] = None,
    threshold: Annotated[
        float, typer.Option(help="Attention that counts as an activation.")
    ] = 0.01,
    gap: Annotated[
        int, typer.Option(help="Tokens without activation before an entry regains importance.")
    ] = 16,
    exact: Annotated[
        bool | None,
        typer.Option(
            "--exact/--bound",
            help=f"Find the best keep sets, or bound them; default: exact up to {EXACT} tokens.",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = os.cpu_count() or 1,
    report: Annotated[Path | None, typer.Option(help="HTML report to write.")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask what methods would have kept of a recorded generation, and what that would have cost."""
    if report is not None:
        prepare_output("report", report)
    recorded = StoredTrace(trace)
    L, _, _, tokens, _ = recorded.shape
    if recorded.prompt == tokens:
        raise ValueError(f"{trace} holds a prompt of {tokens} tokens and nothing generated")
    budgets = sorted({budget_entries(text, tokens) for text in budget or ("50%", "70%")})
    asked = questions(recorded, read_methods(methods), budgets)
    policies = [policy for _, policy in asked if isinstance(policy, Policy)]
    if not policies:
        raise ValueError(f"no method could run; {asked[0][0].method}: {asked[0][0].refusal}")
    layers = []
    with progress(transient=True) as bar:
        task = bar.add_task("layers", total=L)
        for judged in judge(recorded, policies, block_size, workers, threshold, gap, exact):
            layers.append(judged)
            bar.advance(task)
    per_policy = iter(zip(*layers, strict=True))
    rows = [
        row if policy is None else summed_up(recorded, row, next(per_policy))
        for row, policy in asked
    ]
    exactly = tokens <= EXACT if exact is None else exact
    if report is not None:
        from kvlab.fast.lab.commands.simulation_report import write_report

        write_report(recorded, rows, layers, caption(exactly), report)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    console.print(table(recorded, rows))
    console.print(caption(exactly), style="dim")
    if report is not None:
        console.print(f"report: {report}", highlight=False, soft_wrap=True)


def questions(
    trace: Recording, specs: Sequence[str], budgets: Sequence[int]
) -> list[tuple[Row, Policy | None]]:
    """Make the policies; one that cannot work with this trace is refused in its row.

    Raises:
        ValueError: if a method is unknown or an option of it is not allowed.
    """
    found: list[tuple[Row, Policy | None]] = []
    for spec in specs:
        registry.parse(spec)
        for entries in budgets if takes_budget(spec) else [None]:
            try:
                policy = registry.get(spec, entries)
                check_fits(policy, trace)
            except ValueError as error:
                found.append((Row(spec, entries, str(error)), None))
            else:
                found.append((Row(spec, entries), policy))
    return found


def check_fits(policy: Policy, trace: Recording) -> None:
    """Raise ValueError if a policy cannot work with a trace's prompt or head dimension."""
    policy.check(trace.prompt)
    if policy.reposition:
        raise ValueError("reposition needs a model's rotary embedding")
    group, d = getattr(policy.precision, "group", 1), trace.shape[4]
    if hasattr(policy.precision, "residual") and d % group:
        raise ValueError(f"group = {group} must divide the head dimension {d}")


def caption(exact: bool) -> str:
    """Explain the columns."""
    best = (
        "the best keep sets, 100, which know the future"
        if exact
        else "a bound that no keep sets can exceed, 100"
    )
    return (
        "over the generated tokens, all recorded layers and KV heads · entries, KiB: largest · "
        "mass: share of the full cache's attention on what is there, % · skill: of the way from "
        f"evicting at random, 0, to {best} · error: attention output, relative · hits: there when "
        "it regained importance, % · early: evicted, and activated again later, %"
    )


def table(trace: Recording, rows: Sequence[Row]) -> Table:
    """Lay the figures out."""
    heading = escape(title(trace))
    result = Table(title=heading, box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    result.add_column("method", overflow="fold")
    for name in COLUMNS:
        result.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        if row.refusal is None:
            result.add_row(row.method, *cells(row))
        else:
            budget = "own rule" if row.budget is None else str(row.budget)
            reason = f"{row.method}\n[dim]{row.refusal}[/dim]"
            result.add_row(reason, budget, *["–"] * (len(COLUMNS) - 1))
    return result
