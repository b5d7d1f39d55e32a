"""What checks found: of a policy's promises, and of a kernel."""

from collections.abc import Mapping, Sequence

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


def failing_groups(reports: Mapping[str, Report]) -> Table:
    """List which groups found the fault of each of several implementations."""
    rows = []
    for name, report in reports.items():
        failing = [group.group for group in report.groups if group.first_failure is not None]
        rows.append((name, ", ".join(failing) or "none", str(report.count(Status.FAILED))))
    return Table(("implementation", "groups that fail", "cases failed"), rows, words=2)


def smallest_failure(report: Report) -> str:
    """Return the first failure in words, with the smallest inputs that still fail.

    Raises:
        ValueError: if nothing failed.
    """
    failures = report.failures()
    if not failures:
        raise ValueError("report must hold a failure, everything passed")
    return describe(failures[0])
