"""What the conformance kit says about a kernel."""

from collections.abc import Mapping

from kvlab.fast.lab.pictures.table import Table
from kvlab.reference.conformance import Report, Status
from kvlab.reference.conformance.report import describe


def groups(report: Report) -> Table:
    """List the groups of test vectors, and how many of their cases passed and failed."""
    return Table(
        ("target", "group", "passed", "failed", "not tested", "first failure"),
        [
            (
                group.target,
                group.group,
                *(str(group.count(status)) for status in Status),
                "" if group.first_failure is None else group.first_failure.reason,
            )
            for group in report.groups
        ],
        words=2,
        wrap=True,
    )


def caught(reports: Mapping[str, Report]) -> Table:
    """List which groups found what is wrong with each of several implementations."""
    rows = []
    for name, report in reports.items():
        failing = [group.group for group in report.groups if group.first_failure is not None]
        rows.append((name, str(report.count(Status.FAILED)), ", ".join(failing) or "none"))
    return Table(("implementation", "cases failed", "groups that fail"), rows, wrap=True)


def smallest_failure(report: Report) -> str:
    """Return the first failure in words, with the smallest inputs that still fail.

    Raises:
        ValueError: if nothing failed.
    """
    failures = report.failures()
    if not failures:
        raise ValueError("report must hold a failure, everything passed")
    return describe(failures[0])
