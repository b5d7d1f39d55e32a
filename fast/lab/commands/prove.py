"""``kvlab prove``: check every statement of the papers. Needs the reference alone."""

import json
import os
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from kvlab.fast.lab.commands.options import AsJson
from kvlab.fast.lab.terminal import console, errors, progress
from kvlab.reference import proofs
from kvlab.reference.models import reasoner_directory

STYLES = {
    proofs.Verdict.PROVED: "green",
    proofs.Verdict.EXHAUSTIVE: "green",
    proofs.Verdict.VERIFIED: "green",
    proofs.Verdict.ASYMPTOTIC: "cyan",
    proofs.Verdict.NOT_HERE: "yellow",
    proofs.Verdict.REFUTED: "yellow",
}


def prove(
    paper: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(proofs.PAPERS)}; default: all.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = os.cpu_count() or 1,
    claim: Annotated[
        list[str] | None, typer.Option(help="Tag of a claim, such as CA-1; repeat for several.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check every theorem, equation and table of the papers that can be checked."""
    claims = proofs.claims(paper, claim)
    results = []
    with progress(transient=True) as bar:
        task = bar.add_task("proving", total=len(claims))
        for result in proofs.prove(reasoner_directory(), claims, workers):
            results.append(result)
            bar.update(task, advance=1, description=f"{result.claim.paper} {result.claim.tag}")
    results.sort(key=lambda result: claims.index(result.claim))
    if as_json:
        print(json.dumps([plain(result) for result in results], indent=1))
    else:
        show(results)
    if unexpected := [result for result in results if not result.as_expected]:
        for result in unexpected:
            errors.print(
                f"{result.claim.paper} {result.claim.tag}: {result.finding.verdict}, "
                f"expected: {result.claim.expected}",
                style="red",
            )
        raise typer.Exit(1)


def plain(result: proofs.Result) -> dict[str, Any]:
    """Return a result as plain data."""
    claim, finding = result.claim, result.finding
    return {
        "paper": claim.paper,
        "claim": claim.tag,
        "kind": str(claim.kind),
        "check": claim.name,
        "source": claim.source,
        "statement": claim.statement,
        "verdict": str(finding.verdict),
        "as_expected": result.as_expected,
        "evidence": finding.evidence,
        "counterexample": finding.counterexample,
        "reading": finding.reading,
        "false": [each.words for each in claim.neighbours if not each.holds],
        "put_right": [each.words for each in claim.neighbours if each.holds],
        "figures": dict(finding.figures),
        "seconds": result.seconds,
    }


def show(results: list[proofs.Result]) -> None:
    """Print one table per paper, and count claims by kind."""
    for name in proofs.PAPERS:
        own = [result for result in results if result.claim.paper == name]
        if not own:
            continue
        title = proofs.paper(name)
        table = Table(title=f"{title.title} ({title.source})", title_justify="left", expand=True)
        table.add_column("claim", no_wrap=True)
        table.add_column("source", ratio=1)
        table.add_column("statement and evidence", ratio=5)
        table.add_column("s", justify="right", no_wrap=True)
        for result in own:
            table.add_row(
                result.claim.tag,
                f"{result.claim.kind}: {escape(result.claim.source)}",
                described(result),
                f"{result.seconds:.1f}",
                end_section=True,
            )
        console.print(table)
    console.print(proofs.count([result.claim for result in results]), highlight=False)


def described(result: proofs.Result) -> str:
    """Return what a row says."""
    finding = result.finding
    lines = [
        escape(result.claim.statement),
        f"[bold {STYLES[finding.verdict]}]{finding.verdict}[/]: {escape(finding.evidence)}",
    ]
    if finding.counterexample:
        lines.append(f"[bold]counterexample[/]: {escape(finding.counterexample)}")
    if finding.reading:
        lines.append(f"[bold]what is true[/]: {escape(finding.reading)}")
    for each in result.claim.neighbours:
        told = "accepted, if put right" if each.holds else "refused, if false"
        lines.append(f"[dim]{told}: {escape(each.words)}[/]")
    return "\n".join(lines)
