"""The entry that H2O evicts and CAOTE keeps: what CAOTE's page says of it."""

from pathlib import Path

import numpy as np

from study import one_entry
from study.evictions import recomputed_errors

PAGE = Path("docs/methods/caote.md").read_text("utf-8")


def test_the_entry_has_the_smaller_weight_and_the_farther_value():
    choice, _ = one_entry.find()
    first, second = choice.places
    assert choice.weights[first] == choice.weights[[first, second]].min()
    assert round(choice.distances[first] / choice.distances[second]) == 6
    recomputed = recomputed_errors(choice.weights, choice.values)
    np.testing.assert_allclose(choice.errors, recomputed, rtol=1e-9, atol=1e-12)
    assert choice.errors[first] > choice.errors[second]
    for place in choice.places:
        assert f"{100 * choice.weights[place]:.2f} %" in PAGE
