"""Hypothesis strategies of drawn cases, for the test suites of other projects.

Needs ``pip install hypothesis``. A wrong answer is always an error of the implementation: numbers
are exact in bfloat16 and float16 unless a case says otherwise, and no query is left without an
entry. Hypothesis makes the sizes of a failing case small.
"""

from collections.abc import Callable
from typing import Any

from hypothesis import reject, strategies as st

from kvlab.reference.conformance.planned import any_case
from kvlab.reference.conformance.targets import operation_of
from kvlab.reference.conformance.vectors import Case


def cases(target: str) -> st.SearchStrategy[Case]:
    """Draw cases of any target, with the reference's answers.

    Raises:
        ValueError: if the target is unknown.
    """
    operation_of(target)
    return _cases(target)


@st.composite
def _cases(draw: Callable[..., Any], target: str) -> Case:
    case = any_case(target, lambda values: draw(st.sampled_from(values)))
    if case is None:
        reject()
    return case
