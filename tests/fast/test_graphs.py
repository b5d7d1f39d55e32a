"""Tokens that are replayed from a recording are those that are computed anew."""

import weakref

import pytest
import torch

from kvlab.fast import compress
from kvlab.fast.huggingface import graphs
from support import recorded
from support.models import prompts, tiny
from support.sampling import sampled

GRAPHED = (
    *("streaming_llm", "h2o", "tova", "random", "caote:h2o", "caote:tova"),
    *("fast_caote:h2o", "fast_caote:tova", "knorm"),
)
IDS = prompts([20, 20])["input_ids"]


@pytest.fixture
def on_cpu(monkeypatch):
    """Record on the CPU what a GPU captures, and count it."""
    made = []

    def captured(run):
        made.append(None)
        return recorded.recorded(run)

    monkeypatch.setattr(graphs, "DEVICES", ("cpu",))
    monkeypatch.setattr(graphs, "captured", captured)
    return made


def logits_of(model, cache, tokens):
    """Return logits of a prompt and of given tokens, one after the other."""
    found = [model(IDS, past_key_values=cache).logits[:, -1:]]
    found += [model(token, past_key_values=cache).logits for token in tokens.split(1, dim=1)]
    return torch.cat(found, dim=1)


@pytest.mark.parametrize("spec", sampled(GRAPHED, ("random", "caote:h2o")))
def test_replayed_tokens_are_those_of_steps(spec, on_cpu):
    model, count = tiny("llama"), 100 if spec == "caote:h2o" else 40
    tokens = torch.randint(1, 60, (2, count), generator=torch.Generator().manual_seed(3))
    found = []
    for graphed in (False, True):
        with compress(model, spec, budget=12, graphs=graphed) as cache:
            logits = logits_of(model, cache, tokens)
            found.append([logits, cache.positions(), cache.kept(), cache.clocks])
    assert found[0].pop() == found[1].pop()
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    assert len(on_cpu) == 1


def test_a_text_goes_on_between_recordings(on_cpu):
    """A text in pieces, a copy, other rows: eager steps and replayed ones take turns."""
    model = tiny("llama")
    tokens = torch.randint(1, 60, (2, 40), generator=torch.Generator().manual_seed(3))
    found = []
    for graphed in (False, True):
        with compress(model, "caote:h2o", budget=12, graphs=graphed) as cache:
            logits = [logits_of(model, cache, tokens)]
            other = cache.copy()
            logits.append(model(IDS[:, :3], past_key_values=cache).logits)
            cache.batch_select_indices(torch.tensor([1, 0]))
            for each in (cache, other):
                given = tokens[:, :9].split(1, dim=1)
                logits += [model(token, past_key_values=each).logits for token in given]
            written = model.generate(
                torch.cat([cache.text.clock.text.long(), IDS[:, :1]], 1),
                past_key_values=cache, max_new_tokens=12, do_sample=False,
            )  # fmt: skip
            found.append((logits, written, cache.positions(), other.positions()))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    assert len(on_cpu) == 3 + 1


def test_moved_weights_are_captured_anew(on_cpu):
    model = tiny("llama")
    with compress(model, "h2o", budget=12, graphs=True) as cache, torch.no_grad():
        logits_of(model, cache, IDS)
        head = model.lm_head.weight
        head.data, before = torch.zeros_like(head), head.data
        try:
            assert not model(IDS[:, :1], past_key_values=cache).logits.any()
        finally:
            head.data = before


def test_a_graph_keeps_no_cache_alive(on_cpu):
    with compress(tiny("llama"), "h2o", budget=12, graphs=True) as cache:
        logits_of(cache.attachment.model, cache, IDS[:, :6])
        other = cache.copy()
        logits_of_copy = [cache.attachment.model(IDS[:, :1], past_key_values=other) for _ in "abcd"]
        kept = weakref.ref(other.text)
        assert len(on_cpu) == 2
        del other, logits_of_copy
        assert kept() is None


def test_a_model_that_waits_for_the_device_is_refused_by_name(on_cpu, monkeypatch):
    def waits(run):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graphs, "captured", waits)
    with compress(tiny("llama"), "h2o", budget=12, graphs=True) as cache:
        with pytest.raises(ValueError, match=r"cannot be captured \(operation not permitted"):
            logits_of(cache.attachment.model, cache, IDS[:, :6])
        cache.reset()


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("raas@pin_prompt=false", "raas"),
        ("h2o@every=25", "h2o"),
        ("full", "full"),
        ("kivi", "kivi"),
    ],
)
def test_what_cannot_be_captured_is_refused_by_name(spec, named, on_cpu):
    with pytest.raises(ValueError, match=f"graphs = True: {named}"):
        compress(tiny("llama"), spec, None if spec in ("full", "kivi") else 12, graphs=True)


def test_a_model_on_the_cpu_is_refused():
    with pytest.raises(ValueError, match="graphs = True needs a model on one CUDA device, not on"):
        compress(tiny("llama"), "h2o", 12, graphs=True)
