"""AhaKV's claims speak of what `methods/ahakv.py` computes."""

import numpy as np
import pytest
from prompted import scores_after_prompt
from tolerances import FLOAT64

from kvlab.reference.proofs import ahakv as proofs
from kvlab.reference.simulator.observed import observe_heads


def random_head(seed):
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=(40, 8)) for _ in range(3))


def real_heads():
    return [(head.queries, head.keys, head.values) for head in observe_heads(proofs.MODEL)[::4]]


@pytest.mark.parametrize("head", [*map(random_head, range(5)), *real_heads()])
def test_the_method_scores_by_equations_5_and_12_to_15(head):
    k, r = 30, 8
    scores = scores_after_prompt(f"ahakv@recent={r}", k, *head)
    np.testing.assert_allclose(scores, proofs.scores(*head, k, r), rtol=FLOAT64, atol=FLOAT64)
