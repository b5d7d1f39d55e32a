"""Test vectors of every method and building block, and the checker that runs kernels on them.

``check("h2o.score", my_function)`` or ``kvlab conformance run my_kernel.py``: see
docs/conformance.md. The vectors lie in ``vectors/``; ``kvlab conformance generate`` makes them
anew, bit by bit.
"""

from kvlab.reference.conformance.case import Case, Expected, Tolerance
from kvlab.reference.conformance.checker import Group, Outcome, Report, Status, check, published
from kvlab.reference.conformance.implementation import Functions, Implementation, NotTestedError

__all__ = [
    "Case",
    "Expected",
    "Functions",
    "Group",
    "Implementation",
    "NotTestedError",
    "Outcome",
    "Report",
    "Status",
    "Tolerance",
    "check",
    "published",
]
