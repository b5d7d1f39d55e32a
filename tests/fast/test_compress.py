"""`compress` inside transformers: generation, padding, blocks, turns, beams, memory, refusals."""

import functools
from dataclasses import replace
from itertools import cycle, product
from pathlib import Path

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import DynamicCache, LlamaConfig

from kvlab.fast import compress
from kvlab.fast.engine import long_blocks, observation
from kvlab.fast.engine.cache import BatchClock
from kvlab.fast.engine.observation import LayerView, Observation
from kvlab.fast.engine.port import port
from kvlab.fast.engine.step import MOST_WAITING, counts_to_evict
from kvlab.fast.kernels import attention
from kvlab.reference import methods
from kvlab.reference.generate import Session, advance, prefill
from kvlab.reference.observation import Clock
from kvlab.reference.policy import AfterPrefill
from kvlab.reference.transformer import Transformer
from support.cases import ALL, BUDGETED, CODED, KINDS, budget_of
from support.models import CONFIGS, SHAPE, Between, built, prompts, tiny, written
from support.replay import Tolerance, follow_with_reference, rotation_of
from support.sampling import diagonal, sampled
from support.tables import cases
from support.tolerances import BFLOAT16_OUTPUT, FLOAT32_LOGITS, FLOAT32_SCORES, FLOAT64

SOME = (
    "streaming_llm@sinks=2",
    "h2o",
    "tova",
    "snapkv@window=3,schedule=every_block",
    "raas@pin_prompt=false,threshold=0.05",
    "rkv@every=6,window=3",
    "lazy_eviction@window=4,threshold=0.05",
    "caote:h2o",
    "caote:tova@every=5",
    "ahakv@recent=3",
    "expected_attention@every=6,ahead=5,sinks=1",
    "triattention@every=4,layers=apart,prompt=free",
    "kivi@group=4,residual=8",
    "ddks@interval=6,selector=3,group=4",
    "desirekv@interval=6,selector=3,group=4",
)
MOVED = "streaming_llm@sinks=2,reposition=true"
KIVI = "kivi@group=4,residual=8"
BUDGETED_KINDS = [spec for spec in KINDS if spec in BUDGETED]
BUDGET = 12


def policy_of(spec: str):
    return methods.get(spec, budget_of(spec))


@pytest.mark.parametrize(("family", "block_size"), diagonal(list(CONFIGS), [None, 5]))
def test_a_full_cache_writes_what_the_model_writes(family, block_size):
    model, inputs = tiny(family, torch.float32), prompts([21, 13])
    expected = written(model, DynamicCache(config=model.config), inputs, 8)
    with compress(model, "full", block_size=block_size) as cache:
        found = written(model, cache, inputs, 8)
    torch.testing.assert_close(found, expected, rtol=0, atol=FLOAT32_LOGITS)


@pytest.mark.parametrize(
    ("family", "spec"),
    diagonal(list(CONFIGS), ["h2o", "lazy_eviction@window=4,threshold=0.05", "caote:tova"]),
)
def test_layers_that_share_a_cache_agree_with_the_reference(family, spec):
    assert follow_with_reference(tiny(family), policy_of(spec), Tolerance(FLOAT64, FLOAT64))


def follow_together(spec: str, block_size: int | None, folder: Path) -> Session:
    """Write with layers that decide together, and compare what all of them keep at every token."""
    model, prompt = tiny("llama"), prompts([21])["input_ids"]
    model.save_pretrained(folder)
    policy, tokens = methods.get(spec, 16), prompt[0].tolist()
    session = prefill(Transformer.from_directory(folder), policy, tokens, block_size)[1]
    with compress(model, policy, block_size=block_size) as cache:
        model(prompt, past_key_values=cache)
        for token in range(1, 12):
            model(torch.tensor([[token]]), past_key_values=cache)
            session = advance(session, [token])[1]
            for layer, positions in enumerate(cache.positions()):
                assert positions[0].tolist() == session.caches[layer].positions.tolist()
    return session


