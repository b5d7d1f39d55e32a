"""Whole caches: an engine that shares no line with the reference passes, and planted bugs fail."""

from functools import lru_cache

import numpy as np
import pytest

from kvlab.reference.conformance import Status, check, published
from kvlab.reference.conformance.checker import run_case
from kvlab.reference.conformance.implementation import Functions
from kvlab.reference.conformance.report import ABOUT_GROUPS
from support.mutants import CACHE_BUGS, identifier, planted_engine
from support.sampling import sampled


@lru_cache
def cases(group):
    return [each for each in published() if each.group == group and each.operation == "whole_cache"]


GROUPS = sorted(group for group in ABOUT_GROUPS if group.startswith("cache_"))


def statuses(bug, group, every=1):
    functions = Functions(planted_engine(bug).IMPLEMENTATIONS)
    with np.errstate(all="ignore"):
        for case in cases(group)[::every]:
            yield run_case(functions, case).status


FIRST_OF_EACH_GROUP = list({bug.target: bug for bug in reversed(CACHE_BUGS)}.values())


@pytest.mark.parametrize("bug", sampled(CACHE_BUGS, FIRST_OF_EACH_GROUP), ids=identifier)
def test_the_kit_notices(bug):
    assert Status.FAILED in statuses(bug, bug.target)


@pytest.mark.parametrize("every", sampled((2, 1), (2,)))
@pytest.mark.parametrize("group", GROUPS)
def test_the_engine_without_a_bug_passes(group, every):
    found = {*statuses(None, group, every)}
    assert Status.PASSED in found and Status.FAILED not in found


class Late:
    """An engine that is wrong from the third call on."""

    precision = "float32"

    def offers(self, target):
        return True

    def answer(self, case):
        kept = case.expected["kept"].value.copy()
        kept[2:] = ~kept[2:]
        return {"kept": kept, "logits": case.expected["logits"].value}


def test_the_smallest_failure_has_the_calls_up_to_the_first_wrong_one():
    failure = check("h2o.whole_cache", Late(), groups=["cache_budgets"]).failures()[0]
    assert failure.smallest is not None
    calls, tokens = (failure.smallest.case.inputs[name] for name in ("calls", "tokens"))
    assert len(calls) == 3 and tokens.shape[1] == calls.sum()
    assert failure.smallest.reason.startswith("kept differs first in call 2")


def test_half_precision_is_not_tested():
    functions = Functions(planted_engine(None).IMPLEMENTATIONS, precision="float16")
    outcome = run_case(functions, cases("cache_budgets")[0])
    assert outcome.status == Status.NOT_TESTED and "float16" in outcome.reason
