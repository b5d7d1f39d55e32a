"""``kvlab prove``: check every statement of the papers. Needs the reference alone."""

from collections import Counter
from typing import Annotated, Any

from rich.markup import escape
from rich.table import Table
from typer import Exit, Option

from kvlab.fast.lab.commands.options import PROCESSORS, Json, Workers
from kvlab.fast.lab.proving import proved
from kvlab.fast.lab.terminal import console, errors, print_json, reporting
from kvlab.reference import proofs
from kvlab.reference.proofs import machine_checked


def prove(
    paper: Annotated[
        str | None, Option(help=f"One of {', '.join(proofs.PAPERS)}; default: all.")
    ] = None,
    claim: Annotated[
        list[str] | None, Option(help="Tag of a claim, such as CA-1; repeat for several.")
    ] = None,
    rocq: Annotated[
        bool,
        Option(
            "--rocq",
            help="Let Rocq check the theorems that are written out for it, for every number of "
            "entries.",
        ),
    ] = False,
    workers: Workers = PROCESSORS,
    json: Json = False,
) -> None:
    """Check every theorem, equation and table of the papers that can be checked."""
    if rocq:
        if claim:
            raise ValueError("--claim names checks in Python: leave it out, or --rocq")
        _check_in_rocq(paper, json)
        return
    claims = proofs.claims(paper, claim)
    results: list[proofs.Result] = []
    waiting = Counter(each.paper for each in claims)
    try:
        with reporting(transient=True) as report:
            for result in proved(claims, workers):
                results.append(result)
                report(len(results), len(claims), result.name)
                waiting[result.claim.paper] -= 1
                if not (waiting[result.claim.paper] or json):
                    own = [each for each in results if each.claim.paper == result.claim.paper]
                    _show(sorted(own, key=lambda each: claims.index(each.claim)))
    except KeyboardInterrupt as stop:
        stop.add_note(f"{len(results)} of {len(claims)} claims were checked, no file was written")
        raise
    results.sort(key=lambda result: claims.index(result.claim))
    if json:
        print_json([_plain(result) for result in results])
    else:
        console.print(proofs.count([result.claim for result in results]), highlight=False)
    for result in results:
        if not result.as_expected:
            ends = f"{result.finding.verdict}, expected: {result.claim.expected}"
            errors.print(f"{result.name}: {ends}", style="red")
    if not all(result.as_expected for result in results):
        raise Exit(1)


def _check_in_rocq(paper: str | None, as_json: bool) -> None:
    """Show what Rocq says of each theorem; code 1 if it does not accept one."""
    results: list[machine_checked.Checked] = []
    chosen = machine_checked.theorems(paper)
    with reporting(transient=True) as report:
        for result in machine_checked.check(paper):
            results.append(result)
            report(len(results), len(chosen), result.theorem.name)
    if as_json:
        print_json([_plain_theorem(each) for each in results])
    else:
        _show_theorems(results)
    for each in results:
        if each.error:
            errors.print(f"{each.theorem.where}: {each.theorem.name}: {each.error}", style="red")
    if any(each.error for each in results):
        raise Exit(1)


def _plain_theorem(result: machine_checked.Checked) -> dict[str, Any]:
    theorem = result.theorem
    return {
        "paper": theorem.paper,
        "theorem": theorem.name,
        "place": theorem.place,
        "where": theorem.where,
        "verdict": result.verdict,
        "error": result.error,
        "axioms_of_the_file": list(result.axioms),
        "about": theorem.about,
        "python": theorem.python,
    }


def _show_theorems(results: list[machine_checked.Checked]) -> None:
    table = Table("file and line", "theorem, its place and its function", "verdict", expand=True)
    table.show_lines = True
    for each in results:
        theorem, color = each.theorem, "red" if each.error else "green"
        text = f"[bold]{theorem.name}[/]\n{escape(theorem.place)}\n{theorem.about}"
        where = theorem.where.removeprefix(machine_checked.PLACE)
        table.add_row(where, text, f"[{color}]{each.verdict}[/]")
    console.print(table)
    for paper, axioms in {each.theorem.paper: each.axioms for each in results}.items():
        console.print(f"{paper}.v assumes {', '.join(axioms) or 'nothing'}", highlight=False)
    accepted = sum(not each.error for each in results)
    console.print(f"{accepted} of {len(results)} theorems accepted by Rocq", highlight=False)


def _plain(result: proofs.Result) -> dict[str, Any]:
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
        "true_statement": finding.true_statement,
        "seconds": result.seconds,
    }


def _show(results: list[proofs.Result]) -> None:
    about = proofs.paper(results[0].claim.paper)
    title = f"{about.title} ({about.source})"
    table = Table(title=title, title_justify="left", expand=True, show_lines=True)
    table.add_column("claim", no_wrap=True)
    table.add_column("source", ratio=1)
    table.add_column("statement and evidence", ratio=5)
    table.add_column("s", justify="right", no_wrap=True)
    for result in results:
        source = f"{result.claim.kind}: {escape(result.claim.source)}"
        seconds = f"{result.seconds:.1f}"
        table.add_row(result.claim.tag, source, _described(result), seconds)
    console.print(table)


def _described(result: proofs.Result) -> str:
    finding, color = result.finding, "yellow" if result.finding.verdict.fails else "green"
    parts = {
        f"[bold {color}]{finding.verdict}[/]": finding.evidence,
        "[bold]counterexample[/]": finding.counterexample,
        "[bold]what is true[/]": finding.true_statement,
    }
    told = [f"{name}: {escape(text)}" for name, text in parts.items() if text]
    return "\n".join([escape(result.claim.statement), *told])
