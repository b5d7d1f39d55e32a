"""Traces that stay on the disk."""

import numpy as np
import pytest
from noise import noise

from kvlab.reference import methods
from kvlab.reference.simulator.replay import replay
from kvlab.reference.simulator.stored import StoredTrace
from kvlab.reference.simulator.trace import save_trace


@pytest.fixture(params=[True, False], ids=["compressed", "plain"])
def stored(request, tmp_path):
    save_trace(noise(layers=3), tmp_path / "t.npz", compress=request.param)
    return StoredTrace(tmp_path / "t.npz")


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0), (1, 1)])
def test_layers_are_those_of_the_trace(stored, order):
    trace = noise(layers=3)
    assert stored.shape == trace.shape
    assert stored.metadata.layers == trace.metadata.layers
    np.testing.assert_array_equal(stored.confidence, trace.confidence)
    for index in order:
        for read, expected in zip(stored.vectors(index), trace.vectors(index), strict=True):
            np.testing.assert_array_equal(read, expected)


def test_a_replay_of_it_is_the_same(stored):
    policies = [methods.get("h2o", 12)]
    for (one,), (two,) in zip(
        replay(stored, policies), replay(noise(layers=3), policies), strict=True
    ):
        np.testing.assert_array_equal(one.left, two.left)


def test_one_layer_at_a_time_is_in_memory(tmp_path):
    import tracemalloc

    save_trace(noise(layers=12, t=400), tmp_path / "t.npz")
    stored = StoredTrace(tmp_path / "t.npz")
    layer_bytes = sum(x.nbytes for x in stored.vectors(0))
    tracemalloc.start()
    for index in range(12):
        stored.vectors(index)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * layer_bytes


def members(path):
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": None}, "'keys' is missing"),
        ({"keys": np.zeros((2, 2, 70, 9))}, "keys of shape"),
        ({"queries": np.asfortranarray(noise().queries)}, "C order"),
        ({"prompt": np.array(71)}, "prompt = 71 must be between 0 and the 70 tokens"),
        ({"queries": noise().queries.astype(int)}, "queries of type int64"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path, change, message):
    path = tmp_path / "t.npz"
    save_trace(noise(), path)
    content = {**members(path), **change}
    np.savez_compressed(path, **{name: x for name, x in content.items() if x is not None})
    with pytest.raises(ValueError, match=message):
        StoredTrace(path)


def test_numbers_that_are_not_finite_are_found_when_their_layer_is_read(tmp_path):
    path = tmp_path / "t.npz"
    save_trace(noise(), path)
    content = members(path)
    content["values"][1, 0, 3] = np.nan
    np.savez_compressed(path, **content)
    stored = StoredTrace(path)
    stored.vectors(0)
    with pytest.raises(ValueError, match="values of layer 1 must be finite"):
        stored.vectors(1)


@pytest.mark.parametrize("compress", [True, False])
def test_damage_is_noticed(tmp_path, compress):
    path = tmp_path / "t.npz"
    save_trace(noise(), path, compress=compress)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(64)
    path.write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"is no trace|cannot be read|must be finite"):
        [StoredTrace(path).vectors(index) for index in range(2)]


def test_no_file_and_no_archive(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        StoredTrace(tmp_path / "nothing.npz")
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(ValueError, match="is no trace"):
        StoredTrace(tmp_path / "text.npz")
    np.save(tmp_path / "array.npy", np.zeros(3))
    with pytest.raises(ValueError, match="no complete archive of arrays"):
        StoredTrace(tmp_path / "array.npy")
