"""The kit notices every one of more than three hundred plausible bugs."""

import fnmatch
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from kvlab.reference.conformance import Status, published
from kvlab.reference.conformance.checker import belongs, run_case
from kvlab.reference.conformance.implementation import Functions
from kvlab.reference.conformance.plan import GROUPS, SIZES, TABLES, group_of
from kvlab.reference.conformance.planned import STREAMS, sized_cases
from kvlab.reference.conformance.report import ABOUT_GROUPS, FLAGS
from support.mutants import BUGS, CACHE_BUGS, SIZED_BUGS, Bug, Copy, identifier, planted_engine
from support.sampling import sampled
from support.site import module

ALL = (*BUGS, *SIZED_BUGS, *CACHE_BUGS)
copied = lru_cache(16)(Copy)
"""Groups of one method are looked at one after the other, and share its bugs."""


@lru_cache(16)
def planted(bug: Bug | None) -> Functions:
    """Return the engine of whole caches with a bug."""
    return Functions(planted_engine(bug).IMPLEMENTATIONS)


def first_failure(under_test, target: str, every: int = 1) -> str | None:
    """Return the first case of a target, or of a group of whole caches, that fails."""

    def asked(case):
        return case.group == target if is_of_caches(target) else belongs(case.target, target)

    with np.errstate(all="ignore"):
        for case in [*filter(asked, published())][::every]:
            if run_case(under_test, case).status == Status.FAILED:
                return case.name
    return None


def is_of_caches(group):
    return group.startswith("cache_")


OF_CACHES = sorted(filter(is_of_caches, ABOUT_GROUPS))
FIRST_OF_EACH_FILE = list({bug.file: bug for bug in reversed(BUGS)}.values())
FIRST_OF_EACH_GROUP = list({bug.target: bug for bug in reversed(CACHE_BUGS)}.values())
QUICK = [*FIRST_OF_EACH_FILE[::5], *FIRST_OF_EACH_GROUP[::3]]


@pytest.mark.parametrize("bug", sampled((*BUGS, *CACHE_BUGS), QUICK), ids=identifier)
def test_the_kit_notices(bug):
    under_test = planted(bug) if bug in CACHE_BUGS else copied(bug)
    assert first_failure(under_test, bug.target) is not None


@pytest.mark.parametrize("every", sampled((24, 1), (24,)))
def test_a_copy_without_a_bug_passes(every):
    right, targets = Copy(None), sorted({bug.target for bug in BUGS})
    assert [first_failure(right, target, every) for target in targets] == [None] * len(targets)


@pytest.mark.parametrize("group", sampled(OF_CACHES, OF_CACHES[::6]))
def test_an_engine_without_a_bug_passes(group):
    assert first_failure(planted(None), group) is None
    first = next(case for case in published() if case.group == group)
    assert run_case(planted(None), first).status == Status.PASSED
    half = replace(planted(None), precision="float16")
    outcome = run_case(half, first)
    assert outcome.status == Status.NOT_TESTED and "float16" in outcome.reason


@pytest.mark.parametrize("every", sampled((16, 1), (16,)))
def test_a_flag_stands_where_right_variants_differ_and_nowhere_else(every):
    differ = set()
    for name in ("of equal scores the earlier stays", "of equal pages the earlier stays"):
        variant = copied(next(bug for bug in BUGS if bug.name == name))
        asked = [x for x in published() if x.method or x.target == "keep_set"][::every]
        asked = [case for case in asked if case.operation != "whole_cache"]
        differ |= {x.name for x in asked if run_case(variant, x).status == Status.FAILED}
    patterns = FLAGS["equal_scores"]["cases"]
    fitting = {pattern: fnmatch.filter(differ, pattern) for pattern in patterns}
    assert differ == set(chain.from_iterable(fitting.values()))
    assert every > 1 or all(fitting.values())


def test_every_right_text_occurs_once_in_its_file():
    """The message names the file, the text and how often it occurs."""
    assert all(bug.source for bug in ALL)


def test_the_list_in_the_documentation_is_this_one():
    page = Path("docs/conformance_bugs.md").read_text(encoding="utf-8")
    for mark, own in (("bugs of the reference", BUGS), ("bugs of whole caches", CACHE_BUGS)):
        assert f"\n{{{{ {mark} }}}}\n" in page
        listed = module("registry_pages").PARTS[mark]().splitlines()
        assert len(listed) == 2 + len(own)
        for line, bug in zip(listed[2:], own, strict=True):
            assert line.startswith(f"| {bug.name}") and f"| `{bug.target}` |" in line
            assert f"]({bug.thread})" in line or not bug.thread
    assert all(f"\n{len(each)} plausible bugs" in page for each in (BUGS, CACHE_BUGS))
    for bug in (bug for bug in ALL if bug.thread):
        assert bug.thread in page and f"*{bug.name}*" in page.replace("\n  ", " ")


def test_no_bug_is_lost_and_no_two_are_the_same():
    assert [*map(len, (BUGS, SIZED_BUGS, CACHE_BUGS))] == [253, 30, 137]
    for own in ((*BUGS, *SIZED_BUGS), CACHE_BUGS):
        assert len({bug.name for bug in own}) == len(own)
    assert len({(bug.file, bug.changes) for bug in ALL}) == len(ALL)


SIZED_GROUPS = {group_of(size, entry): size for size in SIZES for entry in TABLES[size]}
SIZED_GROUPS |= {GROUPS["kernel_options"]: "kernel"}
SIZED_GROUPS |= {group: size for size in SIZES for group in STREAMS[size]}
PLANTED = sorted(group for group, bug in ABOUT_GROUPS.items() if "thread" not in bug)
MET = sorted({*ABOUT_GROUPS} - {*PLANTED, *SIZED_GROUPS, *OF_CACHES})


def test_every_group_has_a_bug():
    assert set(ABOUT_GROUPS) == {case.group for case in published()} | set(SIZED_GROUPS)
    told = {"stresses", "what"}
    assert all(told <= set(about) <= {*told, "thread"} for about in ABOUT_GROUPS.values())
    assert all("thread" in bug for group, bug in ABOUT_GROUPS.items() if is_of_caches(group))


@pytest.mark.parametrize("group", sampled(PLANTED, PLANTED[::24]))
def test_a_group_finds_its_planted_bug(group):
    named = [bug for bug in (*BUGS, *SIZED_BUGS) if bug.name == ABOUT_GROUPS[group]["what"]]
    assert any(finds(group, bug) for bug in named)


@pytest.mark.parametrize("group", sampled(MET, MET[:1]))
def test_a_group_that_users_met_finds_a_planted_bug_too(group):
    own = [case.target for case in published() if case.group == group]
    asked = {part for target in own for part in (target, target.split(".")[0])}
    assert any(finds(group, bug) for bug in reversed(BUGS) if bug.target in asked)


def finds(group, bug):
    size = SIZED_GROUPS.get(group)
    wanted = partial(belongs, method=bug.target)
    cases = published() if size is None else sized_cases(size, 0, wanted)
    copy = copied(bug)
    asked = (run_case(copy, case) for case in cases if case.group == group)
    return any(outcome.status == Status.FAILED for outcome in asked)


@pytest.mark.parametrize("bug", sampled(SIZED_BUGS, SIZED_BUGS[:1]), ids=identifier)
def test_a_bug_of_large_sizes_shows_at_those_alone(bug):
    copy = Copy(bug)
    assert first_failure(copy, bug.target) is None
    outcomes = (run_case(copy, case) for case in sized_cases("kernel", 0, bug.target.__eq__))
    assert any(outcome.status == Status.FAILED for outcome in outcomes)
