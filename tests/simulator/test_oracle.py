"""The best that could be kept, chance, and the bound on what any keep set can hold."""

from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from noise import noise
from tolerances import FLOAT64

from kvlab.reference import methods
from kvlab.reference.policy import Edges, Entries, EveryBlock, Full, Policy, Score
from kvlab.reference.simulator.judge import best_left, bound_of, oracle_of, random_of, survival
from kvlab.reference.simulator.replay import Layer, replay, replay_layer

SMALL = noise(layers=1, t=9, prompt=3)


def attention_of(trace):
    layer, t = Layer.of(trace, 0), trace.shape[3]
    return layer.full_attention(0, t).attention.mean(axis=1)


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


@pytest.mark.parametrize("budget", [1, 4, 30])
def test_the_oracle_keeps_within_its_budget(budget):
    attention = attention_of(noise(layers=1))[0]
    left = best_left(attention, 20, budget)
    for token in range(19, 70):
        present = (left > token) & (np.arange(70) <= token)
        assert present.sum() <= budget
    assert (left >= np.maximum(np.arange(70), 19)).all()


@dataclass(frozen=True)
class Chance(Score):
    seed: int

    def score(self, state, seen, candidates, room):
        return np.random.default_rng([self.seed, seen.clock.seen]).random(seen.positions.shape)


def test_chance_is_the_mean_of_many_random_runs():
    trace, runs = noise(layers=1, t=24, prompt=8), 400
    layer = Layer.of(trace, 0)
    policies = [
        Policy(f"{seed}", Chance(seed), EveryBlock(), Edges(), Entries(5), Full())
        for seed in range(runs)
    ]
    masses = np.array([fate.mass[:, 8:].mean() for fate in replay_layer(layer, policies)])
    expected = random_of(layer, [5])[0, :, 8:].mean()
    assert abs(masses.mean() - expected) < 4 * masses.std() / runs**0.5


@pytest.mark.parametrize(("prompt", "budget"), [(10, 6), (3, 6), (0, 1), (10, 40)])
def test_as_many_entries_survive_as_the_budget_allows(prompt, budget):
    present = survival(0, 40, prompt, budget)
    for token in range(40):
        older = present[token, :token].sum()
        expected = token if token < prompt else min(token, budget)
        assert older == pytest.approx(expected)


@pytest.mark.parametrize("spec", ["h2o", "tova", "caote:h2o", "streaming_llm@sinks=2"])
def test_no_policy_exceeds_the_oracle_and_the_oracle_not_the_bound(spec):
    trace = noise()
    for number, (fate,) in enumerate(replay(trace, [methods.get(spec, 12)])):
        layer, decoding = Layer.of(trace, number), slice(trace.prompt, None)
        best = oracle_of(layer, [12])[0, :, decoding]
        bound = bound_of(layer, [12])[0, :, decoding]
        assert (fate.mass[:, decoding].sum(axis=1) <= best.sum(axis=1) + FLOAT64).all()
        assert fate.mass[:, decoding].sum() < 0.999 * best.sum()
        assert (best[:, 1:] <= bound[:, 1:] + FLOAT64).all()


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
    with pytest.raises(ValueError, match="budget = 0 must be at least 1"):
        masses(layer, [0])
