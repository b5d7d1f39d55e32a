"""What the papers' claims come to, checked by `kvlab.reference.proofs`."""

from collections.abc import Sequence

from kvlab.fast.lab.tables import Column, Table, tabulate
from kvlab.reference.proofs import claims


def explanation(tag: str) -> str:
    """Check one claim; say statement, verdict, evidence, counterexample and reading in words."""
    (claim,) = (each for each in claims() if each.tag == tag)
    found = claim.check()
    parts = {
        f"{claim.tag}, {claim.source}": claim.statement,
        str(found.verdict): found.evidence,
        "counterexample": found.counterexample,
        "what is true": found.reading,
    }
    return "\n".join(f"{name}: {text}" for name, text in parts.items() if text)


def verdicts(paper: str, tags: Sequence[str]) -> Table:
    """Check some claims of a paper, and list the verdicts."""
    columns = (
        Column("claim", "tag"),
        Column("kind"),
        Column("where", "source"),
        Column("statement"),
        Column("verdict", lambda claim: str(claim.check().verdict)),
    )
    chosen = [claim for claim in claims(paper) if claim.tag in tags]
    return tabulate(chosen, columns, words=5)
