"""Quadrants against their words, and storage errors against the quantiser's bound."""

import numpy as np
import pytest
from noise import noise

from kvlab.reference.simulator.observed import (
    QUADRANTS,
    Quadrants,
    outliers_and_errors,
    quadrants,
)
from kvlab.reference.simulator.replay import Layer


def test_quadrants_are_named_as_in_the_paper():
    # medians 2.5 and 2.5; one token each: neither, important, both, sensitive
    found = Quadrants(np.array([1.0, 3, 4, 2]), np.array([1.0, 2, 3, 4]))
    assert found.important.tolist() == [False, True, True, False]
    assert found.sensitive.tolist() == [False, False, True, True]
    assert found.counts == dict.fromkeys(QUADRANTS, 1)
    assert found.r_squared == pytest.approx(0.16)  # correlation 2/5


def test_a_layer_is_judged_without_its_recent_tokens():
    layer = Layer.of(noise(t=70), 0)
    found = quadrants(layer, recent=20)
    assert found.importance.shape == found.sensitivity.shape == (50,)
    assert found.sensitivity.max() == 1
    assert sum(found.counts.values()) == 50
    attention = layer.full_attention(50, 70).attention[..., :50].mean(axis=(0, 1, 2))
    assert found.importance[25] == pytest.approx(attention[22:29].mean())


def test_larger_outliers_cost_more_to_store():
    keys = np.tile(np.linspace(-1, 1, 32), (1, 3, 1))
    keys[0, 1, 5], keys[0, 2, 5] = 10, 40
    scores, errors = outliers_and_errors(keys, 4)
    assert scores[0, 0] == 0 and (np.diff(scores[0]) > 0).all() and (np.diff(errors[0]) > 0).all()
    steps = np.ptp(keys, axis=-1) / 15
    assert (errors <= 0.51 * steps).all() and (errors > 0.05 * steps).all()


def test_something_must_be_left_to_judge():
    with pytest.raises(ValueError, match="recent = 69 must leave two of the 70 tokens"):
        quadrants(Layer.of(noise(t=70), 0), recent=69)
