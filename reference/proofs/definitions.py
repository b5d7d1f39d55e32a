"""What the checks share: attention and its output, equality of formulas, rank correlation.

Attention α is a softmax, the output is X = Σ αᵢvᵢ, and evicting entries means to compute the
softmax anew over the others.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import islice, product
from typing import Any

import numpy as np
import sympy
from jaxtyping import Float, Real
from scipy.special import softmax
from scipy.stats import spearmanr
from sympy import Expr

from kvlab.reference.models import reasoner_directory
from kvlab.reference.notation import Array
from kvlab.reference.proofs.claim import Finding, proved, refuted

MODEL = reasoner_directory()
"""The embedded model on which claims about models are checked."""
ROUNDING = 1e-9
"""Largest relative difference of a quantity computed in two orders in float64: 1e-15 per term."""
SMALL = (sympy.Rational(1, 2), sympy.Rational(1, 3), sympy.Rational(1, 5), 2, 3)
"""Numbers that are tried in a false identity, in this order."""
MOST_TRIED = 20


def output_without(
    logits: Float[Array, " n"], values: Float[Array, "n d"], evicted: Iterable[int]
) -> Float[Array, " d"]:
    """Attention output over the kept entries."""
    stays = np.setdiff1d(np.arange(len(logits)), list(evicted))
    return softmax(logits[stays]) @ values[stays]


def exact_output(weights: Sequence[int], values: Sequence[int], stays: Iterable[int]) -> Fraction:
    """Output over ``stays`` of one channel, for attention proportional to whole numbers."""
    kept = list(stays)
    total = sum(weights[i] for i in kept)
    return sum((Fraction(weights[i] * values[i], total) for i in kept), Fraction(0))


def exact_error(weights: Sequence[int], values: Sequence[int], evicted: Sequence[int]) -> Fraction:
    """|X − X'| of one channel when a set is evicted."""
    everything = range(len(weights))
    left = [i for i in everything if i not in evicted]
    return abs(exact_output(weights, values, everything) - exact_output(weights, values, left))


def identity(claimed: Expr, actual: Expr, scope: str) -> Finding:
    """Prove that two formulas are equal, or find small numbers for which they are not.

    ``scope`` says what the symbols stand for, and why that covers every size.
    """
    symbols: list[Any] = sorted((claimed - actual).free_symbols, key=str)
    for numbers in islice(product(SMALL, repeat=len(symbols)), MOST_TRIED):
        at: dict[Any, Any] = dict(zip(symbols, numbers, strict=True))
        left, right = claimed.subs(at), actual.subs(at)
        if left.is_finite and right.is_finite and not (left - right).equals(0):
            where = ", ".join(f"{symbol} = {number}" for symbol, number in at.items())
            return refuted(f"{where}: {left} is claimed, it is {right}", scope)
    if sympy.simplify(sympy.expand(claimed - actual)) == 0:
        return proved(f"SymPy reduces the difference of both sides to 0; {scope}")
    return refuted("SymPy does not reduce the difference of both sides to 0", scope)


def steps(scope: str, **equations: tuple[Expr, Expr]) -> Finding:
    """Prove the equalities of a paper's proof one by one; name the first that is false."""
    for name, (claimed, actual) in equations.items():
        if (found := identity(claimed, actual, scope)).verdict.fails:
            return refuted(f"{name}: {found.counterexample}", scope)
    return proved(f"SymPy, step by step ({', '.join(equations).replace('_', ' ')}); {scope}")


def spearman(first: Real[Array, " n"], second: Real[Array, " n"]) -> float:
    """Spearman's rank correlation, with mean ranks for ties."""
    return float(np.asarray(spearmanr(first, second))[0])
