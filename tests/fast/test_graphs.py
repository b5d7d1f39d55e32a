"""Tokens that are replayed from a recording are those that are computed anew."""

import weakref

import pytest
import torch

from kvlab.fast import compress
from kvlab.fast.huggingface import graphs
from support import recorded
from support.models import prompts, tiny
from support.sampling import sampled
from support.tables import cases

IN_PLACE = (
    *("streaming_llm", "h2o", "tova", "random", "caote:h2o", "caote:tova"),
    *("fast_caote:h2o", "fast_caote:tova", "knorm", "raas@pin_prompt=false", "ahakv@recent=4"),
)
GRAPHED = dict.fromkeys(IN_PLACE, 1) | {
    "full": 3,
    "snapkv@window=4": 3,
    "nacl": 3,
    "rkv@window=4": 3,
    "rkv@window=4,every=8": 2,
    "h2o@every=5": 2,
    "caote:h2o@every=5": 2,
    "lazy_eviction@threshold=0.01,window=8": 3,
}
"""Method → tokens that are captured: after 16 vacant slots 32 and 64, or one that evicts more."""
IDS = prompts([20, 20])["input_ids"]


@pytest.fixture
def on_cpu(monkeypatch):
    """Record on the CPU what a GPU captures, and count it."""
    made = []

    def captured(run):
        made.append(None)
        return recorded.recorded(run)

    monkeypatch.setattr(graphs, "DEVICES", ("cpu",))
    monkeypatch.setattr(graphs, "FIRST_ROOM", 16)
    monkeypatch.setattr(graphs, "captured", captured)
    return made


def logits_of(model, cache, tokens, given=None):
    """Return logits of a prompt and of given tokens, one after the other."""
    given = {"input_ids": IDS} if given is None else given
    found = [model(**given, past_key_values=cache).logits[:, -1:]]
    found += [model(token, past_key_values=cache).logits for token in tokens.split(1, dim=1)]
    return torch.cat(found, dim=1)


def budget_of(spec):
    """LazyEviction has decisions after which nothing leaves yet."""
    return {"full": None, "lazy_eviction@threshold=0.01,window=8": 40}.get(spec, 16)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("spec", sampled(GRAPHED, ("random", "caote:h2o", "full", "h2o@every=5")))
def test_replayed_tokens_are_those_of_steps(spec, padded, on_cpu):
    model, count = tiny("llama"), 40 if spec in IN_PLACE else 100
    tokens = torch.randint(1, 60, (2, count), generator=torch.Generator().manual_seed(3))
    given, found = prompts([20, 13]) if padded else None, []
    for graphed in (False, True):
        with compress(model, spec, budget_of(spec), graphs=graphed) as cache:
            logits = logits_of(model, cache, tokens, given)
            found.append([logits, cache.positions(), cache.kept(), cache.clocks])
    assert found[0].pop() == found[1].pop()
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    apart = padded and "every" in spec  # rows of other lengths are due at other tokens
    assert len(on_cpu) == GRAPHED[spec] - (apart and "rkv" in spec)


@pytest.mark.parametrize("spec", ["full", "caote:h2o", "lazy_eviction@threshold=0.01,window=8"])
def test_texts_of_one_shape_have_one_graph(spec, on_cpu):
    """The second text is longer: it moves into the buffers of the first, which is gone."""
    model, found = tiny("llama"), []
    tokens = torch.randint(1, 60, (2, 12), generator=torch.Generator().manual_seed(3))
    longer = torch.cat([IDS, IDS[:, :2]], dim=1)
    for graphed in (False, True):
        every, captured = [], []
        with compress(model, spec, budget_of(spec), graphs=graphed) as cache:
            for ids in (IDS, longer):
                every.append(logits_of(model, cache, tokens, {"input_ids": ids}))
                captured.append(len(on_cpu))
                cache.reset()
            found.append(every)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    assert captured[0] == captured[1] > 0


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
                torch.cat([cache.text.clock.fed.long(), IDS[:, :1]], 1),
                past_key_values=cache, max_new_tokens=12, do_sample=False,
            )  # fmt: skip
            found.append((logits, written, cache.positions(), other.positions()))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    assert len(on_cpu) == 3


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


@cases(__file__, "what_cannot_be_captured_is_refused_by_name", "spec named")
def test_what_cannot_be_captured_is_refused_by_name(spec, named, on_cpu):
    with pytest.raises(ValueError, match=f"graphs = True: {named}"):
        compress(tiny("llama"), spec, None if spec.startswith("kivi") else 12, graphs=True)


def test_a_model_on_the_cpu_is_refused():
    with pytest.raises(ValueError, match="graphs = True needs a model on one CUDA device, not on"):
        compress(tiny("llama"), "h2o", 12, graphs=True)
