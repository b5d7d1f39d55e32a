"""A report as plain data and as JUnit XML."""

from typing import Any
from xml.etree import ElementTree

import numpy as np

from kvlab.reference.conformance.checker import Group, Outcome, Report, Status, describe


def to_plain(report: Report) -> dict[str, Any]:
    """Return a report as what JSON can hold."""
    return {
        "passed": report.passed,
        "cases": {str(status): report.count(status) for status in Status},
        "groups": [group_to_plain(group) for group in report.groups],
        "not_offered": list(report.not_offered),
    }


def group_to_plain(group: Group) -> dict[str, Any]:
    """Return a group as what JSON can hold."""
    failure = group.first_failure
    return {
        "target": group.target,
        "group": group.group,
        **{str(status).replace(" ", "_"): group.count(status) for status in Status},
        "reasons_not_tested": sorted(
            {each.reason for each in group.outcomes if each.status == Status.NOT_TESTED}
        ),
        "first_failure": None if failure is None else failure_to_plain(failure),
    }


def failure_to_plain(outcome: Outcome) -> dict[str, Any]:
    """Return a failure and its smallest inputs as what JSON can hold."""
    smallest = outcome.smallest
    return {
        "case": outcome.case.name,
        "reason": outcome.reason,
        "smallest": None
        if smallest is None
        else {
            "reason": smallest.reason,
            "parameters": dict(smallest.case.parameters),
            "inputs": {name: as_lists(x) for name, x in smallest.case.inputs.items()},
            "expected": {
                name: as_lists(each.value) for name, each in smallest.case.expected.items()
            },
        },
    }


def as_lists(x: np.ndarray) -> Any:
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
        failed, skipped = (
            sum(outcome.status == status for outcome in outcomes)
            for status in (Status.FAILED, Status.NOT_TESTED)
        )
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=target,
            tests=str(len(outcomes)),
            failures=str(failed),
            skipped=str(skipped),
        )
        for outcome in outcomes:
            add_outcome(suite, outcome)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def add_outcome(suite: ElementTree.Element, outcome: Outcome) -> None:
    """Add one case to its suite."""
    case = ElementTree.SubElement(
        suite, "testcase", classname=outcome.case.target, name=outcome.case.name
    )
    if outcome.status == Status.FAILED:
        failure = ElementTree.SubElement(case, "failure", message=printable(outcome.reason))
        failure.text = printable(describe(outcome))
    elif outcome.status == Status.NOT_TESTED:
        ElementTree.SubElement(case, "skipped", message=printable(outcome.reason))


def printable(text: str) -> str:
    """Replace what XML cannot hold."""
    return "".join(c if c in "\t\n" or ord(c) >= 32 else "?" for c in text)
