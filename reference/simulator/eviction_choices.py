"""What it costs to let attention choose who leaves, measured on real attention (CAOTE §1, Fig. 1).

At every step of a text some entries have to go. Attention chooses the entries with the least
attention; CAOTE chooses the entries whose eviction, one by one, changes the output least. Both
choices are judged by the change that they cause.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from kvlab.reference.checks import check_at_least
from kvlab.reference.methods.caote import eviction_error, joint_error
from kvlab.reference.notation import Array
from kvlab.reference.simulator.observed import Head


@dataclass(frozen=True)
class Choice:
    """Changes of one head's output, one per step, relative to the output's size."""

    layer: int
    kv_head: int
    by_attention: Float[Array, " steps"]
    """Change when the entries with the least attention leave."""
    by_error: Float[Array, " steps"]
    """Change when the entries with the least eviction errors leave."""
    common: Float[Array, " steps"]
    """Share of the leaving entries that both choices have in common."""


def choices(heads: Sequence[Head], share: float = 0.0, first: int = 40) -> list[Choice]:
    """Let every query from the token ``first`` on drop entries that it sees, its own excluded.

    Args:
        heads: heads of `kvlab.reference.simulator.observed.observe`.
        share: share of the entries that leave together; at least one does.
        first: index of the first query, at least 2.

    Raises:
        ValueError: if ``first`` is below 2, or ``share`` not in [0, 1).
    """
    check_at_least(2, first=first)
    if not 0 <= share < 1:
        raise ValueError(f"share = {share} must be at least 0 and below 1")
    return [choice(head, share, first) for head in heads]


def choice(head: Head, share: float, first: int) -> Choice:
    """Return what both choices cost in one head; see `choices`."""
    rows, steps = head.attention(), []
    for query in range(first, len(rows)):
        h, values = rows[query, : query + 1], head.values[: query + 1]
        leaving = max(1, int(share * query))
        unseen = least(h, leaving)
        unmissed = least(eviction_error(h, values), leaving)
        size = np.linalg.norm(h @ values)
        steps.append(
            (
                joint_error(h, values, unseen) / size,
                joint_error(h, values, unmissed) / size,
                (unseen & unmissed).sum() / leaving,
            )
        )
    by_attention, by_error, common = np.array(steps, dtype=float).T
    return Choice(head.layer, head.kv_head, by_attention, by_error, common)


def least(score: Float[Array, " n"], count: int) -> Array:
    """Mark the ``count`` entries of the smallest score, the last entry excluded."""
    marks = np.zeros(len(score), dtype=bool)
    marks[np.argsort(score[:-1], kind="stable")[:count]] = True
    return marks
