"""Failures that are known: a list of cases that have to fail, kept beside an implementation.

A line of the file is a case's name, a target or a group, with ``*`` and ``?`` as in a shell, and a
reason after ``#``. A case that is listed and passes is a failure: the list must not grow stale.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from kvlab.reference.conformance.case import Case
from kvlab.reference.conformance.report import Group, Outcome, Report, Status

FILE = "kvlab-xfails.txt"
"""Name by which the command finds the list in the working directory."""


@dataclass(frozen=True)
class KnownFailure:
    """One line of the list."""

    pattern: str
    reason: str

    def covers(self, case: Case) -> bool:
        """Whether a case is meant, by its name, its target or its group."""
        return any(fnmatchcase(x, self.pattern) for x in (case.name, case.target, case.group))


def read_xfails(file: Path) -> tuple[KnownFailure, ...]:
    """Read a list.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a line has no reason.
    """
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        pattern, _, reason = (part.strip() for part in line.partition("#"))
        if pattern and not reason:
            raise ValueError(f"line {number} of {file} must end in a reason, after #: {pattern!r}")
        if pattern:
            found.append(KnownFailure(pattern, reason))
    return tuple(found)


def judged(report: Report, known: Sequence[KnownFailure]) -> Report:
    """Return a report in which known failures are expected, and unexpected passes are failures."""
    groups = (
        Group(group.target, group.group, tuple(_judge(each, known) for each in group.outcomes))
        for group in report.groups
    )
    return replace(report, groups=tuple(groups))


def _judge(outcome: Outcome, known: Sequence[KnownFailure]) -> Outcome:
    reasons = [each.reason for each in known if each.covers(outcome.case)]
    if not reasons or outcome.status == Status.NOT_TESTED:
        return outcome
    if outcome.status == Status.FAILED:
        return Outcome(outcome.case, Status.EXPECTED, reasons[0])
    said = f"passes, and is listed as a known failure ({reasons[0]}): remove it from the list"
    return Outcome(outcome.case, Status.FAILED, said)
