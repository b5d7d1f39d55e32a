import numpy as np
from build import kept, observation, observe_rows

from kvlab.reference import methods

ROWS = [[1.0], [0.7, 0.3], [0.1, 0.3, 0.6], [0.3, 0.1, 0.1, 0.5]]


def test_four_steps_by_hand():
    """α = .2. Step 1 stamps 0; step 2 stamps 0, 1; step 3 stamps 1, 2; step 4 stamps 0, 3.
    Last uses: 4, 3, 3, 4; with B = 3 entry 1 is evicted."""
    policy = methods.get("raas@threshold=0.2,pin_prompt=false", 3)
    state, seen = observe_rows(policy.score, ROWS)
    np.testing.assert_array_equal(state.entries["stamp"], [[4, 3, 3, 4]])
    assert kept(policy, state, seen) == [0, 2, 3]


def test_the_top_half_is_stamped_instead_of_a_threshold():
    """⌈n/2⌉ of each row: {0}; {0}, 1 is new; {2, 1}; {3, 0}. Stamps 4, 3, 3, 4."""
    policy = methods.get("raas@share=0.5,pin_prompt=false", 3)
    state, _ = observe_rows(policy.score, ROWS)
    np.testing.assert_array_equal(state.entries["stamp"], [[4, 3, 3, 4]])


def test_page_bound_by_hand():
    """Keys (1, −2) and (3, 1), query (2, −1): kmax = (3, 1), kmin = (1, −2).
    Σ max(q·kmax, q·kmin) = max(6, 2) + max(−1, 2) = 8 ≥ every q·k (4 and 5). Of a second query
    head, (1, 0), it is 3."""
    attention, keys = np.full((1, 2, 1, 2), 0.5), [[1, -2], [3, 1]]
    seen = observation(attention, keys=keys, queries=[[2, -1], [1, 0]])
    policy = methods.get("raas@page=2,pin_prompt=false", 4)
    assert policy.score.bound(seen, 0, 0, np.array([True, True])) == 8
