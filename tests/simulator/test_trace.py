"""Traces on disk: what is written comes back, and what does not fit is refused by name."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from kvlab.reference.simulator.trace import VERSION, Metadata, Trace, load_trace, save_trace
from support.refused import refused

L, G, rho, t, d = 2, 3, 2, 5, 4


def example(dtype="float32", **given) -> Trace:
    rng = np.random.default_rng(0)
    members = {
        "queries": rng.normal(size=(L, G, rho, t, d)).astype(dtype),
        "keys": rng.normal(size=(L, G, t, d)).astype(dtype),
        "values": rng.normal(size=(L, G, t, d)).astype(dtype),
        "positions": np.arange(t),
        "tokens": np.array([3, 1, 4, 1, 5]),
        "prompt": 3,
        "confidence": np.array([np.nan, np.nan, np.nan, 0.25, 1.0]),
        "metadata": Metadata("model", (0, 7), softcap=50.0, model_layers=9),
    }
    return Trace(**{**members, **given})


def stored(tmp_path: Path, **changed) -> Path:
    """Write the members of the example, some of them changed, and None for those left out."""
    save_trace(example(), tmp_path / "good.npz")
    with np.load(tmp_path / "good.npz") as file:
        members = {**file, **changed}
    path = tmp_path / "changed.npz"
    np.savez(path, **{name: value for name, value in members.items() if value is not None})
    return path


def metadata(**changed) -> str:
    facts = {"version": VERSION, "model": "m", "layers": [0, 7], "softcap": None, "kvlab": "0"}
    facts |= changed
    return json.dumps({name: value for name, value in facts.items() if value != "absent"})


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_what_is_saved_comes_back(dtype, tmp_path):
    trace = example(dtype)
    save_trace(trace, tmp_path / "new" / "trace.npz")
    found = load_trace(tmp_path / "new" / "trace.npz")
    assert (found.prompt, found.metadata) == (trace.prompt, trace.metadata)
    for name in ("queries", "keys", "values", "positions", "tokens", "confidence"):
        np.testing.assert_array_equal(getattr(found, name), getattr(trace, name))
        assert getattr(found, name).dtype == getattr(trace, name).dtype


def test_the_schema_is_the_documented_one_and_what_others_add_is_ignored(tmp_path):
    """The members, their shapes and the entries of the metadata, written out once more."""
    save_trace(example(), tmp_path / "trace.npz")
    with np.load(tmp_path / "trace.npz", allow_pickle=False) as file:
        shapes = {name: member.shape for name, member in file.items()}
        facts = json.loads(str(file["metadata"]))
    vectors = {"queries": (2, 3, 2, 5, 4), "keys": (2, 3, 5, 4), "values": (2, 3, 5, 4)}
    tokens = dict.fromkeys(("positions", "tokens", "confidence"), (5,))
    assert shapes == {**vectors, **tokens, "prompt": (), "metadata": ()}
    assert facts.pop("kvlab")
    told = {"version": 1, "model": "model", "layers": [0, 7], "model_layers": 9, "softcap": 50.0}
    assert facts == told
    path = stored(tmp_path, note=np.array("hello"), metadata=metadata(note="hello"))
    assert load_trace(path).metadata.model == "m"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "trace.npz"
    save_trace(example(), path)
    before = path.read_bytes()

    def fail(file, **members):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="disk full"):
        save_trace(example(prompt=0), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


WHOLE = np.zeros((2, 3, 5, 4), int)


@refused(__file__)
def test_what_does_not_fit_is_named(bad, message, tmp_path):
    changed = eval(f"dict({bad})")
    with pytest.raises(ValueError, match=re.escape(message)):
        load_trace(stored(tmp_path, **changed))


def test_a_file_that_is_no_trace_is_named(tmp_path):
    path = tmp_path / "trace.npz"
    with pytest.raises(FileNotFoundError, match=r"trace\.npz does not exist"):
        load_trace(path)
    with open(path, "wb") as file:
        np.save(file, np.arange(3))
    with pytest.raises(ValueError, match="is no trace: it is no complete archive of arrays"):
        load_trace(path)
    whole = stored(tmp_path).read_bytes()
    damaged = whole.replace(example().keys.tobytes()[:16], b"0" * 16)
    for content in (b"", b"PK\x03\x04", b"no archive", whole[: len(whole) // 2], damaged):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"trace\.npz is no trace"):
            load_trace(path)
