"""The page of what the papers claim, and its data.

    python -m study.pages docs

checks every claim, and writes ``claims.md`` and ``claims.json``.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby, takewhile
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any

import typer

from kvlab.fast.lab.evaluate.statistics import Interval
from kvlab.fast.lab.files import write_text
from kvlab.fast.lab.proving import proved
from kvlab.fast.lab.tables import Column, escape_markdown, tabulate
from kvlab.fast.lab.terminal import progress_bar, run
from kvlab.reference import methods
from kvlab.reference.proofs import PAPERS, Result, claims, count, paper
from kvlab.reference.proofs.claim import Kind, Verdict
from kvlab.reference.proofs.ledger import LedgerRow, Measured, ledger
from kvlab.reference.proofs.machine_checked import theorems
from study.readings import Difference, differences, pairs
from study.stored import stored_summary

PAGE = Path(__file__).parents[1] / "claims.md"
"""What stands above the first paper is written by hand, and stays."""

PAGES = {
    "effects": "[the effect of hiding an entry](study/effects.md#scores)",
    "needles": "[SmolLM2's needles](results.md#needles)",
    "papers": "[score and protection apart](score_or_protection.md#the-four-papers-methods)",
}
"""Where the figures of items stand that other pages have."""

SWEEP = "kvlab sweep docs/study/results/"
"""How the commands begin that the page shortens to the sweep's name."""

Results = Mapping[str, Result]
"""By the tags of claims."""


def claims_page(results: Results) -> str:
    """Write everything that the papers contain, a block per item, in Markdown."""
    measured = list(differences(stored_summary("readings"), pairs()))
    first_heading = f"## {paper(next(iter(PAPERS))).title}\n"
    parts = [PAGE.read_text(encoding="utf-8").partition(first_heading)[0].removesuffix("\n")]
    for name in PAPERS:
        about = paper(name)
        parts.append(
            f"## {about.title}\n\n{about.source}; method `{name}`: {count(about.claims)}.\n"
        )
        rows = [row for row in ledger() if row.paper == name]
        first = {
            tag: row for row in reversed(rows) for tag in row.claims if tag not in row.elsewhere
        }
        parts += [block(row, results, first) for row in rows]
        parts.append(left_open(name, measured))
    return "\n".join(parts)


def anchor(tag: str) -> str:
    """Return what a link to a claim finds, outside of blocks that are closed."""
    return f'<span id="{tag.lower()}"></span>'


def folded(kind: str, title: str, lines: Sequence[str], before: str = "") -> str:
    """Write a block that opens."""
    title = title.replace('"', "&quot;")
    text = indent("\n\n".join(lines), "    ")
    return f'{before}\n\n??? {kind} "{title}"\n\n{text}\n'.lstrip()


def block(row: LedgerRow, results: Results, first: Mapping[str, LedgerRow]) -> str:
    """Write one item of a paper: what it says, and what became of it.

    A claim is written out in the first item that it is about; the others link to it. One that
    fails in other items alone agrees with the figures of this one.
    """
    own = [results[tag] for tag in row.claims]
    printed = [
        Verdict.FIGURES if each.claim.tag in row.elsewhere else each.finding.verdict
        for each in own
        if each.claim.kind is Kind.PRINTED
    ]
    if printed and set(printed) == {Verdict.REFUTED}:
        kind, status = "failure", "refuted"
    elif Verdict.REFUTED in printed:
        kind, status = "warning", "holds in part"
    elif any(verdict.fails for verdict in printed):
        kind, status = "example", "not shown on all models"
    elif (own or row.tests or row.figures) and row.declared:
        kind, status = "tip", "checked in part"
    elif own or row.tests or row.figures:
        kind, status = "success", "checked"
    elif row.measured:
        kind, status = "info", "measured"
    else:
        kind, status = "quote", "not checked"
    here = [tag for tag in row.claims if first[tag] is row]
    lines = [f"**{tag}** {found(results[tag], row.place)}{machine_checked(tag)}" for tag in here]
    others = [
        f"[{tag}](#{tag.lower()})" + (" (fails elsewhere alone)" * (tag in row.elsewhere))
        for tag in row.claims
        if tag not in here
    ]
    lines += [f"See {', '.join(others)}."] if others else []
    lines += [f"Computed at {', '.join(f'`[{tag}]`' for tag in row.tags)}."] if row.tags else []
    lines += ["Beside the [cost model](plan.md)."] if row.figures else []
    lines += [f"Measured, too: {', '.join(PAGES[x] for x in row.pages)}."] if row.pages else []
    lines += figures_of(row.measured)
    lines += [f"Not checked: {escape_markdown(row.declared)}"] if row.declared else []
    names = [each.partition(SWEEP)[2].partition("/")[0] for each in row.commands if SWEEP in each]
    lines += [f"Sweeps: {', '.join(f'`{each}`' for each in names)}."] if names else []
    told = ("kvlab prove --claim ", SWEEP)
    commands = [each for each in row.commands if not each.startswith(told)]
    lines += ["\n".join(["```", *commands, "```"])] if commands else []
    title = f"{row.place}: {escape_markdown(row.says)} ({status})"
    return folded(kind, title, lines, "".join(map(anchor, here)))


