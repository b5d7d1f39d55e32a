"""Drawn cases of one target: hypothesis draws, the reference judges, a failure is made small.

Needs ``pip install hypothesis``. The same seed draws the same cases.
"""

from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from kvlab.reference.conformance import strategies
from kvlab.reference.conformance.case import Case
from kvlab.reference.conformance.checker import CALLS, run_case
from kvlab.reference.conformance.groups import examples_of
from kvlab.reference.conformance.implementation import Implementation
from kvlab.reference.conformance.minimise import SECONDS
from kvlab.reference.conformance.report import Group, Outcome, Report, Status
from kvlab.reference.conformance.targets import operation_of

GROUP = "drawn"

SLOW_DRAWS = (
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.large_base_example,
)
"""Checks of hypothesis that are off, because the reference computes while a case is drawn."""


def fuzz(target: str, under_test: Implementation, seed_number: int, count: int) -> Report:
    """Ask an implementation drawn cases until one fails; each is asked several times in a row.

    Args:
        target: a building block, or a step of a method.
        under_test: the implementation.
        seed_number: seed of the numbers that are drawn.
        count: cases that are drawn at most.

    Raises:
        ValueError: if the target is unknown, is not offered, or is a whole cache.
    """
    if not under_test.offers(target):
        raise ValueError(f"the implementation offers none of {target}")
    outcomes: list[Outcome] = []
    quiet = settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        report_multiple_bugs=False,
        suppress_health_check=SLOW_DRAWS,
    )

    @seed(seed_number)
    @quiet
    @given(drawn(target))
    def ask(case: Case) -> None:
        if not any(each.status == Status.FAILED for each in outcomes):
            outcomes.append(run_case(under_test, case, SECONDS, CALLS))

    ask()
    return Report((Group(target, GROUP, tuple(outcomes)),), ())


def drawn(target: str) -> st.SearchStrategy[Any]:
    """Return the strategy that draws cases of a target.

    Raises:
        ValueError: if the target is unknown, or a whole cache: its streams are not drawn.
    """
    method, _, name = target.rpartition(".")
    if not operation_of(target).of_method:
        return strategies.cases(target)
    if name == "whole_cache":
        raise ValueError(f"target = {target!r} must not be a whole cache: run its vectors")
    examples = examples_of(method)
    if name == "run":
        return st.one_of([strategies.runs(each.spec, each.budget) for each in examples])
    return st.one_of([strategies.observations(each.spec, each.budget, name) for each in examples])
