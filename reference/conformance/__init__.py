"""Test vectors of every method and building block, and the checker that runs kernels on them.

``check("h2o.score", my_function)`` or ``kvlab conformance run my_kernel.py``: see
docs/conformance.md. An operation is described in ``operations.toml`` and answered by a function of
`blocks`, `stages` or `whole_cache`. Its cases are read (`vectors`) or drawn (`planned`, of the
tables of `plan`), and compared in one place, `vectors.difference`. The published vectors are in
``vectors/``; ``kvlab conformance generate`` draws them anew, and ``kvlab conformance verify``
compares them with today's reference. A method without published vectors is tested on cases that are
made on the spot, from its examples.
"""

from kvlab.reference.conformance.checker import cases, check, published
from kvlab.reference.conformance.implementation import NotTestedError, load
from kvlab.reference.conformance.isolated import Isolated
from kvlab.reference.conformance.program import Program
from kvlab.reference.conformance.report import Report, Status
from kvlab.reference.conformance.vectors import Case, Expected, difference

__all__ = [
    "Case",
    "Expected",
    "Isolated",
    "NotTestedError",
    "Program",
    "Report",
    "Status",
    "cases",
    "check",
    "difference",
    "load",
    "published",
]
