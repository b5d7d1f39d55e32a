"""The page of errata, made of what the checks found and of what the methods leave open."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvlab.reference import methods
from kvlab.reference.method import Divergence
from kvlab.reference.proofs import PAPERS, Result, Verdict, paper

INTRODUCTION = """\
# Errata and readings

What the four papers print that does not hold, what they leave open, which reading kvlab takes and
which option gives the other. `kvlab prove --errata docs/errata.md` writes this page from the
verdicts of the [executable checks](proofs.md), the divergences that `kvlab methods METHOD
--divergences` lists, and a measurement on the embedded reasoner (`python -m
kvlab.fast.lab.evaluate.readings`). Do not edit it by hand.
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
        parts.append(f"## {about.title}\n\n{about.source}; method `{name}`.\n")
        refuted = [result for result in own if result.finding.verdict is Verdict.REFUTED]
        parts.append("### Refuted as printed\n")
        parts += [erratum(result) for result in refuted] or ["Nothing.\n"]
        parts.append("### Readings\n")
        parts += [reading(each, own, differences) for each in methods.divergences(name)]
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


def erratum(result: Result) -> str:
    """Write what was refuted, why, and what is true instead."""
    claim, finding = result.claim, result.finding
    lines = [
        f"#### {claim.tag}: {claim.source}\n",
        f"{prose(claim.statement)}\n",
        f"- **Counterexample:** {prose(finding.counterexample)}",
        f"- **What is true:** {prose(finding.reading) or 'no reading was found that holds'}",
        f"- **Evidence:** {prose(finding.evidence)}",
    ]
    for topic in claim.topics:
        chosen = _divergence(claim.paper, topic)
        default = prose(chosen.default)
        lines.append(f"- **kvlab:** {topic}: {default} (option: {_option(chosen)})")
    return "\n".join(lines) + "\n"


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
