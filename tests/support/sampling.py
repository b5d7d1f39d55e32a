"""Which cases of a large matrix are quick; the others are slow and run in ``make test-slow``."""

from collections.abc import Collection, Iterable, Sequence
from itertools import product
from typing import Any

import hypothesis
import pytest


def sampled(cases: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """Return cases for ``pytest.mark.parametrize``; all that are not in ``quick`` are slow.

    A case is one value, or a tuple of one value for each argument.
    """
    cases = list(cases)
    unknown = [case for case in quick if case not in cases]
    assert quick and not unknown, f"quick cases that are none: {unknown}"
    return [case if case in quick else slow(case) for case in cases]


def diagonal(*axes: Sequence[Any]) -> list[Any]:
    """Return the product of axes; quick are as many cases as let every value occur once.

    Case i takes value i of every axis; a shorter axis starts again at its end.
    """
    longest = max(len(axis) for axis in axes)
    quick = [tuple(axis[i % len(axis)] for axis in axes) for i in range(longest)]
    return sampled(product(*axes), quick)


def slow(case: Any) -> Any:
    """Return one case of ``pytest.mark.parametrize``, marked as slow."""
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)


def examples(thorough: int) -> int:
    """Return how many examples hypothesis tries; ``thorough`` with the slow tests, else a part."""
    return max(5, thorough * hypothesis.settings.default.max_examples // 100)
