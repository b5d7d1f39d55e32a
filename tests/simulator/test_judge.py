"""The best that could be kept, chance, a bound; and whether an entry was there when it mattered."""

from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.policy import Edges, Entries, EveryBlock, Full, Policy, Score
from kvlab.reference.simulator.judge import bound_of, judge, oracle_of, random_of, recall, skill
from kvlab.reference.simulator.replay import Fate, Layer, replay_layer
from support.noise import noise
from support.tolerances import FLOAT64

# --- the best, chance, and a bound ----------------------------------------------------------------


SMALL = noise(layers=1, t=9, prompt=3)


def attention_of(trace):
    layer, t = Layer.of(trace, 0), trace.shape[3]
    return layer.full_attention(0, t).mean(axis=1)


def best_by_trying_everything(attention, prompt, budget):
    """Mass over the generated tokens of the best sequence of keep sets."""
    t = len(attention)

    @cache
    def best(kept, token):
        if token == t:
            return 0.0
        present = (*kept, token)
        mass = attention[token, list(present)].sum()
        options = combinations(present, min(budget, len(present)))
        return mass + max(best(option, token + 1) for option in options)

    starts = combinations(range(prompt), min(budget, prompt))
    return max(best(start, prompt) for start in starts)


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("prompt", [0, 1, 3])
def test_the_oracle_is_the_best_of_all_keep_sets(budget, prompt):
    trace = noise(seed=prompt, layers=1, t=9, prompt=prompt)
    masses = oracle_of(Layer.of(trace, 0), [budget])[0, :, prompt:].sum(axis=1)
    for head, attention in enumerate(attention_of(trace)):
        expected = best_by_trying_everything(attention, prompt, budget)
        assert masses[head] == pytest.approx(expected, rel=FLOAT64)


@dataclass(frozen=True)
class Chance(Score):
    seed: int

    def score(self, state, seen, candidates, room):
        return np.random.default_rng([self.seed, seen.clock.seen]).random(seen.positions.shape)


def test_chance_is_the_mean_of_many_random_runs():
    trace, runs = noise(layers=1, t=24, prompt=8), 100
    layer = Layer.of(trace, 0)
    policies = [
        Policy(f"{seed}", Chance(seed), EveryBlock(), Edges(), Entries(5), Full())
        for seed in range(runs)
    ]
    masses = np.array([fate.mass[:, 8:].mean() for fate in replay_layer(layer, policies)])
    expected = random_of(layer, [5])[0, :, 8:].mean()
    assert abs(masses.mean() - expected) < 4 * masses.std() / runs**0.5


def test_the_bound_is_the_best_of_all_sets():
    bounds = bound_of(Layer.of(SMALL, 0), [1, 3])
    attention = attention_of(SMALL)
    for row, budget in enumerate((1, 3)):
        for token in range(9):
            others = [*combinations(range(token), min(budget, token))]
            best = [
                max(attention[head, token, [*chosen, token]].sum() for chosen in others)
                for head in range(2)
            ]
            np.testing.assert_allclose(bounds[row, :, token], best, rtol=FLOAT64)


@pytest.mark.parametrize("masses", [bound_of, oracle_of, random_of])
def test_a_budget_of_everything_holds_all(masses):
    layer = Layer.of(noise(), 0)
    np.testing.assert_allclose(masses(layer, [70])[..., 20:], 1, rtol=FLOAT64)


# --- recall and skill -----------------------------------------------------------------------------


class Scripted(Layer):
    """A layer of one head whose attention is written down."""

    def full_attention(self, first, last):
        return SCRIPT[None, None, first:last, :last]


SCRIPT = np.zeros((8, 8))
SCRIPT[1, 0] = 0.5  # activated while the prompt is read
SCRIPT[5, 0] = 0.5  # regained after 4 tokens
SCRIPT[6, 0] = 0.5  # at once again: no gap
SCRIPT[6, 2] = 0.2  # regained, 4 tokens after its birth
SCRIPT[7, 3] = 0.1  # below the threshold
SCRIPT[7, 1] = 0.3  # regained, 6 tokens after its birth


def scripted(prompt=2):
    vectors = np.zeros((1, 8, 1))
    return Scripted(vectors[:, None], vectors, vectors, np.full(8, np.nan), prompt, (prompt,))


def fate(left):
    ones = np.ones((1, 8))
    return Fate("written", 0, np.array([left]), np.ones(8, int), ones[0], ones, ones, ones[0] > 0)


def test_hits_and_premature_evictions_counted_by_hand():
    found = recall(scripted(), [fate([8] * 8), fate([5, 4, 5, 3, 8, 8, 8, 8])], 0.15, gap=3)
    counts = [tuple(each.values()) for each in found]
    # entry 0 was evicted after token 5, which still found it; 1 and 2 before they were looked for;
    # of 0, 1, 2 and 3, all evicted, 0, 1 and 2 were activated later
    assert counts == [(3, 3, 0, 0), (3, 1, 4, 3)]


@pytest.mark.parametrize(
    ("prompt", "gap", "regained"), [(2, 0, 4), (2, 3, 3), (2, 5, 1), (6, 3, 2)]
)
def test_a_longer_gap_asks_for_less_and_nothing_is_asked_of_the_prompt(prompt, gap, regained):
    (found,) = recall(scripted(prompt), [fate([8] * 8)], 0.15, gap)
    assert found["regained"] == regained
    assert recall(scripted(prompt), [], 0.15, gap) == []


def test_workers_change_nothing():
    policies = [methods.get("h2o", 12), methods.get("desirekv@interval=8,selector=2,group=4")]
    alone, shared = (
        [[(x.mass, x.best, x.random, x.hits) for x in layer] for layer in each]
        for each in (judge(noise(), policies, workers=n) for n in (1, 2))
    )
    assert alone == shared


def test_chance_has_no_skill_and_a_full_cache_none_to_have():
    (judged, _) = judge(noise(), [methods.get("full")])
    assert np.isnan(skill(judged))
    assert judged[0].regret == pytest.approx(0)
