"""The pages of errata and of the ledger.

    python -m study.pages docs

checks every claim, and writes both pages.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from kvlab.fast.lab.tables import Column, escape_markdown, tabulate
from kvlab.reference import methods
from kvlab.reference.files import Divergence
from kvlab.reference.proofs import PAPERS, Result, claims, count, paper, prove
from kvlab.reference.proofs.claim import ON_OTHER_MODELS, Claim, Kind, Verdict
from kvlab.reference.proofs.ledger import LedgerRow, ledger
from study.readings import Difference, differences, pairs
from study.stored import spread, stored_summary

HEADS = Path(__file__).parent / "heads"


def errata_page(results: Sequence[Result]) -> str:
    """Write the errata in Markdown: what the checks found, what the methods leave open."""
    measured = list(differences(stored_summary("readings"), pairs()))
    parts = [(HEADS / "errata.md").read_text(encoding="utf-8")]
    for name in PAPERS:
        own = [result for result in results if result.claim.paper == name]
        about = paper(name)
        parts.append(
            f"## {about.title}\n\n{about.source}; method `{name}`: {count(about.claims)}.\n"
        )
        parts += errata(own, (Verdict.REFUTED,), "Refuted as printed")
        parts.append("### Readings\n")
        parts += [reading(each, own, measured) for each in methods.divergences(name)]
        parts += errata(own, ON_OTHER_MODELS, "Printed of other models, not found on all of ours")
        for kind, heading in ((Kind.READING, "Readings, checked"), (Kind.OURS, "Findings of ours")):
            parts.append(f"### {heading}\n")
            parts += [noted(result) for result in own if result.claim.kind is kind]
    return "\n".join(parts)


def errata(results: Sequence[Result], verdicts: Sequence[Verdict], heading: str) -> list[str]:
    """Write a section of the printed claims that ended so, if there are any."""
    found = [result for result in results if result.finding.verdict in verdicts]
    return [f"### {heading}\n", *map(erratum, found)] if found else []


def erratum(result: Result) -> str:
    """Write what is printed and does not hold, why, and what is true instead."""
    claim, finding = result.claim, result.finding
    against = "Counterexample" if finding.verdict is Verdict.REFUTED else str(finding.verdict)
    lines = [
        f"#### {claim.tag}: {claim.source}\n",
        f"{escape_markdown(claim.statement)}\n",
        f"- **{against[0].upper()}{against[1:]}:** {escape_markdown(finding.counterexample)}",
        *([f"- **What is true:** {escape_markdown(finding.reading)}"] if finding.reading else []),
        f"- **Evidence:** {escape_markdown(finding.evidence)}",
    ]
    for topic in claim.topics:
        chosen = next(each for each in methods.divergences(claim.paper) if each.topic == topic)
        default = escape_markdown(chosen.default)
        lines.append(f"- **kvlab:** {topic}: {default} (option: {_option(chosen)})")
    return "\n".join(lines) + "\n"


def noted(result: Result) -> str:
    """Write a statement that holds, in two lines."""
    claim, finding = result.claim, result.finding
    return (
        f"**{claim.tag}** ({escape_markdown(claim.source)}). {escape_markdown(claim.statement)}\n"
        f"*{finding.verdict}:* {escape_markdown(finding.evidence)}\n"
    )


def reading(
    divergence: Divergence, results: Sequence[Result], measured: Sequence[Difference]
) -> str:
    """Write what is open, what kvlab does, and what the other reading changes."""
    tags = [result.claim.tag for result in results if divergence.topic in result.claim.topics]
    lines = [
        f"#### {divergence.topic}\n",
        f"- **Paper:** {escape_markdown(divergence.paper)}",
        f"- **Elsewhere:** {escape_markdown(divergence.elsewhere)}",
        f"- **Default:** {escape_markdown(divergence.default)}",
        f"- **Option:** {_option(divergence)}",
    ]
    if tags:
        lines.append(f"- **Checks:** {', '.join(tags)}")
    own = [row for spec in divergence.specifications for row in measured if row.option == spec]
    if own:
        lines += ["", *tables(own)]
    return "\n".join(lines).rstrip() + "\n"


def tables(rows: Sequence[Difference]) -> Iterator[str]:
    """Write one table for each default reading."""
    for default in dict.fromkeys(row.default_run for row in rows):
        own = [row for row in rows if row.default_run == default]
        yield f"Against `{default}`:\n\n{tabulate(own, COLUMNS).markdown('`{}`'.format)}\n"


COLUMNS = (
    Column("reading", "option_run"),
    Column("entries", lambda row: "own rule" if row.budget is None else row.budget),
    Column("solved by default", "solved_default", ".2f"),
    Column("solved", "solved", lambda x: spread(x, "+.2f"), bold=lambda row: row.solved.decides),
    Column(
        "error",
        "output_error",
        lambda x: spread(x, "+.3f"),
        bold=lambda row: row.output_error.decides,
    ),
    Column("KL", "kl", lambda x: spread(x, "+.3f"), bold=lambda row: row.kl.decides),
)


def _option(divergence: Divergence) -> str:
    return divergence.option if divergence.option == "none" else f"`{divergence.option}`"


def ledger_page() -> str:
    """Write the ledger in Markdown: everything that the papers contain."""
    parts = [(HEADS / "ledger.md").read_text(encoding="utf-8")]
    by_tag = {claim.tag: claim for claim in claims()}
    for name in PAPERS:
        rows, about = [row for row in ledger() if row.paper == name], paper(name)
        alone = sum(not (row.claims or row.tests or row.figures or row.measured) for row in rows)
        parts += [
            f"## {about.title}\n",
            f"{about.source}: {len(rows)} rows, {alone} of them only declared; "
            f"{count(about.claims)}.\n",
            "| where | what | checked | measured | declared | repeat with |",
            "|---|---|---|---|---|---|",
            *(_line(row, by_tag) for row in rows),
            "",
        ]
    return "\n".join(parts)


def _line(row: LedgerRow, by_tag: Mapping[str, Claim]) -> str:
    found = [by_tag[tag] for tag in row.claims]
    checked = [f"{each.tag} `{each.name}`: {each.expected}" for each in found]
    checked += [f"`{test.rpartition('::')[2]}`" for test in row.tests]
    checked += ["beside the [cost model](plan.md)"] if row.figures else []
    cells = (
        row.place,
        escape_markdown(row.says),
        "<br>".join(checked),
        "<br>".join(each.text() for each in row.measured),
        escape_markdown(row.declared),
        "<br>".join(f"`{command}`" for command in row.commands),
    )
    return f"| {' | '.join(cells)} |"


def main(directory: Annotated[Path, typer.Argument(help="Where the pages are written.")]) -> None:
    """Check every claim, and write both pages."""
    known = claims()
    results = sorted(
        prove(known, os.cpu_count() or 1),
        key=lambda result: known.index(result.claim),
    )
    (directory / "errata.md").write_text(errata_page(results), encoding="utf-8")
    (directory / "ledger.md").write_text(ledger_page(), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
