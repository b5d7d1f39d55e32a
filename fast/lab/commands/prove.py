"""``kvlab prove``: check every statement of the papers. Needs the reference alone."""

from collections import Counter

from typer import Exit

from kvlab.fast.lab.commands.options import PROCESSORS
from kvlab.fast.lab.proving import proved
from kvlab.fast.lab.tables import Column, Layout, plain, tabulate
from kvlab.fast.lab.terminal import errors, print_json, print_line, print_table, progress_bar
from kvlab.reference import proofs
from kvlab.reference.proofs import machine_checked


def prove(
    paper: str | None = None,
    claim: list[str] | None = None,
    rocq: bool = False,
    workers: int = PROCESSORS,
    json: bool = False,
) -> None:
    """Check every theorem, equation and table of the papers that can be checked."""
    if rocq:
        if claim:
            raise ValueError("--claim names checks in Python: leave it out, or --rocq")
        _check_in_rocq(paper, json)
        return
    claims = proofs.claims(paper, claim)
    checked: list[proofs.Result] = []
    waiting = Counter(each.paper for each in claims)

    def tell(result: proofs.Result) -> None:
        checked.append(result)
        waiting[result.claim.paper] -= 1
        if not (waiting[result.claim.paper] or json):
            own = [each for each in checked if each.claim.paper == result.claim.paper]
            _show(sorted(own, key=lambda each: claims.index(each.claim)))

    try:
        with progress_bar(transient=True) as progress:
            results = proved(claims, workers, progress, tell)
    except KeyboardInterrupt as stop:
        stop.add_note(f"{len(checked)} of {len(claims)} claims were checked, no file was written")
        raise
    if json:
        print_json([plain("claim", each) for each in results])
    else:
        print_line(proofs.count([result.claim for result in results]))
    for result in results:
        if not result.as_expected:
            ends = f"{result.finding.verdict}, expected: {result.claim.expected}"
            errors.print(f"{result.name}: {ends}", style="red")
    if not all(result.as_expected for result in results):
        raise Exit(1)


def _check_in_rocq(paper: str | None, as_json: bool) -> None:
    results: list[machine_checked.Checked] = []
    chosen = machine_checked.theorems(paper)
    with progress_bar(transient=True) as progress:
        for result in machine_checked.check(paper):
            results.append(result)
            progress(len(results), len(chosen), result.theorem.name)
    if as_json:
        print_json([plain("theorem", each) for each in results])
    else:
        _show_theorems(results)
    for each in results:
        if each.error:
            errors.print(f"{each.theorem.where}: {each.theorem.name}: {each.error}", style="red")
    if any(each.error for each in results):
        raise Exit(1)


THEOREMS = [
    Column("file and line", lambda each: each.theorem.where.removeprefix(machine_checked.PLACE)),
    Column(
        "theorem, its place and its function",
        lambda each: "\n".join([each.theorem.name, each.theorem.place, each.theorem.about]),
    ),
    Column("verdict"),
]


def _show_theorems(results: list[machine_checked.Checked]) -> None:
    print_table(tabulate(results, THEOREMS, words=3))
    for paper, axioms in {each.theorem.paper: each.axioms for each in results}.items():
        print_line(f"{paper}.v assumes {', '.join(axioms) or 'nothing'}")
    accepted = sum(not each.error for each in results)
    print_line(f"{accepted} of {len(results)} theorems accepted by Rocq")


def _show(results: list[proofs.Result]) -> None:
    about, columns = proofs.paper(results[0].claim.paper), [Column("claim", "claim.tag")]
    columns.append(Column("source", lambda each: f"{each.claim.kind}: {each.claim.source}"))
    columns += [Column("statement and evidence", _described), Column("s", "seconds", ".1f")]
    print_table(Layout(columns, words=3).table(results, f"{about.title} ({about.source})"))


def _described(result: proofs.Result) -> str:
    finding = result.finding
    parts = {
        str(finding.verdict): finding.evidence,
        "counterexample": finding.counterexample,
        "what is true": finding.true_statement,
    }
    told = [f"{name}: {text}" for name, text in parts.items() if text]
    return "\n".join([result.claim.statement, *told])
