"""The kit notices every one of a hundred plausible bugs."""

import re
from functools import lru_cache
from pathlib import Path

import pytest
from mutants import BUGS, SIZED_BUGS, Copy, table
from sampling import sampled

from kvlab.reference.conformance import Status, published
from kvlab.reference.conformance.checker import belongs, run_case
from kvlab.reference.conformance.engine_cases import ENGINES, STEPS
from kvlab.reference.conformance.report import ABOUT_GROUPS
from kvlab.reference.conformance.sizes import LENGTHS, STREAMS, drawn_blocks, sized_cases

copied = lru_cache(16)(Copy)
"""Groups of one method are looked at one after the other, and share its bugs."""


def first_failure(copy: Copy, target: str) -> str | None:
    """Return the first case of a target that fails."""
    for case in published():
        if belongs(case, target) and run_case(copy, case).status == Status.FAILED:
            return case.name
    return None


FIRST_OF_EACH_TARGET = list({bug.target: bug for bug in reversed(BUGS)}.values())


@pytest.mark.parametrize(
    "bug", sampled(BUGS, FIRST_OF_EACH_TARGET), ids=lambda bug: re.sub(r"\W+", "_", bug.name)
)
def test_the_kit_notices(bug):
    assert first_failure(copied(bug), bug.target) is not None


@pytest.fixture(scope="module")
def right():
    return Copy(None)


@pytest.mark.parametrize("target", sorted({bug.target for bug in BUGS}))
def test_a_copy_without_a_bug_passes(target, right):
    assert first_failure(right, target) is None


def test_the_list_in_the_documentation_is_this_one():
    assert Path("docs/conformance_bugs.md").read_text(encoding="utf-8") == table()


def test_there_are_enough_and_no_two_are_the_same():
    assert len(BUGS) >= 40
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    assert len({(bug.file, bug.right, bug.wrong, bug.also) for bug in BUGS}) == len(BUGS)


SIZED_GROUPS = {group: size for size in LENGTHS for _, group, _, _ in drawn_blocks(size)}
SIZED_GROUPS |= {group: size for size in STREAMS for group in STREAMS[size]}
PLANTED = sorted(group for group, bug in ABOUT_GROUPS.items() if "thread" not in bug)


def test_every_group_has_a_bug():
    assert set(ABOUT_GROUPS) == {case.group for case in published()} | set(SIZED_GROUPS)
    told = {"stresses", "what"}
    assert all(told <= set(about) <= {*told, "thread"} for about in ABOUT_GROUPS.values())
    assert all("thread" in bug for group, bug in ABOUT_GROUPS.items() if group.startswith("cache_"))


@pytest.mark.parametrize("group", PLANTED)
def test_a_group_finds_its_planted_bug(group):
    named = [bug for bug in (*BUGS, *SIZED_BUGS) if bug.name == ABOUT_GROUPS[group]["what"]]
    assert any(finds(group, bug) for bug in named)


@pytest.mark.parametrize("group", sorted({*STEPS, *(g for own in ENGINES.values() for g in own)}))
def test_a_group_of_engines_finds_one_of_its_bugs(group):
    """Those with a public thread, too: each has a planted bug that it finds."""
    own = {*ENGINES, "h2o", "tova", "full"}
    assert any(finds(group, bug) for bug in reversed(BUGS) if bug.target in own)


def finds(group, bug):
    def wanted(target):
        return bug.target in (target, target.rpartition(".")[0])

    size = SIZED_GROUPS.get(group)
    cases = published() if size is None else sized_cases(size, 0, wanted)
    copy = copied(bug)
    asked = (run_case(copy, case) for case in cases if case.group == group)
    return any(outcome.status == Status.FAILED for outcome in asked)


@pytest.mark.parametrize("bug", SIZED_BUGS, ids=lambda bug: re.sub(r"\W+", "_", bug.name))
def test_a_bug_of_large_sizes_passes_the_vectors(bug):
    assert first_failure(Copy(bug), bug.target) is None
