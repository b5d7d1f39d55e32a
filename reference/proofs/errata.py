"""The page of errata, made of what the checks found and of what the methods leave open."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvlab.reference import methods
from kvlab.reference.method import Divergence
from kvlab.reference.proofs import PAPERS, Kind, Result, Verdict, count, paper

INTRODUCTION = """\
# Errata and readings

What the four papers print that does not hold, what they leave open and how kvlab reads it, and what
we found beside. `kvlab prove --pages docs` writes this page from the verdicts of the
[executable checks](proofs.md), the divergences that `kvlab methods METHOD --divergences` lists, and
a measurement on the embedded reasoner (`python -m kvlab.fast.lab.evaluate.readings`). Do not edit
it by hand. The [ledger](ledger.md) has everything that the papers contain, what holds included.
"""


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float

    def text(self, digits: int) -> str:
        """Return mean and interval with a sign, in bold where the interval excludes 0."""
        mean, low, high = (f"{x:+.{digits}f}" for x in (self.mean, self.low, self.high))
        shown = f"{mean} ({low} to {high})"
        return f"**{shown}**" if self.low > 0 or self.high < 0 else shown


@dataclass(frozen=True)
class Difference:
    """What another reading changes on the embedded reasoner: its figure minus the default's."""

    option: str
    """The other reading, in registry syntax, as its divergence lists it."""
    default_run: str
    """What was run: the default reading."""
    option_run: str
    """What was run: the other reading."""
    budget: int | None
    solved_default: float
    solved: Interval
    """Share of problems solved."""
    output_error: Interval
    kl: Interval


@dataclass(frozen=True)
class Differences:
    """A measurement of all readings."""

    problems: int
    conditions: str
    """Model, seed and budget, in words."""
    rows: tuple[Difference, ...]

    def of(self, option: str) -> list[Difference]:
        """Return what was measured of an option."""
        return [row for row in self.rows if row.option == option]


def page(results: Sequence[Result], differences: Differences) -> str:
    """Write the page in Markdown."""
    parts = [INTRODUCTION, measured_how(differences)]
    for name in PAPERS:
        own = [result for result in results if result.claim.paper == name]
        about = paper(name)
        parts.append(
            f"## {about.title}\n\n{about.source}; method `{name}`: {count(about.claims)}.\n"
        )
        parts += errata(own, Verdict.REFUTED, "Refuted as printed")
        parts.append("### Readings\n")
        parts += [reading(each, own, differences) for each in methods.divergences(name)]
        parts += errata(
            own, Verdict.NOT_HERE, "Printed of other models, not found on the embedded one"
        )
        for kind, heading in ((Kind.READING, "Readings, checked"), (Kind.OURS, "Findings of ours")):
            parts.append(f"### {heading}\n")
            parts += [noted(result) for result in own if result.claim.kind is kind]
    return "\n".join(parts)


def measured_how(differences: Differences) -> str:
    """Say how the differences were measured."""
    return (
        f"Differences below are the other reading's figure minus the default's, over "
        f"{differences.problems} held-out problems, with 95 % bootstrap intervals of the paired "
        f"differences; {differences.conditions}. *Solved* is the share of problems solved, *error* "
        "the attention output's distance from full attention, relative, *KL* that of the "
        "next-token distribution in nats. Bold: the interval excludes 0.\n"
    )


def errata(results: Sequence[Result], verdict: Verdict, heading: str) -> list[str]:
    """Write a section of the printed claims that ended in a verdict, if there are any."""
    found = [result for result in results if result.finding.verdict is verdict]
    return [f"### {heading}\n", *map(erratum, found)] if found else []


def erratum(result: Result) -> str:
    """Write what is printed and does not hold, why, and what is true instead."""
    claim, finding = result.claim, result.finding
    lines = [
        f"#### {claim.tag}: {claim.source}\n",
        f"{prose(claim.statement)}\n",
        f"- **Counterexample:** {prose(finding.counterexample)}",
        *([f"- **What is true:** {prose(finding.reading)}"] if finding.reading else []),
        f"- **Evidence:** {prose(finding.evidence)}",
    ]
    for topic in claim.topics:
        chosen = _divergence(claim.paper, topic)
        default = prose(chosen.default)
        lines.append(f"- **kvlab:** {topic}: {default} (option: {_option(chosen)})")
    return "\n".join(lines) + "\n"


def noted(result: Result) -> str:
    """Write a statement that holds, in two lines."""
    claim, finding = result.claim, result.finding
    return (
        f"**{claim.tag}** ({prose(claim.source)}). {prose(claim.statement)}\n"
        f"*{finding.verdict}:* {prose(finding.evidence)}\n"
    )


def reading(divergence: Divergence, results: Sequence[Result], differences: Differences) -> str:
    """Write what is open, what kvlab does, and what the other reading changes."""
    tags = [result.claim.tag for result in results if divergence.topic in result.claim.topics]
    lines = [
        f"#### {divergence.topic}\n",
        f"- **Paper:** {prose(divergence.paper)}",
        f"- **Elsewhere:** {prose(divergence.elsewhere)}",
        f"- **Default:** {prose(divergence.default)}",
        f"- **Option:** {_option(divergence)}",
    ]
    if tags:
        lines.append(f"- **Checks:** {', '.join(tags)}")
    measured = [row for spec in divergence.specifications for row in differences.of(spec)]
    if measured:
        lines += ["", *_table(measured)]
    return "\n".join(lines).rstrip() + "\n"


def prose(text: str) -> str:
    """Escape what Markdown would take for markup; Python-Markdown knows no escape of ``<``."""
    return re.sub(r"([*_|`])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))


def _table(rows: Sequence[Difference]) -> list[str]:
    lines: list[str] = []
    for default in dict.fromkeys(row.default_run for row in rows):
        lines += [
            f"Against `{default}`:",
            "",
            "| reading | entries | solved by default | solved | error | KL |",
            "|---|---|---|---|---|---|",
            *(_row(row) for row in rows if row.default_run == default),
            "",
        ]
    return lines


def _row(row: Difference) -> str:
    cells = (
        f"`{row.option_run}`",
        "own rule" if row.budget is None else str(row.budget),
        f"{row.solved_default:.2f}",
        row.solved.text(2),
        row.output_error.text(3),
        row.kl.text(3),
    )
    return f"| {' | '.join(cells)} |"


def _option(divergence: Divergence) -> str:
    return divergence.option if divergence.option == "none" else f"`{divergence.option}`"


def _divergence(name: str, topic: str) -> Divergence:
    found: Mapping[str, Divergence] = {each.topic: each for each in methods.divergences(name)}
    return found[topic]
