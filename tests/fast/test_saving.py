"""Copies of a cache and caches in files go on as if nothing had happened, or are refused."""

import json
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from kvlab.fast import compress
from kvlab.fast.huggingface import saving
from support.cases import CODED, GRANULAR, KINDS, ONE_EACH, budget_of
from support.growing_text import Text, used
from support.models import prompts, tiny, written
from support.sampling import sampled
from support.tables import cases

BUDGET = 16
CASES = (*ONE_EACH, *CODED, GRANULAR[0], "h2o@every=9,recent=4")
"""Every method, every code, and tokens that wait to be observed."""
QUICK = [("tova", "gemma3"), *((spec, "llama") for spec in (*KINDS[2::2], CODED[0], CASES[-1]))]
"""All others are in `test_rows`, too."""


def asked(model, cache, text: Text, seed: int):
    question = prompts([5] * len(text.ids), seed=seed)["input_ids"]
    inputs = {"input_ids": torch.cat([text.ids, question], dim=1)}
    inputs["attention_mask"] = torch.cat([text.mask, torch.ones_like(question)], dim=1)
    tokens, _ = written(model, cache, inputs, 6)
    return tokens, cache.positions(), cache.confidence


@pytest.mark.parametrize(
    ("spec", "family"), sampled([*((spec, "llama") for spec in CASES), ("tova", "gemma3")], QUICK)
)
def test_copies_and_files_go_on_as_if_uninterrupted(spec, family, tmp_path):
    model, file = tiny(family, torch.float32), tmp_path / "context.safetensors"
    steps = (("whole", 21, 6), ("call", 4))
    with compress(model, spec, budget_of(spec, BUDGET), watch=lambda *_: None) as cache:
        text = used(model, cache, steps, (0, 8))
        copy, untouched = cache.copy(), deepcopy(cache)
        cache.save(file)
        expected = asked(model, cache, text, seed=1)
        cache.reset()
        torch.testing.assert_close(asked(model, copy, text, seed=1), expected, equal_nan=True)
        other = asked(model, untouched, text, seed=2)
        assert not torch.equal(other[0], expected[0])
        with pytest.raises(ValueError, match="another one from column 31"):
            asked(model, copy, text, seed=2)
    with compress(model, spec, budget_of(spec, BUDGET), watch=lambda *_: None) as cache:
        for seed, wanted in ((1, expected), (2, other)):
            cache.load(file)
            torch.testing.assert_close(asked(model, cache, text, seed), wanted, equal_nan=True)


@pytest.mark.parametrize("records", [False, True])
def test_who_loads_says_whether_confidence_is_recorded(records, tmp_path):
    """Whoever saved had it recorded, or not, the other way round."""
    model, file = tiny("llama", torch.float32), tmp_path / "context"
    watch = (lambda *_: None), None
    with compress(model, "h2o", BUDGET, watch=watch[records]) as cache:
        text = used(model, cache, (("whole", 21, 6), ("call", 4)), (0,))
        cache.save(file)
    with compress(model, "h2o", BUDGET, watch=watch[not records]) as cache:
        cache.load(file)
        _, _, confidence = asked(model, cache, text, seed=1)
        assert confidence[:, text.ids.shape[1] :].isfinite().any() == records


@pytest.mark.parametrize(
    ("spec", "budget"), [("caote:h2o", "75%"), ("kivi@group=4,residual=8", None), ("full", None)]
)
def test_a_file_is_as_large_as_the_memory(spec, budget, tmp_path):
    model, file = tiny("llama", torch.float32), tmp_path / "context"
    with compress(model, spec, budget) as cache:
        model(**prompts([480] * 6, seed=5), past_key_values=cache, logits_to_keep=1)
        cache.save(file)
        assert file.stat().st_size == pytest.approx(cache.memory().total, rel=0.02)
        memory, layer = cache.memory().total, cache.memory().layers[0]
        if not layer.scales:
            assert layer.keys == sum(cache.kept()[0]) * 4 * 16 * 4  # KV heads, channels, bytes
        cache.load(file)
        assert cache.memory().total == pytest.approx(memory, rel=1e-3)


# --- what is refused ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("saved") / "context.safetensors"
    with compress(tiny("llama"), "h2o", BUDGET) as cache:
        used(tiny("llama"), cache, (("call", 21),), (0,))
        cache.save(file)
    return file


def changed(file: Path, target: Path, change) -> Path:
    with safe_open(file, "pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        about = json.loads(opened.metadata()["kvlab"])
    change(about, tensors)
    save_file(tensors, target, {"kvlab": json.dumps(about)})
    return target


def other_weights():
    model = deepcopy(tiny("llama"))
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight += 0.1
    return model


@cases(__file__, "a_file_of_something_else_is_refused_by_name", "family spec budget change message")
def test_a_file_of_something_else_is_refused_by_name(
    family, spec, budget, change, message, saved, tmp_path
):
    """A change is an expression of the file's metadata ``a`` and tensors ``t``."""
    file = saved
    if change:
        file = changed(saved, tmp_path / "changed", lambda a, t: eval(change, {"a": a, "t": t}))
    model = other_weights() if family == "llama, other weights" else tiny(family)
    with compress(model, spec, budget) as cache:
        used(model, cache, (("call", 13),), (0,))
        before = cache.positions()
        with pytest.raises(ValueError, match=message):
            cache.load(file)
        torch.testing.assert_close(cache.positions(), before)
        assert cache.get_seq_length() == 13


def test_what_is_no_file_of_ours_is_refused(saved, tmp_path):
    (tmp_path / "cut").write_bytes(saved.read_bytes()[:-100])
    (tmp_path / "text").write_text("no safetensors at all, but a text that is long enough")
    save_file({"x": torch.ones(1)}, tmp_path / "plain")
    with compress(tiny("llama"), "h2o", BUDGET) as cache:
        for name in ("cut", "text", "plain"):
            with pytest.raises(ValueError, match=f"{name} is no compressed context"):
                cache.load(tmp_path / name)
        with pytest.raises(FileNotFoundError, match="missing"):
            cache.load(tmp_path / "missing")
        with pytest.raises(ValueError, match="nothing to save"):
            cache.save(tmp_path / "empty")


def test_a_file_is_written_whole_or_not_at_all(saved, tmp_path, monkeypatch):
    file = tmp_path / "context"
    file.write_bytes(saved.read_bytes())

    def fails(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(saving, "save_file", fails)
    with compress(tiny("llama"), "h2o", BUDGET) as cache:
        cache.load(file)
        with pytest.raises(OSError, match="disk full"):
            cache.save(file)
    assert file.read_bytes() == saved.read_bytes()
    assert list(tmp_path.iterdir()) == [file]
