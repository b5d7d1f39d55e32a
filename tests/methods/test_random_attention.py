from dataclasses import replace

import numpy as np
import pytest
from build import Given, kept, observation, run, stream

from kvlab.reference import methods
from kvlab.reference.cache import State
from kvlab.reference.step import select


def with_draws(spec, budget, numbers):
    policy = methods.get(spec, budget)
    return replace(policy, score=replace(policy.score, inner=Given(np.array(numbers))))


def test_the_prompt_stays_and_the_largest_draws_by_hand():
    """Prompt and window of 2, 6 of 8 stay: of entries 2 to 5, the two with the largest draws."""
    draws = [[0, 0, 0.42, 0.91, 0.13, 0.77, 0, 0], [0, 0, 0.65, 0.08, 0.88, 0.31, 0, 0]]
    policy = with_draws("random_attention@recent=2", 6, draws)
    seen = observation(np.full((2, 1, 1, 8), 1 / 8), prompt=2)
    stay = select(policy, State(), seen).keep
    assert stay.tolist() == [[0, 1, 3, 5, 6, 7], [0, 1, 2, 4, 6, 7]]


def test_of_a_long_prompt_all_places_but_one_are_its_first_tokens():
    """6 - 2 = 4 places: entries 0, 1, 2, though their draws are the smallest, and the best draw."""
    policy = with_draws("random_attention@recent=2", 6, [[0.1, 0.2, 0.3, 0.5, 0.9, 0.8, 0.7, 0.6]])
    assert kept(policy, State(), observation(np.full((1, 8), 1 / 8), prompt=7)) == [
        *(0, 1, 2, 4),
        *(6, 7),
    ]


@pytest.mark.parametrize(
    ("options", "budget", "prompt", "left"),
    [
        ("", 6, 3, {8: 6, 10: 6, 12: 6}),
        ("", 7, 3, {9: 7, 11: 7, 13: 7}),
        ("", 6, 9, {10: 6, 12: 6}),  # never in prefill, then down to the budget at once
        (",newest=beside", 6, 3, {10: 8, 12: 8}),
    ],
)
def test_it_decides_where_the_window_is_full_beyond_the_budget(options, budget, prompt, left):
    """Window 2: at 8, 10, … tokens for a budget of 6; two entries more with the newest beside."""
    data = stream(np.random.default_rng(0), 2, 1, 4, 13)
    entries = 0
    for each in run(methods.get(f"random_attention@recent=2{options}", budget), *data, prompt):
        seen = each.seen.clock.seen
        entries = left.get(seen, entries + each.seen.clock.block)
        assert len(each.cache) == entries, seen


def test_a_whole_prompt_that_does_not_fit_is_refused():
    policy = methods.get("random_attention@recent=2,prompt=whole", 6)
    with pytest.raises(ValueError, match="budget = 6 must be at least the 7 entries"):
        policy.check(prompt=5)
    policy.check(prompt=4)
