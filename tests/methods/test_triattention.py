from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvlab.reference import methods
from kvlab.reference.cache import State
from kvlab.reference.methods import triattention
from kvlab.reference.transformer import turn
from support.build import kept, observation
from support.tables import cases
from support.tolerances import FLOAT64

POSITIONS = np.arange(6, 10)
KAPPA = np.array([[1, 0], [0, 1], [-1, 0], [0.5, 0.5]])
"""Keys before their rotation: 1, i, -1 and 0.5 + 0.5i."""
SUMS = np.array([[2.0, 0, 2.5, 2.5, 1], [0, 1, 1.25, 1.25, 1]])
"""Of one query per head: E = 2 and i, A = 2.5 and 1.25."""


def slow(vectors, by):
    """Rotate by half an angle of 1 per position."""
    angles = np.asarray(by)[..., None] / 2
    return turn(vectors, (np.cos(angles), np.sin(angles)))


def looked(prompt=0, **given):
    keys = slow(KAPPA, POSITIONS)
    seen = observation(
        np.full((1, 2, 1, 4), 0.25), keys=keys, seen=10, prompt=prompt, positions=POSITIONS[None]
    )
    return replace(seen, rotary=slow, **given), State(stream={"sums": SUMS[None]})


@pytest.fixture(autouse=True)
def three_distances(monkeypatch):
    monkeypatch.setattr(triattention, "AHEAD", (1, 2, 4))


def test_a_mean_query_pays_a_trigonometric_series_by_hand():
    """Head 0 pays -1.130, 1.271, 1.390, 1.103, head 1 pays 0.256, -0.468, 0.933, -0.261.

    Less their means and over their deviations: -1.724, 0.591, 0.705, 0.428 and 0.261, -1.078,
    1.512, -0.695, of which the largest count.
    """
    policy = methods.get("triattention@layers=apart", 2)
    seen, state = looked()
    scores = policy.score.score(state, seen, seen.positions >= 0, 2)
    np.testing.assert_allclose(scores, [[0.261, 0.591, 1.512, 0.428]], atol=1e-3)
    assert kept(policy, state, seen) == [1, 2]


def test_only_candidates_are_compared():
    """Of two, one is a deviation below the mean, in both heads."""
    seen, state = looked()
    score = methods.get("triattention@layers=apart", 2).score
    found = score.score(state, seen, np.array([[False, True, True, False]]), 1)[0]
    np.testing.assert_allclose(found[1:3], [-1, 1], atol=FLOAT64)


@cases(__file__, "the_prompt_stays_as_far_as_the_budget_reaches", "option prompt budget stay")
def test_the_prompt_stays_as_far_as_the_budget_reaches(option, prompt, budget, stay):
    """The entries as above, whose positions count from 6 on: a prompt of 2 are the first two."""
    seen, state = looked(prompt + 6)
    policy = methods.get(f"triattention@layers=apart,prompt={option}", budget + 6)
    assert policy.score.options.prompt == option
    found = policy.score.score(state, seen, seen.positions >= 0, budget + 6)
    order = np.sort(np.argsort(-found[0], kind="stable")[:budget])
    assert order.tolist() == stay


def test_the_mean_query_and_its_length_by_hand(tmp_path):
    """3 + 4i and -3 + 4i have the mean 4i and the length 5; a file can say the same."""
    turned = slow(np.array([[3.0, 4], [-3, 4]]), np.arange(2))
    rows = observation(np.full((2, 2), 0.5), queries=turned, keys=KAPPA[:2], prompt=2)
    rows = replace(rows, rotary=slow)
    score = methods.get("triattention", 2).score
    state = score.observe(State(), rows)
    path = str(tmp_path / "statistics.safetensors")
    mean, length = np.array([[[0.0, 4]]]), np.array([[[5.0, 5]]])
    save_file({"mean": mean, "length": length}, path)
    stored = methods.get("triattention", 2, statistics=path).score
    assert not stored.observe(State(), rows).stream
    for each in (score, stored):
        found = each.statistics(state, rows)
        np.testing.assert_allclose(found, [mean, length], atol=FLOAT64)


def test_channels_that_are_rotated_together_are_found():
    """Channels 0 and 2 of four are a pair, the others are not rotated."""

    def some(vectors, by):
        turned = vectors.copy()
        turned[..., [0, 2]] = slow(vectors[..., [0, 2]], by)
        return turned

    seen = replace(observation([[1.0]], keys=np.ones(4)), rotary=some)
    expected = np.eye(4)
    expected[[0, 2], [2, 0]] = 1
    assert (triattention.pairs(seen) == expected).all()
