import numpy as np

from kvlab.reference import methods
from support.build import run
from support.tolerances import FLOAT64


def test_two_tokens_by_hand():
    """q·k/√1 = (ln 3, 0): softmax = (3/4, 1/4); X = 3/4·8 + 1/4·4 = 7."""
    queries = np.array([0.0, 1.0]).reshape(1, 1, 2, 1)
    keys = np.array([np.log(3), 0.0]).reshape(1, 2, 1)
    values = np.array([8.0, 4.0]).reshape(1, 2, 1)
    last = run(methods.get("full"), queries, keys, values, prompt=0)[-1]
    np.testing.assert_allclose(last.output, [[[[7.0]]]], atol=FLOAT64)
    assert len(last.cache) == 2
