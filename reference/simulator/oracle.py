"""How much attention could be kept at best, if the future were known?

The objective is the mass of attention on present entries: the sum, over generated tokens, of the
full cache's attention (mean over the query heads of a KV head) to these entries. Entries never come
back, and at most B of them stay after every token.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from kvlab.reference.notation import Array
from kvlab.reference.simulator.replay import Layer, stretches

NEVER = -1e18
"""Gain of an impossible succession."""


def best_left(attention: Float[Array, "t t"], prompt: int, budget: int) -> Int[Array, " t"]:
    """Return when each entry leaves under the best keep sets of one KV head; exact.

    B slots hold one entry each. Later tokens look at the entry until a newer token takes its place
    in the slot. So a slot's history is a chain of entries, and each token is in one chain at most:
    the heaviest B disjoint chains are an assignment of successors, which is solved exactly.

    Args:
        attention: attention of every token to every entry, zeros after the diagonal.
        prompt: tokens of the prompt; entries leave only after its last token.
        budget: entries B that stay after every token.

    Returns:
        Index of the token after which an entry leaves; t if it stays to the end.

    Raises:
        ValueError: if ``budget`` is below 1.
    """
    from scipy.optimize import linear_sum_assignment  # half of the package's time to import

    check_budgets([budget])
    t = len(attention)
    gains = np.full((t + budget, t + budget), NEVER)
    later, earlier = np.arange(t)[None, :], np.arange(t)[:, None]
    held = np.cumsum(np.where(later > np.maximum(earlier, prompt - 1), attention.T, 0.0), axis=1)
    succeeds = (later > earlier) & (later >= prompt)
    gains[:t, :t] = np.where(succeeds, held, NEVER)
    np.fill_diagonal(gains[:t, :t], 0.0)  # never kept
    gains[:t, t:] = held[:, -1:]  # kept to the end
    gains[t:, :] = 0.0  # a slot's first entry, or none
    _, successor = linear_sum_assignment(gains, maximize=True)
    left = np.minimum(successor[:t], t)
    never_kept = left == np.arange(t)
    return np.where(never_kept, np.maximum(left, prompt - 1), left)


def oracle_of(layer: Layer, budgets: Sequence[int]) -> Float[Array, "budgets G t"]:
    """Return the mass that the best keep sets of each size hold.

    Takes memory of t² and time of t³: about a second for 1,000 tokens and one head.

    Args:
        layer: layer of a trace.
        budgets: entries per KV head.

    Raises:
        ValueError: if a budget is below 1.
    """
    G, t, _ = layer.keys.shape
    attention = layer.full_attention(0, t).attention.mean(axis=1)
    found = np.ones((len(budgets), G, t))
    for row, budget in enumerate(budgets):
        for head in range(G):
            left = best_left(attention[head], layer.prompt, budget)
            present = left >= np.arange(t)[:, None]
            found[row, head] = (attention[head] * present).sum(axis=1)
    return found


def random_of(layer: Layer, budgets: Sequence[int]) -> Float[Array, "budgets G t"]:
    """Return the mass that evicting at random holds in the mean; exact.

    After every token that brings the cache to B + 1 entries, each of them leaves with the same
    probability; of a prompt longer than B, B entries drawn at random stay.

    Args:
        layer: layer of a trace.
        budgets: entries per KV head.

    Raises:
        ValueError: if a budget is below 1.
    """
    check_budgets(budgets)
    G, t, _ = layer.keys.shape
    masses = np.ones((len(budgets), G, t))
    for first, last in stretches(0, t, None):
        attention = layer.full_attention(first, last).attention.mean(axis=1)
        for row, budget in enumerate(budgets):
            present = survival(first, last, layer.prompt, budget)
            masses[row, :, first:last] = (attention * present).sum(axis=-1)
    return masses


def survival(first: int, last: int, prompt: int, budget: int) -> Float[Array, "m n"]:
    """Return the probability that each entry is present for the tokens first … last − 1."""
    token, entry = np.arange(first, last)[:, None], np.arange(last)
    born = np.maximum(entry, prompt)
    evictions = np.maximum(0, token - np.maximum(born, budget))
    after_prompt = np.where(entry < prompt, min(1.0, budget / max(1, prompt)), 1.0)
    present = after_prompt * (budget / (budget + 1)) ** evictions
    return np.where(token < prompt, 1.0, np.where(entry < token, present, 1.0))


def bound_of(layer: Layer, budgets: Sequence[int]) -> Float[Array, "budgets G t"]:
    """Bound the mass that any keep sets can hold.

    Whatever a policy does, a token finds at most B older entries and itself there, so its mass is
    at most that of itself and the B largest others. The bound asks more than any policy can do: it
    may choose anew for every token, and take back what has left. It holds for policies that never
    keep more than B entries after a step; a lagged policy must be compared at its largest size.

    Args:
        layer: layer of a trace.
        budgets: entries per KV head.

    Raises:
        ValueError: if a budget is below 1.
    """
    check_budgets(budgets)
    t = layer.keys.shape[1]
    bounds = np.ones((len(budgets), len(layer.keys), t))
    for first, last in stretches(0, t, None):
        attention = layer.full_attention(first, last).attention.mean(axis=1)
        own = np.arange(first, last)
        itself = attention[:, own - first, own].copy()
        attention[:, own - first, own] = 0.0
        places = [min(budget, last) - 1 for budget in budgets]
        largest_first = -np.partition(-attention, sorted(set(places)), axis=-1)
        sums = np.cumsum(largest_first, axis=-1)
        for row, place in enumerate(places):
            others = sums[..., place]
            bounds[row, :, first:last] = np.minimum(1.0, itself + others)
    return bounds


def check_budgets(budgets: Sequence[int]) -> None:
    """Raise ValueError if a budget is below 1."""
    if min(budgets, default=1) < 1:
        raise ValueError(f"budgets = {list(budgets)} must be at least 1")
