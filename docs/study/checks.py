"""What checks found: of a policy's promises, and of a kernel."""

from collections.abc import Sequence

from kvlab.fast.lab.tables import Column, Table, tabulate
from kvlab.reference.conformance import Report, Status
from kvlab.reference.conformance.report import describe
from kvlab.reference.invariants import Kept


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
