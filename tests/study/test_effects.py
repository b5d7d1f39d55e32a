"""Figures of the effects are made of the stored labels; ranks and shares by hand."""

import json

import numpy as np
import pytest

from study.effects_figures import MODELS, best, correlation, midranks, of_model, stored, written
from support.tolerances import FLOAT64


@pytest.mark.parametrize("model", MODELS)
def test_the_figures_are_made_again_from_the_labels(model):
    found = json.loads(written(of_model(model)))
    assert found == stored()[model]


def test_ranks_and_shares_by_hand():
    """Weights 2, 1, 1: below 1 lies nothing and half of its own 2; below both 3s lies 2."""
    weights = np.array([1.0, 2.0, 1.0])
    ranks = midranks(np.array([3, 1, 3]), weights)
    assert ranks.tolist() == [3, 1, 3]
    x = np.array([1, 2, 3])
    falling = correlation(x, -x, weights)
    assert falling == pytest.approx(-1, abs=FLOAT64)
    # 77 entries are kept: all 70 of size 3, and 7 of the 186 of size 1
    text = {
        "given": np.array([1.0, -3.0]),
        "weight": np.array([186.0, 70.0]),
    }
    found = best(text, np.arange(2), "given")
    assert found == pytest.approx(217 / 396, abs=FLOAT64)
