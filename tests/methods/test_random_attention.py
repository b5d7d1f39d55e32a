from dataclasses import replace

import numpy as np

from kvlab.reference import methods
from kvlab.reference.cache import State
from kvlab.reference.step import select
from support.build import Given, kept, observation


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
