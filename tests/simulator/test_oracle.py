"""The bound on what any keep set can hold."""

from itertools import combinations

import numpy as np
import pytest
from noise import noise
from tolerances import FLOAT64

from kvlab.reference import methods
from kvlab.reference.simulator.oracle import mass_bounds
from kvlab.reference.simulator.replay import Layer, replay


def test_the_bound_is_the_best_of_all_sets():
    trace = noise(layers=1, t=9, prompt=2)
    attention = Layer.of(trace, 0).full_attention(0, 9).attention.mean(axis=1)
    (bounds,) = mass_bounds(trace, [1, 3])
    for row, budget in enumerate((1, 3)):
        for token in range(9):
            others = [*combinations(range(token), min(budget, token))]
            best = [
                max(attention[head, token, [*chosen, token]].sum() for chosen in others)
                for head in range(2)
            ]
            np.testing.assert_allclose(bounds[row, :, token], best, rtol=FLOAT64)


@pytest.mark.parametrize("spec", ["h2o", "tova", "caote:h2o", "streaming_llm@sinks=2"])
def test_no_policy_exceeds_it(spec):
    trace = noise()
    for bounds, (fate,) in zip(
        mass_bounds(trace, [12]), replay(trace, [methods.get(spec, 12)]), strict=True
    ):
        decoding = slice(trace.prompt + 1, None)
        assert (fate.mass[:, decoding] <= bounds[0, :, decoding] + FLOAT64).all()
        assert (fate.mass[:, decoding] < 0.999 * bounds[0, :, decoding]).any()


def test_a_budget_of_everything_holds_all():
    (bounds, _) = mass_bounds(noise(), [70])
    np.testing.assert_allclose(bounds, 1, rtol=FLOAT64)
    with pytest.raises(ValueError, match=r"budgets = \[0\] must be at least 1"):
        next(mass_bounds(noise(), [0]))