@pytest.mark.parametrize(
    ("base", "page", "block_size"),
    diagonal(
        ["caote:h2o", "tova", "snapkv@window=3,schedule=every_block,"], ["page=4,", ""], [None, 7]
    ),
)
def test_layers_that_decide_together_agree_with_the_reference(base, page, block_size, tmp_path):
    spec = f"{base}{'' if '@' in base else '@'}{page}kv_heads=model"
    session = follow_together(spec, block_size, tmp_path)
    kept = session.caches[0].positions[0].tolist()
    assert kept[0] > 0 or kept[-1] - kept[0] >= len(kept)
    assert all((each.positions == kept).all() for each in session.caches)


FORMATS = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize(
    ("spec", "dtype"), sampled(product(SOME, FORMATS), [*zip(SOME[1::4], cycle(FORMATS))])
)
def test_number_formats_agree_with_the_reference(dtype, spec):
    output = FLOAT32_SCORES if dtype == torch.float32 else 4 * BFLOAT16_OUTPUT
    follow_with_reference(
        tiny("qwen2", dtype), policy_of(spec), Tolerance(FLOAT32_SCORES, 4 * output)
    )


@pytest.mark.parametrize("spec", sampled((*ALL, *CODED, MOVED), (*KINDS, CODED[0], MOVED)))
def test_a_padded_sequence_is_treated_as_if_alone(spec):
    model = tiny("llama")
    with compress(model, spec, budget_of(spec)) as cache:
        tokens, logits = written(model, cache, prompts([21, 13]), 8)
        together = cache.positions()
    short = prompts([21, 13])["input_ids"][1:, -13:]
    alone = {"input_ids": short, "attention_mask": torch.ones_like(short)}
    with compress(model, spec, budget_of(spec)) as cache:
        expected = written(model, cache, alone, 8)
    torch.testing.assert_close((tokens[1:], logits[1:]), expected, rtol=0, atol=1e-6)
    for both, one in zip(together, cache.positions(), strict=True):
        kept = both[1, both[1] >= 0].view(len(both[1]), -1)
        torch.testing.assert_close(kept, one[0])


@pytest.mark.parametrize(
    ("spec", "beams"),
    sampled(product((*BUDGETED, KIVI), [1, 3]), [*zip(BUDGETED_KINDS, cycle([1, 3])), (KIVI, 1)]),
)
def test_watching_changes_nothing(spec, beams):
    """Layers share a cache or not, whether somebody watches or not; what is shown are copies."""
    model, runs, shown = tiny("llama"), [], []

    def watch(block, result):
        shown.append((result.cache.positions, result.cache.positions.clone()))
        result.positions.zero_()

    for watcher in (None, watch):
        with compress(model, spec, budget_of(spec), block_size=6, watch=watcher) as cache:
            found = written(model, cache, prompts([21, 13]), 10, num_beams=beams)
            runs.append((found, cache.positions(), cache.text.layers.shared))
    assert runs[0][2] == runs[1][2]
    torch.testing.assert_close(runs[1][:2], runs[0][:2], rtol=0, atol=0)
    assert all(torch.equal(now, then) for now, then in shown)


@pytest.mark.parametrize(
    ("spec", "most"),
    [
        ("lazy_eviction@window=9,threshold=0.05", 8),
        ("h2o@every=9", 8),
        ("h2o@every=70", MOST_WAITING - 1),
    ],
)
def test_tokens_between_decisions_are_observed_together(spec, most):
    """As if one by one: the reference, which layers of such methods are compared with."""
    model, waiting = tiny("llama"), []

    def look():
        layers = cache.text.layers
        if layers.shared:
            tokens = layers.groups[0].waiting
            waiting.append(len(tokens))
            due = any(layers.policy.schedule.due(row) for row in cache.clocks)
            assert not (due and tokens)
            queries = sum(q.nbytes for step in tokens for q in step.queries)
            entries = sum(layers.caches[0].columns.nbytes.values())
            assert cache.memory().total == entries + queries

    with compress(model, spec, BUDGET) as cache:
        written(model, cache, prompts([40]), 110, streamer=Between(look))
    assert max(waiting) == most


