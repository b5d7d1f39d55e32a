"""The result of a check: as objects, in words, as plain data and as files; known failures."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from platform import platform, python_version
from string import Template
from typing import Any

import numpy as np

from kvlab.reference.conformance.events import text_of
from kvlab.reference.conformance.program import request
from kvlab.reference.conformance.vectors import SPECIFICATION, Case
from kvlab.reference.files import read_data

IN_FULL = 3
"""Failures that are shown with their smallest inputs; of further ones only the reason is shown."""

PRINTED: Any = {"precision": 6, "suppress_small": True, "threshold": 64, "max_line_width": 100}
"""How the smallest inputs are printed."""

XFAILS = "kvlab-xfails.txt"
"""Name by which the command finds the list of known failures in the working directory."""

ABOUT_GROUPS: Mapping[str, Mapping[str, str]] = read_data("conformance/groups.toml")
"""By group: what it ``stresses``, ``what`` went wrong in somebody's code, and the public ``thread``
about it. Without a thread, the bug was planted, and the group finds it."""

SCRIPTS: Mapping[str, str] = read_data("conformance/harnesses.toml")["failures"]
"""Scripts that ask for one case, of a Python file and of a program."""

FLAGS: Mapping[str, Any] = read_data("conformance/flags.toml")
"""By flag: ``why`` a right implementation may differ, and in which ``cases``."""


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
    smallest: "Outcome | None" = None
    """A small case that fails, too; only the first failure of a group has one."""
    margin: float | None = None
    """Part of the tolerance that was left where a right answer came closest to its limit."""


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
    def margin(self) -> float | None:
        """The least margin of the cases that passed."""
        margins = (each.margin for each in self.outcomes)
        return min((each for each in margins if each is not None), default=None)

    @property
    def first_failure(self) -> Outcome | None:
        """The first case that failed."""
        failures = (each for each in self.outcomes if each.status is Status.FAILED)
        return next(failures, None)


@dataclass(frozen=True)
class Report:
    """The results of an implementation on all cases that were run."""

    outcomes: tuple[Outcome, ...]
    """In the order of the cases."""
    not_offered: tuple[str, ...]
    """Targets that have vectors and that the implementation does not offer."""
    no_cases: tuple[str, ...] = ()
    """What was asked for and has cases at other sizes alone, which are named."""

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The outcomes by target and group."""
        found = defaultdict[tuple[str, str], list[Outcome]](list)
        for each in self.outcomes:
            found[each.case.target, each.case.group].append(each)
        return tuple(Group(*key, tuple(own)) for key, own in found.items())

    @property
    def passed(self) -> bool:
        """Whether nothing failed and something was tested."""
        return self.count(Status.FAILED) == 0 and self.count(Status.PASSED) > 0

    def count(self, status: Status) -> int:
        """Number of cases that ended so."""
        return sum(each.status == status for each in self.outcomes)

    @property
    def untested(self) -> tuple[str, ...]:
        """Targets of which no case was tested."""
        tested = Status.PASSED, Status.FAILED
        tried = {each.case.target for each in self.outcomes if each.status in tested}
        asked = dict.fromkeys(each.case.target for each in self.outcomes)
        return (*(target for target in asked if target not in tried), *self.not_offered)

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


# --- known failures ------------------------------------------------------------------------------


def read_xfails(file: Path) -> dict[str, str]:
    """Read a list of known failures: what has to fail, and why.

    A line is a case's name, a target or a group, with ``*`` and ``?`` as in a shell, and a reason
    after ``#``.
    """
    found = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        pattern, _, reason = (part.strip() for part in line.partition("#"))
        if pattern and not reason:
            raise ValueError(f"line {number} of {file} must end in a reason, after #: {pattern!r}")
        if pattern:
            found[pattern] = reason
    return found


def flag_of(case: Case) -> str | None:
    """Return the flag under which a right implementation may differ; None: it must pass."""
    patterns = ((flag, pattern) for flag, about in FLAGS.items() for pattern in about["cases"])
    return next((flag for flag, x in patterns if fnmatchcase(case.name, x)), None)


def judged(report: Report, known: Mapping[str, str], flags: Collection[str] = ()) -> Report:
    """Return a report in which known failures are expected, and those that a flag allows.

    A known failure that passes is a failure.
    """

    def judge(outcome: Outcome) -> Outcome:
        case, failed = outcome.case, outcome.status == Status.FAILED
        names, flag = (case.name, case.target, case.group), flag_of(case)
        patterns = (each for each in known if any(fnmatchcase(name, each) for name in names))
        reason = known.get(next(patterns, ""))
        if failed and flag is not None and flag in flags:
            return Outcome(case, Status.EXPECTED, FLAGS[flag]["why"])
        if reason is None or outcome.status == Status.NOT_TESTED:
            return outcome
        if failed:
            return Outcome(case, Status.EXPECTED, reason)
        said = f"passes, and is listed as a known failure ({reason}): remove it from the list"
        return Outcome(case, Status.FAILED, said)

    return replace(report, outcomes=tuple(map(judge, report.outcomes)))


