"""What the papers' claims come to."""

from collections.abc import Sequence
from pathlib import Path

from kvlab.fast.lab.pictures.table import Table
from kvlab.reference.proofs import Finding, claims
from kvlab.reference.proofs.claim import Claim


def finding(tag: str, model: Path) -> tuple[Claim, Finding]:
    """Check one claim of any paper.

    Raises:
        ValueError: if no claim has this tag.
    """
    for claim in claims():
        if claim.tag == tag:
            return claim, claim.run(model)
    raise ValueError(f"tag = {tag!r} must be one of {', '.join(each.tag for each in claims())}")


def verdicts(paper: str, model: Path, tags: Sequence[str] = ()) -> Table:
    """Check claims of a paper, all of them unless ``tags`` are given, and list the verdicts.

    Raises:
        ValueError: if the paper is unknown.
    """
    return Table(
        ("claim", "where", "statement", "verdict"),
        [
            (claim.tag, claim.source, claim.statement, str(claim.run(model).verdict))
            for claim in claims(paper)
            if not tags or claim.tag in tags
        ],
        words=4,
        wrap=True,
    )


def account(tag: str, model: Path) -> str:
    """Check one claim; say statement, verdict, evidence, counterexample and reading in words."""
    claim, found = finding(tag, model)
    parts = {
        f"{claim.tag}, {claim.source}": claim.statement,
        str(found.verdict): found.evidence,
        "counterexample": found.counterexample,
        "what is true": found.reading,
    }
    return "\n".join(f"{name}: {text}" for name, text in parts.items() if text)