@pytest.mark.parametrize("spec", sampled(CODED, CODED[:2]))
def test_a_scale_is_of_the_first_tokens_of_a_sequence(spec):
    """Those of the second come in the third block, after two of padding."""
    model, both, runs = tiny("llama"), prompts([21, 7]), []
    for rows, columns in ((slice(0, 2), 0), (slice(0, 1), 0), (slice(1, 2), 14)):
        inputs = {name: x[rows, columns:] for name, x in both.items()}
        with compress(model, spec, budget_of(spec), block_size=7) as cache:
            runs.append(written(model, cache, inputs, 3)[1])
    torch.testing.assert_close(runs[0], torch.cat(runs[1:]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("spec", sampled((*ALL, *CODED), (*KINDS, CODED[0])))
def test_padding_in_the_middle_of_a_prompt_changes_nothing(spec):
    model, runs = tiny("llama"), []
    mask = torch.tensor([[1] * 18, [0] * 4 + [1] * 5 + [0] * 3 + [1] * 6])
    ids, token = prompts([18, 18])["input_ids"], torch.tensor([[5], [6]])
    alone = ids[1:, mask[1].bool()]
    for rows, where in ((ids, mask), (alone, torch.ones_like(alone))):
        with compress(model, spec, budget_of(spec)) as cache, torch.no_grad():
            model(rows, attention_mask=where, past_key_values=cache)
            logits = model(token[-len(rows) :], past_key_values=cache).logits[-1, -1]
            kept = torch.stack(cache.positions())[:, -1]
        runs.append((logits, kept[kept >= 0].view(*kept.shape[:2], -1)))
    torch.testing.assert_close(*runs, rtol=0, atol=1e-6)


@pytest.fixture
def masks(monkeypatch):
    """The mask of every call of PyTorch's fused attention; None where a call has none."""
    found, attend = [], attention.scaled_dot_product_attention

    def watched(*args, attn_mask=None, **options):
        found.append(attn_mask)
        return attend(*args, attn_mask=attn_mask, **options)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", watched)
    return found


@cases(__file__, "a_long_padded_prompt_needs_no_mask", "lengths block_size")
def test_a_long_padded_prompt_needs_no_mask(masks, monkeypatch, lengths, block_size):
    """Every sequence attends alone; later blocks have one small mask for all heads."""
    monkeypatch.setattr(observation, "MOST_WEIGHTS", most := 2**12)
    model, inputs = tiny("llama", torch.float32), prompts(lengths)
    real = inputs["attention_mask"].bool()
    with torch.no_grad():
        places = (real.cumsum(dim=1) - 1).clamp(min=0)
        expected = model(**inputs, position_ids=places).logits
        with compress(model, "full", block_size=block_size, verify=False) as cache:
            found = model(**inputs, past_key_values=cache).logits
    torch.testing.assert_close(found[real], expected[real], rtol=0, atol=FLOAT32_LOGITS)
    layers, given = model.config.num_hidden_layers, [x for x in masks if x is not None]
    assert len(masks) - len(given) == layers * len(lengths)
    assert (block_size is not None) == (len(given) > 0)
    assert all(mask.shape[1] == 1 and mask.numel() <= most for mask in given)


@pytest.mark.parametrize("spec", ["h2o@recent=4", "tova"])
def test_sequences_of_a_long_prompt_are_treated_as_if_alone(monkeypatch, spec):
    monkeypatch.setattr(long_blocks, "MASKED", 4)
    test_a_padded_sequence_is_treated_as_if_alone(spec)


def test_keys_that_are_compared_part_by_part_agree_with_the_reference(monkeypatch):
    monkeypatch.setattr(observation, "MOST_WEIGHTS", 100)
    for spec in ("rkv@every=6,window=3", "rkv@every=6,window=3,first_column_quirk=true"):
        test_number_formats_agree_with_the_reference(torch.float32, spec)


# --- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", sampled(ALL, ("snapkv@window=4", "h2o@recent=4")))
def test_after_the_last_eviction_nothing_is_remembered(spec, tmp_path):
    """Whatever the score: only a text after `reset` is observed again."""
    model, text = tiny("llama", torch.float32), prompts([5, 5], seed=1)
    policy = replace(policy_of(spec), schedule=AfterPrefill())

    def remembered(cache):
        return [
            (layer.state.stream, layer.columns.places.keys() - {"keys", "values", "positions"})
            for layer in cache.text.layers.caches
        ]

    runs = []
    with compress(model, policy) as cache:
        for _ in range(2):
            found = written(model, cache, prompts([21, 13]), 3)
            assert remembered(cache) == [({}, set())] * 3
            copy = cache.copy()
            cache.save(tmp_path / "context")
            model(text["input_ids"], past_key_values=copy)
            cache.load(tmp_path / "context")
            more = model(text["input_ids"], past_key_values=cache).logits
            assert remembered(copy) == remembered(cache) == [({}, set())] * 3
            runs.append((*found, more, copy.positions(), cache.positions()))
            cache.reset()
    torch.testing.assert_close(runs[0], runs[1], rtol=0, atol=0)


def test_memory_is_what_the_tensors_of_a_layer_allocate():
    model = tiny("llama", torch.float32)
    for spec in (
        "h2o",
        "rkv@every=2,window=3",
        "kivi@group=4,residual=8",
        "desirekv@interval=6,selector=3,group=4",
        "full@precision=fp8",
        "full@precision=turboquant_prod",
    ):
        with compress(model, spec, budget_of(spec), watch=lambda *_: None) as cache:
            written(model, cache, prompts([24]), 8)
            copied = cache.copy()
            for held in (cache, copied):
                layers = held.memory().layers
                kept = len(layers) // len(held.text.layers.caches)
                for entries, memory in zip(held.text.layers.caches, layers[::kept], strict=True):
                    allocated = sum(x.untyped_storage().nbytes() for x in tensors(entries))
                    assert kept * memory.total == allocated


def tensors(entries):
    """Every distinct piece of storage that some layers' entries hold."""
    found = {}
    pools = [*entries.columns.buffers.values(), *entries.state.stream.values()]
    for storage in entries.mixed or ():
        pools += [storage.balance, storage.scale]
        for table in storage.tables:
            pools.append(table.slots)
            plain = isinstance(table.vectors, torch.Tensor)
            pools += [table.vectors] if plain else list(vars(table.vectors).values())
            pools += getattr(table.vectors, "parts", ())
    for tensor in pools:
        if isinstance(tensor, torch.Tensor):
            found[tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()] = tensor
    return found.values()


# --- the device is never waited for --------------------------------------------------------------


WAITS = ("several=", "desirekv", "rpc", "nacl")
"""Methods that ask the device at their own events."""


@functools.cache
def on_meta():
    return built(LlamaConfig(**{**SHAPE, "num_hidden_layers": 2}), torch.float32).to("meta")


@pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.6"),
    reason="rotary embeddings ask autocast about the meta device",
)
@pytest.mark.parametrize("spec", sampled(ALL, KINDS[1:-1:2]))
def test_decoding_does_not_wait_for_the_device(spec, monkeypatch):
    """On the meta device no value can be read: whoever asks for one fails."""
    if any(word in spec for word in WAITS):
        pytest.skip("asks the device at its events, every P tokens or on request")
    if port(methods.get(spec, budget_of(spec))).on_host:
        pytest.skip("has no twin: the reference computes it on the host")
    model = on_meta()
    monkeypatch.setattr("kvlab.fast.huggingface.CompressedCache.check", lambda self: None)
    found = [rotation_of(layer, 16) for layer in range(2)]  # they are found out by values
    monkeypatch.setattr("kvlab.fast.huggingface.compression.rotations_of", lambda *_: found)
    with compress(model, spec, budget_of(spec), verify=False) as cache, torch.no_grad():
        model(torch.zeros((2, 20), dtype=torch.long, device="meta"), past_key_values=cache)
        for _ in range(4):  # the 24th is an event of every 4, 6 or 8 tokens
            model(torch.zeros((2, 1), dtype=torch.long, device="meta"), past_key_values=cache)
    assert cache.get_seq_length() == 24


def test_the_meta_device_does_notice_waiting():
    with pytest.raises(RuntimeError):
        torch.zeros(1, device="meta").item()


# --- the model is restored, and a cache starts anew -----------------------------------------------


def test_the_model_is_restored_after_an_exception():
    model, inputs = tiny("llama"), prompts([12])
    implementation, before = model.config._attn_implementation, dict(model.__dict__)
    expected = model(**inputs).logits

    def fail():
        with compress(model, "h2o", BUDGET) as cache:
            model(**inputs, past_key_values=cache)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert model.config._attn_implementation == implementation
    assert model.__dict__.keys() == before.keys()
    torch.testing.assert_close(model(**inputs).logits, expected, rtol=0, atol=0)


def test_a_failed_step_is_not_continued():
    model, inputs = tiny("llama"), prompts([12])

    def fail(block, result):
        raise ZeroDivisionError

    with compress(model, "h2o", BUDGET, watch=fail) as cache:
        with pytest.raises(ZeroDivisionError):
            model(**inputs, past_key_values=cache)
        with pytest.raises(ValueError, match="call reset"):
            model(**inputs, past_key_values=cache)
        cache.attachment.watch = None
        cache.reset()
        model(**inputs, past_key_values=cache)


def saved_and_loaded(cache, path):
    cache.save(path)
    cache.load(path)


BETWEEN = {
    "nothing": lambda cache, path: cache,
    "a copy": lambda cache, path: cache.copy(),
    "other rows": lambda cache, path: cache.batch_repeat_interleave(2),
    "a file": saved_and_loaded,
}


@pytest.mark.parametrize("layers", [3, 1])
@pytest.mark.parametrize("between", BETWEEN)
def test_a_score_that_was_nan_for_one_token_is_an_error(between, layers, tmp_path):
    """The next token's scores are numbers again; the one of the last layer was not."""
    model = built(LlamaConfig(**{**SHAPE, "num_hidden_layers": layers}), torch.float64)
    queries, cache = model.model.layers[-1].self_attn.q_proj, compress(model, "tova", BUDGET)
    model(**prompts([20]), past_key_values=cache)
    for factor in (1.0, torch.nan, 1.0, 1.0):
        hook = queries.register_forward_hook(lambda *given, x=factor: x * given[2])
        token = torch.full((max(1, len(cache.clocks)), 1), 5)
        model(token, past_key_values=cache)
        hook.remove()
        cache = BETWEEN[between](cache, tmp_path / "context") or cache
    cache.close()
    with pytest.raises(ValueError, match="NaN"):
        cache.check()


def test_a_prompt_whose_scores_were_nan_is_an_error_after_a_token():
    """The layers share a cache since then, and the next token's scores are numbers again."""
    model = built(LlamaConfig(**{**SHAPE, "num_hidden_layers": 2}), torch.float64)
    norm, cache = model.model.layers[-1].self_attn.q_proj, compress(model, "tova", BUDGET)
    hook = norm.register_forward_hook(lambda *given: torch.nan * given[2])
    model(**prompts([20]), past_key_values=cache)
    hook.remove()
    model(torch.tensor([[5]]), past_key_values=cache)
    cache.close()
    with pytest.raises(ValueError, match="NaN"):
        cache.check()


def test_layers_plan_apart_where_they_demoted_apart():
    """Ten entries and five at full precision, of which two are protected: the others are four of
    which three stay where four were demoted before, eight of which three stay elsewhere. A budget
    that depends on the layer in an earlier step leaves such layers, and the memo is of all layers.
    """
    policy, zeros = port(methods.get("mikv", 5)), torch.zeros((1, 1, 1), dtype=torch.int32)
    clock = BatchClock((Clock(10, 1, 9),), zeros[0] + 9, zeros + 9)
    queries = torch.zeros((1, 1, 1, 1, 8))
    for demoted, counts in ((0, ([5], [3])), (4, ([1], [3])), (0, ([5], [3]))):
        cache = policy.empty_cache()
        cache.counts, cache.demoted = (10,), (demoted,)
        view = LayerView(cache, None)
        seen = Observation(clock, [0], 2, queries, clock.positions, view, torch.empty((1, 0)))
        assert counts_to_evict(policy, seen, [True], None) == counts


def test_repositioned_keys_agree_with_the_reference():
    for family in ("llama", "gemma3"):
        follow_with_reference(tiny(family), policy_of(MOVED), Tolerance(FLOAT64, 1e-5))


def test_a_cache_that_was_reset_reads_as_a_new_one():
    """Also in sliding-window layers, whose own ``reset`` keeps zeros of the text before."""
    model = tiny("gemma3")
    ids = prompts([18])["input_ids"]

    def read():
        return [model(part, past_key_values=cache).logits for part in ids.split((5, 12, 1), 1)]

    with compress(model, "h2o", BUDGET) as cache, torch.no_grad():
        found = read()
        for part in (ids[:, :3], ids):
            cache.reset()
            assert cache.memory().total == 0
            model(part, past_key_values=cache)
        cache.reset()
        torch.testing.assert_close(read(), found, rtol=0, atol=0)
