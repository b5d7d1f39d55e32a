"""Judges the entries that a policy kept in a replay, beside chance and the best keep sets.

An entry is activated by a token that gives it at least α of its attention. It regains importance
when it is activated after ``gap`` tokens or more without (LazyEviction §3 calls that recurrence);
the recall of a policy is how often such an entry was still there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float, Int

from kvlab.reference.checks import check_at_least, check_share
from kvlab.reference.notation import Array
from kvlab.reference.policy import Policy
from kvlab.reference.simulator.replay import Fate, Layer, check_replay, over_layers, replay_layer
from kvlab.reference.simulator.trace import Trace

# --- the best, chance, and a bound ----------------------------------------------------------------


NEVER = -1e18
"""Gain of an impossible succession."""


def best_left(attention: Float[Array, "t t"], prompt: int, budget: int) -> Int[Array, " t"]:
    """Return when each entry is evicted under the best keep sets of one KV head; exact.

    B slots hold one entry each. Later tokens look at the entry until a newer token takes its place
    in the slot. So a slot's history is a chain of entries, and each token is in one chain at most:
    the heaviest B disjoint chains are an assignment of successors, which is solved exactly. Entries
    are evicted only after the last token of the prompt. What is returned is the index of the token
    after which an entry is evicted; t if it is kept to the end.

    Raises:
        ValueError: if ``budget`` is below 1.
    """
    from scipy.optimize import linear_sum_assignment  # half of the package's time to import

    check_at_least(1, budget=budget)
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
    """
    G, t, _ = layer.keys.shape
    attention = layer.full_attention(0, t).mean(axis=1)
    found = np.ones((len(budgets), G, t))
    for row, budget in enumerate(budgets):
        for head in range(G):
            left = best_left(attention[head], layer.prompt, budget)
            present = left >= np.arange(t)[:, None]
            found[row, head] = (attention[head] * present).sum(axis=1)
    return found


def random_of(layer: Layer, budgets: Sequence[int]) -> Float[Array, "budgets G t"]:
    """Return the mass that evicting at random holds in the mean; exact.

    After every token that brings the cache to B + 1 entries, each of them is evicted with the same
    probability; of a prompt longer than B, B entries drawn at random are kept.
    """
    G, t, _ = layer.keys.shape
    masses = np.ones((len(budgets), G, t))
    for first, last in layer.stretches():
        attention = layer.full_attention(first, last).mean(axis=1)
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
    may choose anew for every token, and take back what was evicted. It holds for policies that
    never keep more than B entries after a step; compare a lagged policy at its largest size.
    """
    t = layer.keys.shape[1]
    bounds = np.ones((len(budgets), len(layer.keys), t))
    for first, last in layer.stretches():
        attention = layer.full_attention(first, last).mean(axis=1)
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


# --- policies -------------------------------------------------------------------------------------


EXACT = 512
"""Tokens up to which the best keep sets are found exactly unless told otherwise."""


def recall(
    layer: Layer, fates: Sequence[Fate], threshold: float = 0.01, gap: int = 16
) -> list[dict[str, int]]:
    """Judge the entries that every policy kept by the full cache's later attention.

    The counts are those fields of `Judgement`, over all KV heads. A token activates an entry from
    ``threshold`` on, which is attention α, mean over the query heads of a KV head.
    """
    check_share(threshold=threshold)
    check_at_least(0, gap=gap)
    G, t, _ = layer.keys.shape
    active = np.zeros((G, t), dtype=np.int64) - 1
    """Latest token that activated each entry."""
    regained, hits = 0, [0] * len(fates)
    for first, last in layer.stretches():
        attention = layer.full_attention(first, last).mean(axis=1)
        for token in range(first, last):
            now = attention[:, token - first, :token] >= threshold
            before = np.maximum(active[:, :token], np.arange(token))
            if token >= layer.prompt:
                again = now & (token - before > gap)
                regained += int(again.sum())
                for row, fate in enumerate(fates):
                    hits[row] += int((again & (fate.left[:, :token] >= token)).sum())
            active[:, :token][now] = token
    return [
        {
            "regained": regained,
            "hits": hits[row],
            "evicted": int((fate.left < t).sum()),
            "premature": int(((fate.left < t) & (active > fate.left)).sum()),
        }
        for row, fate in enumerate(fates)
    ]


@dataclass(frozen=True)
class Judgement:
    """One policy in one layer; counts are over KV heads, means over generated tokens as well."""

    fate: Fate
    regained: int
    """How often a generated token activated an entry again, after a gap."""
    hits: int
    """How often such an entry was there."""
    evicted: int
    """Entries that were evicted."""
    premature: int
    """Entries that were evicted although a later token activated them."""
    size: int
    """Largest number of entries per KV head after a generated token."""
    mass: float
    error: float
    random: float
    """Mass that evicting at random holds with ``size`` entries."""
    best: float
    """Mass that the best keep sets of ``size`` entries hold, or a bound on it."""

    @property
    def regret(self) -> float:
        """Mass that the best keep sets hold and this policy lost."""
        return self.best - self.mass


def judge(
    trace: Trace,
    policies: Sequence[Policy],
    block_size: int | None = None,
    workers: int = 1,
    threshold: float = 0.01,
    gap: int = 16,
    exact: bool | None = None,
) -> Iterator[list[Judgement]]:
    """Replay one layer after the other, as `replay` does, and judge every policy.

    A token activates an entry from the attention ``threshold`` on; the entry regains importance if
    it had not been activated for ``gap`` tokens. The best keep sets are found exactly, or bounded;
    ``exact`` = None finds those of up to `EXACT` tokens.

    Raises:
        ValueError: if a policy does not fit the trace, or an argument is not allowed.
    """
    check_replay(trace, policies, block_size)
    task = partial(_judge_layer, policies=policies, threshold=threshold, gap=gap, exact=exact)
    yield from over_layers(trace, task, block_size, workers)


def _judge_layer(
    layer: Layer, policies: Sequence[Policy], threshold: float, gap: int, exact: bool | None
) -> list[Judgement]:
    exact = layer.tokens <= EXACT if exact is None else exact
    fates, generated = replay_layer(layer, policies), slice(layer.prompt, None)
    sizes = [int(fate.entries[generated].max()) for fate in fates]
    unique = sorted(set(sizes))
    chance = random_of(layer, unique)[..., generated].mean(axis=(1, 2))
    best = (oracle_of if exact else bound_of)(layer, unique)[..., generated].mean(axis=(1, 2))
    return [
        Judgement(
            fate=fate,
            **counts,
            size=size,
            mass=float(fate.mass[:, generated].mean()),
            error=float(fate.error[:, generated].mean()),
            random=float(chance[unique.index(size)]),
            best=float(best[unique.index(size)]),
        )
        for fate, counts, size in zip(
            fates, recall(layer, fates, threshold, gap), sizes, strict=True
        )
    ]


def skill(judgements: Sequence[Judgement]) -> float:
    """Return how far one policy came from random, 0, to the best, 1, over several layers.

    NaN where nothing had to be evicted, so that chance and the best are the same.
    """
    random, best, mass = (
        np.mean([getattr(each, name) for each in judgements]) for name in ("random", "best", "mass")
    )
    return float((mass - random) / (best - random)) if best > random + 1e-12 else float("nan")
