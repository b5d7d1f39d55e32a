from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvlab.reference import methods
from kvlab.reference.cache import State
from kvlab.reference.methods.expected_attention import mean_and_covariance
from kvlab.reference.step import empty_cache, step
from kvlab.reference.streams import Stream, rotary
from support.build import kept, observation, stream
from support.tables import cases
from support.tolerances import FLOAT64

KEYS = [[1, 0], [-0.5, -1], [0, 1], [-1, -1]]
VALUES = [[3, 0], [1, 0], [0, 0.5], [0, 1]]
QUERIES = np.array([[1.0, 0], [3, 0], [3, 2], [9, 9]])


def looked(queries=QUERIES, prompt=4):
    """Observe queries at positions 0, 1, …, rotated to them."""
    turned = rotary(queries, np.arange(len(queries)))
    attention = np.full((len(queries), 4), 0.25)
    seen = observation(attention, keys=KEYS, values=VALUES, queries=turned, prompt=prompt)
    return replace(seen, rotary=rotary)


def around(mean, covariance, count=4):
    """Remember as many queries of this mean and covariance."""
    second = np.array(covariance) + np.outer(mean, mean)
    rows = np.block([[second, np.array(mean)[:, None]], [np.array(mean)[None], np.ones((1, 1))]])
    return State(stream={"moments": count * rows[None, None]})


@cases(__file__, "what_queries_to_come_would_pay_by_hand", "epsilon stay")
def test_what_queries_to_come_would_pay_by_hand(epsilon, stay):
    """Positions 4 and 5: μ̄ = (cos 4 + cos 5, sin 4 + sin 5) / 2 = (-0.185, -0.858).

    μ̄·k/√2 = -0.131, 0.672, -0.607, 0.737, and kᵀΣ̄k/4 = 0.023, 0.114, 0.093, 0.147: shares 0.147,
    0.359, 0.098, 0.396, times the lengths 3, 1, 0.5, 1.
    """
    policy = methods.get(f"expected_attention@ahead=2,sinks=0,epsilon={epsilon}", 2)
    seen, state = looked(), around([1, 0], [[0.5, 0], [0, 0.1]])
    scores = policy.score.score(state, seen, seen.positions >= 0, 2)[0]
    expected = np.array([0.147, 0.359, 0.098, 0.396]) + epsilon
    np.testing.assert_allclose(scores, expected * [3, 1, 0.5, 1], atol=1e-3)
    assert kept(policy, state, seen) == stay


def test_query_heads_of_a_kv_head_share_by_their_mean():
    """A second head whose queries are 0 pays every entry a quarter."""
    score = methods.get("expected_attention@ahead=2,sinks=0,epsilon=1", 2).score
    seen, state = looked(), around([1, 0], [[0.5, 0], [0, 0.1]])
    two = np.concatenate([state.stream["moments"], np.diag([0.0, 0, 4])[None, None]], axis=1)
    found = score.score(state.with_stream(moments=two), seen, seen.positions >= 0, 2)[0]
    expected = (np.array([0.147, 0.359, 0.098, 0.396]) + 0.25) / 2 + 1
    np.testing.assert_allclose(found, expected * [3, 1, 0.5, 1], atol=1e-3)


def test_a_value_is_as_long_as_query_heads_project_it_on_average():
    """Head 0 leaves x and doubles y: lengths 3, 1, 1, 2. Head 1 makes (4x, 3x) of x, and nothing of
    y: 15, 5, 0, 0. The second head's queries are 0.
    """
    score = methods.get("expected_attention@ahead=2,sinks=0,values=projected", 2).score
    projection = np.array([[[[1.0, 0, 0], [0, 2, 0]], [[0, 4, 3], [0, 0, 0]]]])
    seen, state = looked(), around([1, 0], [[0.5, 0], [0, 0.1]])
    rows = {name: np.repeat(getattr(seen, name), 2, axis=1) for name in ("queries", "attention")}
    seen = replace(seen, projection=projection, **rows)
    two = np.concatenate([state.stream["moments"], np.diag([0.0, 0, 4])[None, None]], axis=1)
    found = score.score(state.with_stream(moments=two), seen, seen.positions >= 0, 2)[0]
    expected = (np.array([0.147, 0.359, 0.098, 0.396]) + 0.25) / 2
    np.testing.assert_allclose(found, expected * [9, 3, 0.5, 1], atol=3e-3)


