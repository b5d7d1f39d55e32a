"""The result of a check: as objects, in words, as plain data and as JUnit XML."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from kvlab.reference.conformance.case import Case
from kvlab.reference.conformance.minimise import Found

IN_FULL = 3
"""Failures that are shown with their smallest inputs; of further ones only the reason is shown."""


ABOUT_GROUPS: Mapping[str, Mapping[str, str]] = tomllib.loads(
    Path(__file__).with_name("groups.toml").read_text(encoding="utf-8")
)
"""By group: what it ``stresses``, ``what`` went wrong in somebody's code, and the public ``thread``
about it. Without a thread, the bug was planted, and the group finds it."""


class Status(StrEnum):
    """How a case ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_TESTED = "not tested"
    EXPECTED = "expected to fail"


@dataclass(frozen=True)
class Outcome:
    """The result of one case."""

    case: Case
    status: Status
    reason: str = ""
    """What is wrong, or why it was not tested."""
    smallest: Found | None = None
    """The same failure with the smallest inputs; only the first failure of a group has it."""
    compared: bool = False
    """Whether numbers are wrong, and not a shape, a name, or the call itself."""


@dataclass(frozen=True)
class Group:
    """The results of the cases of one target in one group."""

    target: str
    group: str
    outcomes: tuple[Outcome, ...]

    def count(self, status: Status) -> int:
        """Number of cases that ended so."""
        return sum(outcome.status == status for outcome in self.outcomes)

    @property
    def first_failure(self) -> Outcome | None:
        """The first case that failed."""
        failures = (each for each in self.outcomes if each.status is Status.FAILED)
        return next(failures, None)


@dataclass(frozen=True)
class Report:
    """The results of an implementation on all cases that were run."""

    groups: tuple[Group, ...]
    not_offered: tuple[str, ...]
    """Targets that have vectors and that the implementation does not offer."""

    @property
    def passed(self) -> bool:
        """Whether nothing failed and something was tested."""
        return self.count(Status.FAILED) == 0 and self.count(Status.PASSED) > 0

    def count(self, status: Status) -> int:
        """Number of cases that ended so."""
        return sum(group.count(status) for group in self.groups)

    @property
    def untested(self) -> tuple[str, ...]:
        """Targets of which no case was tested."""
        tried = {
            group.target
            for group in self.groups
            if group.count(Status.PASSED) or group.count(Status.FAILED)
        }
        found = (group.target for group in self.groups if group.target not in tried)
        return (*dict.fromkeys(found), *self.not_offered)

    def failures(self) -> list[Outcome]:
        """Return the first failure of every group that has one."""
        return [found for group in self.groups if (found := group.first_failure) is not None]

    def raise_for_failures(self) -> None:
        """Raise AssertionError that shows the first failure of every group."""
        failures = self.failures()
        if failures:
            raise AssertionError(f"{self.count(Status.FAILED)} cases failed\n\n{shown(failures)}")
        if not self.count(Status.PASSED):
            raise AssertionError("nothing was tested")


def shown(failures: list[Outcome]) -> str:
    """Describe failures, the first ones with their smallest inputs."""
    described = [describe(each) for each in failures[:IN_FULL]]
    others = [f"{each.case.name}: {each.reason}" for each in failures[IN_FULL:]]
    return "\n\n".join([*described, "\n".join(others)]).strip()


def describe(outcome: Outcome) -> str:
    """Say what failed, with the smallest inputs that still fail."""
    lines = [f"{outcome.case.name}: {outcome.reason}"]
    if outcome.compared and outcome.case.group in ABOUT_GROUPS:
        known = ABOUT_GROUPS[outcome.case.group]
        bug = f"{known['what']} ({known.get('thread', 'planted')})"
        lines.append(f"  one bug that this group is known to find: {bug}")
    if outcome.smallest is not None:
        lines.append(outcome.smallest.describe())
    return "\n".join(lines)


def to_plain(report: Report) -> dict[str, Any]:
    """Return a report as data that JSON can hold."""
    return {
        "passed": report.passed,
        "cases": {str(status): report.count(status) for status in Status},
        "groups": [_group_to_plain(group) for group in report.groups],
        "not_offered": list(report.not_offered),
    }


def _group_to_plain(group: Group) -> dict[str, Any]:
    failure = group.first_failure
    return {
        "target": group.target,
        "group": group.group,
        **{str(status).replace(" ", "_"): group.count(status) for status in Status},
        "about": ABOUT_GROUPS.get(group.group),
        "reasons_not_tested": sorted(
            {each.reason for each in group.outcomes if each.status == Status.NOT_TESTED}
        ),
        "first_failure": None if failure is None else _failure_to_plain(failure),
    }


def _failure_to_plain(outcome: Outcome) -> dict[str, Any]:
    smallest = outcome.smallest
    return {
        "case": outcome.case.name,
        "reason": outcome.reason,
        "smallest": None
        if smallest is None
        else {
            "reason": smallest.reason,
            "parameters": dict(smallest.case.parameters),
            "inputs": {name: _as_lists(x) for name, x in smallest.case.inputs.items()},
            "expected": {
                name: _as_lists(each.value) for name, each in smallest.case.expected.items()
            },
        },
    }


def _as_lists(x: np.ndarray) -> Any:
    """Return nested lists; NaN and infinities, which JSON does not know, as text."""
    if x.dtype.kind != "f" or np.isfinite(x).all():
        return x.tolist()
    return np.where(np.isfinite(x), x, x.astype(str).astype(object)).tolist()


def to_junit(report: Report) -> str:
    """Return a report as JUnit XML: one suite per target, one test case per vector."""
    root = ElementTree.Element("testsuites", name="kvlab conformance")
    for target in dict.fromkeys(group.target for group in report.groups):
        groups = [group for group in report.groups if group.target == target]
        outcomes = [outcome for group in groups for outcome in group.outcomes]
        failed = sum(outcome.status == Status.FAILED for outcome in outcomes)
        passed = sum(outcome.status == Status.PASSED for outcome in outcomes)
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=target,
            tests=str(len(outcomes)),
            failures=str(failed),
            skipped=str(len(outcomes) - failed - passed),
        )
        for outcome in outcomes:
            _add_outcome(suite, outcome)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add_outcome(suite: ElementTree.Element, outcome: Outcome) -> None:
    case = ElementTree.SubElement(
        suite, "testcase", classname=outcome.case.target, name=outcome.case.name
    )
    if outcome.status == Status.FAILED:
        failure = ElementTree.SubElement(case, "failure", message=_printable(outcome.reason))
        failure.text = _printable(describe(outcome))
    elif outcome.status in (Status.NOT_TESTED, Status.EXPECTED):
        ElementTree.SubElement(case, "skipped", message=_printable(outcome.reason))


def _printable(text: str) -> str:
    return "".join(c if c in "\t\n" or ord(c) >= 32 else "?" for c in text)
