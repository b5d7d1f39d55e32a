import numpy as np

from kvlab.reference import methods
from kvlab.reference.cache import State
from kvlab.reference.observation import Clock
from support.build import asked_once, kept, looking, observation, run, stream
from support.tolerances import FLOAT64


def test_timeline_of_the_paper():
    """P = 1024, R = 32, c = 4: at 1056, 2080, 3104, 4128 generated tokens keep 256·1, 2, 3, 4.

    After the prompt, where another schedule may evict, none are there to be kept.
    """
    policy = methods.get("rpc")
    due = [g for g in range(1, 4200) if policy.schedule.due(Clock(g + 7, 1, 7))]
    assert due == [1056, 2080, 3104, 4128]
    kept_then = [
        policy.budget.room(observation([[1.0]], seen=g + 7, prompt=7), np.zeros((1, 1), bool))
        for g in (0, *due)
    ]
    assert kept_then == [0, 256, 512, 768, 1024]


def test_scores_by_hand():
    """One selector query 1, keys ln 1, ln 2, ln 1 and its own: softmax over the candidates alone
    is (1/4, 1/2, 1/4); mean of 3 with zeros: (3/4, 1, 3/4)/3."""
    policy = methods.get("rpc@interval=3,selector=1,compression=3,kernel=3")
    state, seen = asked_once(policy, [0.2] * 4, [1, 2, 1, 9])
    candidates = np.array([[True, True, True, False]])
    scores = policy.score.score(state, seen, candidates, 1)
    np.testing.assert_allclose(scores[0, :3], [0.25, 1 / 3, 0.25], atol=FLOAT64)
    assert kept(policy, state, seen) == [1, 3]


def test_all_heads_are_averaged_by_hand():
    """Two KV heads of two: ¾ ¼ and ½ ½, ¼ ¾ and ½ ½: on average ½ ½ for both."""
    score = methods.get("rpc@interval=3,selector=1,compression=3,kernel=1").score
    even = [[1, 1, 1]]
    seen = looking([[[[3, 1, 1]], even], [[[1, 3, 1]], even]])
    scores = score.score(score.observe(State(), seen), seen, seen.positions < 2, 1)
    np.testing.assert_allclose(scores[:, :2], 0.5, atol=FLOAT64)


def test_all_heads_share_unless_told_otherwise():
    queries, keys, values = stream(np.random.default_rng(13), 3, 2, 4, 30)
    spec = "rpc@interval=8,selector=2"
    shared = run(methods.get(spec), queries, keys, values, 3)[-1].cache.positions
    own = run(methods.get(f"{spec},heads=group"), queries, keys, values, 3)[-1].cache.positions
    assert (shared == shared[0]).all() and not (own == own[0]).all()