def found(result: Result, place: str) -> str:
    """Write a claim of an item and what its check found."""
    claim, finding = result.claim, result.finding
    told = [
        *([escape_markdown(claim.source)] if claim.source != place else []),
        *([str(claim.kind)] if claim.kind is not Kind.PRINTED else []),
        f"*{finding.verdict}*",
    ]
    lines = [f"({', '.join(told)}). {escape_markdown(claim.statement)}"]
    against = "Counterexample" if finding.verdict is Verdict.REFUTED else "Not shown by"
    for word, text in (
        (against, finding.counterexample),
        ("What is true", finding.true_statement),
        ("Evidence", finding.evidence),
    ):
        lines += [f"*{word}:* {escape_markdown(text)}"] if text else []
    return "<br>".join(lines)


def machine_checked(tag: str) -> str:
    """Name the theorems of a claim that Rocq checks."""
    named = " and ".join(f"`{each.name}`" for each in theorems() if tag in each.claims)
    return f"<br>*Rocq:* {named}" if named else ""


def figures_of(measured: Sequence[Measured]) -> Iterator[str]:
    """Write what was measured: a column per budget, and a row for methods with equal figures.

    Differences stand below what they are the differences of.
    """
    joined: list[Measured] = []
    for each in measured:
        if joined and each.what.startswith("difference") and each.where == joined[-1].where:
            joined[-1] = replace(joined[-1], figures={**joined[-1].figures, **each.figures})
        else:
            joined.append(each)
    for (what, model, names), group in groupby(joined, key=alike):
        columns = list(group)
        places = [each.where.removeprefix("model ").split(", ") for each in columns]
        parts = list(zip(*places, strict=False))
        shared = len(list(takewhile(same, parts))) if columns[1:] else 2
        heads = [", ".join(place[shared:]) or "mean" for place in places]
        where = ", ".join(places[0][:shared]) or model
        lines = [f"| {escape_markdown(what)}; {where} | {' | '.join(heads)} |"]
        lines += [f"|---|{'---|' * len(columns)}"]
        rows: dict[tuple[str, ...], list[str]] = {}
        for name in names:
            cells = tuple(written(Interval(*each.figures[name])) for each in columns)
            rows.setdefault(cells, []).append(f"`{name}`")
        lines += [f"| {', '.join(own)} | {' | '.join(cells)} |" for cells, own in rows.items()]
        yield "\n".join(lines)


def same(parts: Sequence[str]) -> bool:
    """Say whether all parts are equal."""
    return len(set(parts)) == 1


def alike(measured: Measured) -> tuple[str, str, tuple[str, ...]]:
    """Return what the columns of a table share."""
    return measured.what, measured.where.partition(",")[0], tuple(measured.figures)


def written(found: Interval) -> str:
    """Write a mean and its interval."""
    return found.written(".3g", "–" if found.low >= 0 else " to ")


def left_open(name: str, measured: Sequence[Difference]) -> str:
    """Link the interpretations of a method, and write what the measured ones change."""
    specs = {spec for each in methods.divergences(name) for spec in each.specifications}
    own = [row for row in measured if row.option in specs]
    return "\n\n".join(
        [
            "### What it leaves open",
            f"[Interpretations and their options](methods/{name}.md#errata-and-divergences).",
            *tables(own),
            "",
        ]
    )


def tables(rows: Sequence[Difference]) -> Iterator[str]:
    """Write one table for each default and number of entries."""
    for key, found in groupby(sorted(rows, key=shared_by), key=shared_by):
        default, entries, solved = key
        kept = f"with {entries} entries" if entries else "by its own rule"
        table = tabulate(list(found), COLUMNS).markdown("`{}`".format)
        yield f"Against `{default}`, which solves {solved:.2f} {kept}:\n\n{table}"


def shared_by(row: Difference) -> tuple[str, int, float]:
    """Return what a table's rows share: default, its entries (0 by its own rule), share solved."""
    return row.default_run, row.budget or 0, row.solved_default


COLUMNS = (
    Column("interpretation", "option_run"),
    Column(
        "solved", "solved", lambda x: x.written("+.2f", " to "), bold=lambda row: row.solved.decides
    ),
    Column(
        "error",
        "output_error",
        lambda x: x.written("+.3f", " to "),
        bold=lambda row: row.output_error.decides,
    ),
    Column("KL", "kl", lambda x: x.written("+.3f", " to "), bold=lambda row: row.kl.decides),
)


def data(results: Results) -> list[dict[str, Any]]:
    """Return the items as plain data: verdicts, figures and commands."""
    return [
        {
            **{
                name: getattr(row, name)
                for name in ("paper", "place", "says", "declared", "elsewhere")
            },
            "claims": {
                tag: {"source": results[tag].claim.source, **asdict(results[tag].finding)}
                for tag in row.claims
            },
            "measured": [asdict(each) for each in row.measured],
            "commands": row.commands,
        }
        for row in ledger()
    ]


def main(directory: Annotated[Path, typer.Argument(help="Where the pages are written.")]) -> None:
    """Check every claim, and write the page and its data."""
    with progress_bar() as progress:
        found = proved(claims(), os.cpu_count() or 1, progress)
    results = {each.claim.tag: each for each in found}
    write_text(directory / "claims.md", claims_page(results))
    text = json.dumps(data(results), ensure_ascii=False)
    write_text(directory / "claims.json", f"{text}\n")


if __name__ == "__main__":
    run(main)
