"""Drawn cases: bugs that show only at the sizes of kernels, or from call to call."""

import numpy as np
import pytest

from kvlab.reference.conformance import Status, check
from kvlab.reference.conformance.fuzzing import fuzz
from kvlab.reference.conformance.implementation import Functions
from kvlab.reference.conformance.sizes import sized_cases
from kvlab.reference.selection import keep_set


def attend_in_tiles(tile=64, channels=None, forgets_last=False):
    """Return attention that has the bugs of an outside author's list, if wanted."""

    def attend(queries, keys, values, positions, query_positions, softcap):
        n = keys.shape[1]
        if forgets_last and n > tile and n % tile == 0:
            keys, values, positions = (x[:, : n - tile] for x in (keys, values, positions))
        logits = queries[..., :channels] @ keys[:, None, :, :channels].swapaxes(-1, -2)
        logits = logits / np.sqrt(queries.shape[-1])
        if softcap is not None:
            logits = softcap * np.tanh(logits / softcap)
        seen = positions[:, None, None] <= query_positions[:, None]
        logits = np.where(seen, logits, -1e30)
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return weights / weights.sum(axis=-1, keepdims=True) @ values[:, None]

    return attend


@pytest.mark.parametrize("bug", [{"forgets_last": True}, {"channels": 64}])
def test_a_bug_of_tiles_or_channels_shows_at_kernel_sizes_alone(bug):
    attend = attend_in_tiles(**bug)
    check("attend", attend).raise_for_failures()
    report = check("attend", attend, sizes=("kernel",), minimise=False)
    assert report.count(Status.FAILED)
    check("attend", attend_in_tiles(), sizes=("kernel",)).raise_for_failures()


def kept_of_the_first(most):
    def kept(scores, safe, room):
        short = scores.astype(float).copy()
        short[:, most:] = -1e30
        return keep_set(short, safe, room)

    return kept


def test_a_selection_that_looks_at_1024_entries():
    check("keep_set", kept_of_the_first(1024)).raise_for_failures()
    assert not check("keep_set", kept_of_the_first(1024), sizes=("kernel",), minimise=False).passed


def test_a_seed_draws_the_same_numbers_again():
    def drawn(seed):
        return [*sized_cases("kernel", seed, lambda target: target == "h2o.select")]

    first, again, other = drawn(0), drawn(0), drawn(1)
    assert [case.name for case in first] == [case.name for case in other]
    for one, two, three in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(one.inputs["keys"], two.inputs["keys"])
        assert not np.array_equal(one.inputs["keys"], three.inputs["keys"])
    blocks = {case.parameters["block"] for case in first if case.parameters["generated"]}
    assert {1} < blocks, "a second turn of several tokens"


def test_an_unknown_size_is_refused():
    with pytest.raises(ValueError, match="sizes = 'large' must be one of"):
        check("keep_set", kept_of_the_first(9), sizes=("large",))


def test_fuzzing_finds_what_comes_from_earlier_calls():
    calls = []

    def kept(scores, safe, room):
        calls.append(1)
        return keep_set(scores.astype(float), safe, room + (len(calls) > 25 and room > 1))

    under_test = Functions({"keep_set": kept}, strict=True)
    report = fuzz("keep_set", under_test, 3, 30)
    assert report.count(Status.FAILED) == 1
    right = Functions({"keep_set": kept_of_the_first(10**6)}, strict=True)
    assert fuzz("keep_set", right, 3, 10).passed
    with pytest.raises(ValueError, match="must not be a whole cache"):
        fuzz("h2o.whole_cache", Functions({"h2o.whole_cache": kept}), 0, 1)
