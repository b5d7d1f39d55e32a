"""Equality of formulas, for symbols that stand for any number."""

from itertools import islice, product
from typing import Any

import sympy
from sympy import Expr

from kvlab.reference.proofs.claim import Finding, proved, refuted

SMALL = (sympy.Rational(1, 2), sympy.Rational(1, 3), sympy.Rational(1, 5), 2, 3)
"""Numbers that are tried in a false identity, in this order."""
MOST_TRIED = 20


def identity(claimed: Expr, actual: Expr, scope: str) -> Finding:
    """Prove that two formulas are equal, or find small numbers for which they are not.

    Args:
        claimed: the statement's formula.
        actual: the same quantity from its definition.
        scope: what the symbols stand for, and why that covers every size.
    """
    symbols: list[Any] = sorted((claimed - actual).free_symbols, key=str)
    for numbers in islice(product(SMALL, repeat=len(symbols)), MOST_TRIED):
        at: dict[Any, Any] = dict(zip(symbols, numbers, strict=True))
        left, right = claimed.subs(at), actual.subs(at)
        if left.is_finite and right.is_finite and not (left - right).equals(0):
            where = ", ".join(f"{symbol} = {number}" for symbol, number in at.items())
            return refuted(f"{where}: {left} is claimed, it is {right}", scope)
    if sympy.simplify(claimed - actual) == 0:
        return proved(f"SymPy reduces the difference of both sides to 0; {scope}")
    return refuted("SymPy does not reduce the difference of both sides to 0", scope)