def test_sinks_have_no_share_and_one_more_than_the_largest():
    """Without entry 0 the shares are 0.359, 0.098 and 0.396 of 0.853."""
    score = methods.get("expected_attention@ahead=2,sinks=1", 2).score
    seen, state = looked(), around([1, 0], [[0.5, 0], [0, 0.1]])
    found = score.score(state, seen, seen.positions >= 0, 2)[0]
    np.testing.assert_allclose(found[1:], [0.421, 0.0575, 0.464], atol=1e-3)
    assert found[0] == found[3] + 1


@cases(__file__, "mean_and_covariance_before_the_rotation_by_hand", "sinks mean covariance")
def test_mean_and_covariance_before_the_rotation_by_hand(sinks, mean, covariance):
    """x: 1 3 3 9, y: 0 0 2 9; of the last two alone the halves of the differences are 3 and 3.5."""
    score = methods.get(f"expected_attention@sinks={sinks}", 5).score
    whole, state = looked(), State()
    for part in (slice(0, 1), slice(1, 4)):
        clock = replace(whole.clock, seen=part.stop, block=part.stop - part.start)
        rows = {name: getattr(whole, name)[:, :, part] for name in ("queries", "attention")}
        state = score.observe(state, replace(whole, clock=clock, **rows))
    found = mean_and_covariance(state.stream["moments"])
    np.testing.assert_allclose(found[0][0, 0], mean, atol=FLOAT64)
    np.testing.assert_allclose(found[1][0, 0], covariance, atol=FLOAT64)


@pytest.mark.parametrize(
    ("origin", "first", "mean"), [("text", 4, [6, 5.5]), ("buffer", 2, [9, 9])]
)
def test_newest_queries_decide_while_the_model_writes(origin, first, mean):
    """Of a buffer of two, kvpress takes one for a sink, and counts positions from the buffer on."""
    score = methods.get(f"expected_attention@buffer=2,sinks=1,origin={origin}", 2).score
    seen = looked(prompt=0)
    state = score.observe(around([1, 0], [[0.5, 0], [0, 0.1]]), seen)
    found, _, start = score.queries_to_come(state, seen)
    np.testing.assert_allclose(found[0, 0], mean, atol=FLOAT64)
    assert start == first
    assert "moments" not in state.stream


def test_statistics_of_a_file_take_the_place_of_the_texts_own(tmp_path):
    mean, covariance = np.array([1.0, 0]), np.diag([0.5, 0.1])
    path = str(tmp_path / "statistics.safetensors")
    save_file({"mean": mean[None, None], "covariance": covariance[None, None]}, path)
    score = methods.get(f"expected_attention@ahead=2,sinks=0,statistics={path}", 2).score
    own = methods.get("expected_attention@ahead=2,sinks=0", 2).score
    seen, state = looked(), around(mean, covariance)
    assert not score.observe(State(), seen).stream
    found, expected = (x.score(state, seen, seen.positions >= 0, 2) for x in (score, own))
    np.testing.assert_allclose(found, expected, atol=FLOAT64)
    with pytest.raises(ValueError, match=r"must be of this model, with 3 layers.*\(1, 1, 2\)"):
        score.score(state, replace(seen, layers=3), seen.positions >= 0, 2)
    for method in ("expected_attention", "triattention"):
        with pytest.raises(ValueError, match="statistics = 'nowhere' cannot be read"):
            methods.get(f"{method}@statistics=nowhere", 5)


def test_a_block_without_what_only_models_have_is_refused():
    policy = methods.get("expected_attention@values=projected", 5)
    given = stream(np.random.default_rng(0), 1, 1, 4, 6)
    block = next(Stream(*given, np.zeros(6), 6, (6,)).pieces())
    with pytest.raises(ValueError, match="reads the rotary embedding: only"):
        step(policy, empty_cache(policy, 1, 4), block)
    with pytest.raises(ValueError, match="reads the output projection: only"):
        step(policy, empty_cache(policy, 1, 4), replace(block, rotate=rotary))
