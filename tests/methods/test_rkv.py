import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.cache import State
from support.build import asked_once, looking
from support.tolerances import FLOAT64


def test_redundancy_of_duplicates_by_hand():
    """Eight unit keys, 2, 5, 7 equal, the rest orthogonal. Row 2 sees 5 and 7 and spares 7; row 5
    sees 2 and 7 and spares 7; row 7 sees 2 and 5 and spares 5. So 2 is charged twice (by 5 and 7),
    5 once (by 2), 7 never: column means 2/8, 1/8, 0, and R is their softmax."""
    keys = np.eye(8)
    keys[[5, 7]] = keys[2]
    redundancy = methods.get("rkv", 100).score.redundancy(keys)
    means = np.zeros(8)
    means[2], means[5] = 2 / 8, 1 / 8
    expected = np.exp(means) / np.exp(means).sum()
    np.testing.assert_allclose(redundancy, expected, atol=1e-7)
    assert redundancy[2] > redundancy[5] > redundancy[7]


def test_the_quirk_of_the_code_protects_the_first_token():
    rng = np.random.default_rng(8)
    keys = rng.normal(size=(6, 4)) + np.array([0.4, 0, 0, 0])
    plain = methods.get("rkv@similarity=0.99", 100).score.redundancy(keys)
    quirk = methods.get("rkv@similarity=0.99,first_column_quirk=true", 100).score.redundancy(keys)
    similar_to_first = (keys[1:] @ keys[0]).mean() > 0
    assert (quirk[0] < plain[0]) == similar_to_first


@pytest.mark.parametrize("mix", [1.0, 0.3])
def test_scores_by_hand(mix):
    """One query 1, keys ln 1, ln 2, ln 1 and its own: softmax over the candidates alone is
    (1/4, 1/2, 1/4), whose maximum over 7 neighbours is 1/2 everywhere. Of the two keys that point
    the same way each spares the other, so that R is 1/4 everywhere, too."""
    policy = methods.get(f"rkv@window=1,mix={mix}", 3)
    candidates = np.array([[True, True, True, False]])
    scores = policy.score.score(*asked_once(policy, [0.25] * 4, [1, 2, 1, 5]), candidates, 2)
    np.testing.assert_allclose(scores[0, :3], mix / 2 - (1 - mix) / 4, atol=FLOAT64)


def test_heads_join_before_the_softmax_and_rows_after_it_by_hand():
    """Two rows of two heads: 6 1 1 and 1 2 1, whose maxima 6 2 1 make 6/9 2/9 1/9; 1 1 6 and 1 1 1,
    so ⅛ ⅛ 6/8; the mean of both."""
    score = methods.get("rkv@window=2,mix=1.0,kernel=1", 4).score
    seen = looking([[[[6, 1, 1, 1, 1], [1, 1, 6, 1, 1]], [[1, 2, 1, 1, 1], [1, 1, 1, 1, 1]]]])
    scores = score.score(score.observe(State(), seen), seen, seen.positions < 3, 2)
    rows = np.array([[6 / 9, 2 / 9, 1 / 9], [1 / 8, 1 / 8, 6 / 8]])
    np.testing.assert_allclose(scores[0, :3], rows.mean(axis=0), atol=FLOAT64)


def test_a_zero_key_is_similar_to_none():
    keys = np.eye(4)
    keys[1] = 0.0
    redundancy = methods.get("rkv", 100).score.redundancy(keys)
    np.testing.assert_allclose(redundancy, 0.25, atol=FLOAT64)
