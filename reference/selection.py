"""Keep sets and budgets: the only place that chooses entries or converts a budget."""

import math
import re
from fractions import Fraction

import numpy as np

from kvlab.reference.notation import Array, Float, Int, KeepSet, Marks, Scores

MOST_ENTRIES = 2**31 - 1
"""Largest budget, because data sets of results count entries in 32 bits."""


def budget_entries(budget: int | str, length: int) -> int:
    """Convert a budget into entries: ``"30%"`` is that share of ``length``, rounded up.

    Raises:
        ValueError: if the budget is below one entry, above `MOST_ENTRIES`, or no number.
    """
    text = str(budget).strip()
    try:
        share = Fraction(text[:-1]) / 100 if text.endswith("%") else None
        entries = int(text) if share is None else math.ceil(share * length)
    except (ValueError, ZeroDivisionError):
        fraction = re.fullmatch(r"0?\.\d+", text)
        meant = f", such as {100 * float(text):g}%" if fraction else ""
        raise ValueError(
            f"budget = {budget!r} must be a number of entries or a percentage{meant}"
        ) from None
    if entries < 1:
        above = ", so more than 0 %" if share is not None else ""
        raise ValueError(f"budget = {budget!r} must be at least 1 entry{above}")
    if entries > MOST_ENTRIES:
        raise ValueError(f"budget = {budget!r} must be at most {MOST_ENTRIES} entries")
    return entries


def rank(scores: Float[Array, "... n"]) -> Int[Array, "... n"]:
    """Rank entries from the first to evict, 0, to the last; of equal scores the later is kept."""
    order = np.argsort(scores, axis=-1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(scores.shape[-1]), axis=-1)
    return ranks


def keep_set(scores: Scores, protected: Marks, room: int) -> KeepSet:
    """Return the indices to keep, ascending: the protected entries and the ``room`` best others.

    Raises:
        ValueError: if a score that is compared is NaN, or heads differ in their protected entries.
    """
    if np.isnan(scores[~protected]).any():
        raise ValueError("scores must not be NaN")
    protected_counts = protected.sum(axis=-1)
    if (protected_counts != protected_counts[0]).any():
        raise ValueError(f"every KV head must protect equally many entries, got {protected_counts}")
    G, n = protected.shape
    candidates = n - int(protected_counts[0])
    candidates_by_score = np.lexsort((scores, protected), axis=-1)[:, :candidates]
    leaves = candidates_by_score[:, : max(0, candidates - room)]  # [LazyEviction 5]
    kept = np.ones_like(protected)
    np.put_along_axis(kept, leaves, False, axis=-1)
    return np.nonzero(kept)[1].reshape(G, -1)
