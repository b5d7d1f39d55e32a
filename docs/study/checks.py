"""What checks found: of a policy's promises, of a kernel, and of the papers' claims."""

from collections.abc import Sequence

from kvlab.fast.lab.tables import Column, Table, tabulate
from kvlab.reference.conformance import Report, Status
from kvlab.reference.conformance.report import describe
from kvlab.reference.invariants import Kept
from kvlab.reference.proofs import claims


def promises(found: Sequence[Kept]) -> Table:
    """List every promise of a policy, and what is wrong."""
    columns = (
        Column("promise"),
        Column("streams"),
        Column("verdict", lambda each: each.objection or "kept"),
    )
    return tabulate(found, columns, words=3)


def vector_groups(report: Report) -> Table:
    """List the groups of test vectors, and how many of their cases passed and failed."""
    columns = (
        Column("target"),
        Column("group"),
        Column("first failure", lambda group: getattr(group.first_failure, "reason", "")),
        Column("passed", lambda group: group.count(Status.PASSED)),
        Column("failed", lambda group: group.count(Status.FAILED)),
        Column("not tested", lambda group: group.count(Status.NOT_TESTED)),
    )
    return tabulate(report.groups, columns, words=3)


def smallest_failure(report: Report) -> str:
    """Return the first failure in words, with the smallest inputs that still fail."""
    return describe(report.failures()[0])


def explanation(tag: str) -> str:
    """Check one claim; tell statement, verdict, evidence, counterexample and interpretation."""
    (claim,) = (each for each in claims() if each.tag == tag)
    found = claim.check()
    parts = {
        f"{claim.tag}, {claim.source}": claim.statement,
        str(found.verdict): found.evidence,
        "counterexample": found.counterexample,
        "what is true": found.true_statement,
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