# --- in words ------------------------------------------------------------------------------------


def shown(failures: Sequence[Outcome]) -> str:
    """Describe failures, the first ones with their smallest inputs; equal reasons once."""
    alike = Counter(each.reason for each in failures)
    firsts = {each.reason: each for each in reversed(failures)}
    told = [describe(firsts[reason], groups) for reason, groups in alike.items()]
    others = [lines.partition("\n")[0] for lines in told[IN_FULL:]]
    return "\n\n".join([*told[:IN_FULL], "\n".join(others)]).strip()


def describe(outcome: Outcome, groups: int = 1) -> str:
    """Say what failed, in how many groups, what they stress, and the smallest inputs that fail."""
    more = f" (and in {groups - 1} other groups)" if groups > 1 else ""
    lines = [f"{outcome.case.name}{more}: {outcome.reason}"]
    if outcome.case.group in ABOUT_GROUPS:
        lines.append(f"  the group stresses {ABOUT_GROUPS[outcome.case.group]['stresses']}")
    if (flag := flag_of(outcome.case)) is not None:
        lines.append(f"  may differ: {FLAGS[flag]['why']} (--allow {flag})")
    if outcome.smallest is not None:
        case = outcome.smallest.case
        lines.append(f"smallest: {outcome.smallest.reason}")
        if "script" in case.inputs:
            lines.append(f"  {text_of(case.inputs['script'])}")
        for name, x in case.inputs.items():
            array = np.array2string(x, separator=", ", **PRINTED)
            lines.append(f"  {name} {[*x.shape]} = {array}")
        given = {"method": case.method, **case.parameters}
        told = ", ".join(f"{name} = {x}" for name, x in given.items() if x is not None)
        lines.append(f"  {told or 'no parameters'}")
    return "\n".join(lines)


def badge(report: Report) -> dict[str, Any]:
    """Return the data of which shields.io makes a badge, as its endpoint expects them."""
    return {
        "schemaVersion": 1,
        "label": f"kvlab conformance {SPECIFICATION}",
        "message": ", ".join(f"{report.count(x)} {x}" for x in (Status.PASSED, Status.FAILED)),
        "color": "brightgreen" if report.passed else "red",
    }


def failing_files(report: Report, of: Path | None, command: str) -> dict[str, str | bytes]:
    """Return the smallest case of each failure as a safetensors file, and a script that asks it."""
    files: dict[str, str | bytes] = {}
    for failure in report.failures():
        case = replace((failure.smallest or failure).case, name=failure.case.name)
        told = {**vars(case), "file": str(of and of.resolve()), "command": command}
        texts = {name: repr(x) for name, x in told.items()}
        script = SCRIPTS["file" if of else "program"]
        file = re.sub(r"[^\w.-]+", "_", case.name)
        files[f"{file}.safetensors"] = request(case)
        files[f"{file}.py"] = Template(script.lstrip()).substitute(texts)
    return files


# --- as data -------------------------------------------------------------------------------------


def to_plain(report: Report) -> dict[str, Any]:
    """Return a report as data that JSON can hold."""
    return {
        "passed": report.passed,
        "cases": {str(status): report.count(status) for status in Status},
        "groups": [_group_to_plain(group) for group in report.groups],
        "not_offered": list(report.not_offered),
        "no_cases": list(report.no_cases),
    }


def environment() -> dict[str, str]:
    """Return what a report was made with."""
    versions = {name: version(name) for name in ("kvlab", "numpy")}
    return {"python": python_version(), "platform": platform(), **versions}


def _group_to_plain(group: Group) -> dict[str, Any]:
    untested = (each for each in group.outcomes if each.status == Status.NOT_TESTED)
    return {
        "target": group.target,
        "group": group.group,
        **{str(status).replace(" ", "_"): group.count(status) for status in Status},
        "margin": group.margin,
        "about": ABOUT_GROUPS.get(group.group),
        "reasons_not_tested": sorted({each.reason for each in untested}),
        "first_failure": _failure_to_plain(group.first_failure),
    }


def _failure_to_plain(failure: Outcome | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    flag, smallest = flag_of(failure.case), failure.smallest
    return {
        "case": failure.case.name,
        "reason": failure.reason,
        "flag": "must" if flag is None else "may",
        "why": None if flag is None else FLAGS[flag]["why"],
        "smallest": smallest
        and {
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
