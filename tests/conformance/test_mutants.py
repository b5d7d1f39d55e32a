"""The kit notices every one of a hundred plausible bugs."""

import re
from pathlib import Path

import pytest
from mutants import BUGS, Copy, table

from kvlab.reference.conformance import Status, published
from kvlab.reference.conformance.checker import belongs, run_case


def first_failure(copy: Copy, target: str) -> str | None:
    """Return the first case of a target that fails."""
    for case in published():
        if belongs(case, target) and run_case(copy, case).status == Status.FAILED:
            return case.name
    return None


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: re.sub(r"\W+", "_", bug.name))
def test_the_kit_notices(bug):
    assert first_failure(Copy(bug), bug.target) is not None


@pytest.mark.parametrize("target", sorted({bug.target for bug in BUGS}))
def test_a_copy_without_a_bug_passes(target):
    assert first_failure(Copy(None), target) is None


def test_the_list_in_the_documentation_is_this_one():
    assert Path("docs/conformance_bugs.md").read_text(encoding="utf-8") == table()


def test_there_are_enough_and_no_two_are_the_same():
    assert len(BUGS) >= 40
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    assert len({(bug.file, bug.right, bug.wrong, bug.also) for bug in BUGS}) == len(BUGS)
