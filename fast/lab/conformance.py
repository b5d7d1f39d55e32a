"""The PyTorch and Triton side as an implementation of the conformance kit.

``kvlab conformance run fast/lab/conformance.py`` tests it; ``KVLAB_KERNELS`` says whether PyTorch
or Triton computes.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from kvlab.fast.engine.cache import BatchClock, KeepSet, LayerCache
from kvlab.fast.engine.layers import Layers
from kvlab.fast.engine.observation import Attended, LayerView, Observation
from kvlab.fast.engine.policy import Elapsed, Policy
from kvlab.fast.engine.step import Block, attend, begin, decide
from kvlab.fast.engine.windows import max_pool, mean_pool
from kvlab.fast.huggingface.cache import CompressedCache
from kvlab.fast.huggingface.compression import compress
from kvlab.fast.huggingface.rotary import rotation
from kvlab.fast.kernels import attention
from kvlab.fast.kernels.attention import compute_dtype
from kvlab.fast.kernels.caote import eviction_errors
from kvlab.fast.kernels.codes import Coded
from kvlab.fast.kernels.decode import decode_attention
from kvlab.fast.kernels.keep import keep_slots
from kvlab.fast.kernels.mixed_precision import attend_to_tables
from kvlab.fast.kernels.move import move_survivors
from kvlab.fast.kernels.prefill import received_attention
from kvlab.fast.kernels.quantise import Groups, outlier_scores, pack, quantise, unpack
from kvlab.fast.kernels.vector_tables import VectorTable
from kvlab.fast.methods import get
from kvlab.fast.models.loading import load
from kvlab.fast.precisions import OnArrival
from kvlab.reference.observation import Clock

ARRAYS = "torch"

# --- building blocks -----------------------------------------------------------------------------


def _attend_to(queries, keys, values, positions, query_positions, softcap, **_):
    """Return output and probabilities of one sequence; one token takes the kernel of decoding."""
    if queries.shape[2] == 1:
        output, weights = decode_attention(
            queries[None], keys[None], values[None], None, softcap, "none"
        )
        return output[0], weights[0]
    dtype = compute_dtype(keys.dtype)
    q, k, v = (x[None].to(dtype) for x in (queries, keys, values))
    mask = attention.visible(query_positions[None], positions[None])
    output, weights = attention.attend(q, k, v, mask, softcap)
    return output[0].to(queries.dtype), weights[0]


def _received(queries, keys, positions, query_positions, softcap):
    return received_attention(
        queries[None], keys[None], query_positions[None], positions[None], None, softcap
    )[0]


def _keep_set(scores, safe, room):
    G, n = scores.shape
    protected = int(safe[0].sum())
    positions = torch.arange(n, dtype=torch.int32).expand(1, G, n)
    kept = min(n, protected + room)
    return keep_slots(scores[None], safe[None], positions, [kept], ordered=True)[0]


def _compacted(keys, values, positions, accumulated, stamp, keep):
    columns = {
        "vectors": torch.stack([keys, values])[:, None],
        "integers": torch.stack([positions, stamp])[:, None].to(torch.int32),
        "floats": accumulated[None, None].clone(),
    }
    move_survivors(columns, keep[None], ascending=True)
    vectors, integers, floats = (x[:, 0, :, : keep.shape[1]] for x in columns.values())
    return *vectors, integers[0], *floats, integers[1]


def _quantize(x, bits, group):
    stored = quantise(x, bits, group)
    packed, scale, zero = stored.parts
    return unpack(packed, bits, x.shape[-1]), scale, zero


def _quantize_channels(x, bits, group):
    """Return codes, scales and zero points of groups along tokens: one scale per channel."""
    return tuple(part.T for part in _quantize(x.T.contiguous(), bits, group))


def _stored_codes(codes, scale, zero, bits, group, **_) -> Coded:
    packed = pack(codes, bits)
    return Coded(Groups(bits, group), (packed, scale.half(), zero.half()), codes.shape[-1])


def _attend_coded(queries, bits, group, softcap, **given):
    G, n, _ = given["key_codes"].shape
    slots = torch.arange(n).expand(1, G, n)
    keys, values = (
        [VectorTable(slots, _stored_codes(codes[None], scale[None], zero[None], bits, group))]
        for codes, scale, zero in (
            (given[f"{name}_codes"], given[f"{name}_scale"], given[f"{name}_zero"])
            for name in ("key", "value")
        )
    )
    return attend_to_tables(queries[None], keys, values, n, softcap)[0][0]


def _encode(precision, x, first):
    stored = get(f"full@precision={precision}").precision
    assert isinstance(stored, OnArrival)
    code = stored.keys
    scale, d = code.scale(first[None].double()), x.shape[-1]
    divided = x[None].double() if scale is None else x[None].double() / scale.double()
    parts = code.encode(divided)
    read = code.decode(parts, d, torch.float32) * (1 if scale is None else scale)
    size = sum(part[0, 0, 0].nbytes for part in parts)
    found = {"x": read[0], "bytes": torch.full(x.shape[:2], size)}
    found["codes"] = unpack(parts[0], code.bits, d)[0]
    if scale is not None:
        found["scale"] = scale.flatten()
    for part in parts[1:]:
        found["block_scales" if part.dtype == torch.uint8 else "norms"] = part[0]
    return found


def _errors_of_rows(h, values, fast, norm):
    if norm != 2:
        raise NotImplementedError("the kernel knows the L2 norm alone")
    rows = h[:, :, None].unbind(1)
    return torch.stack([eviction_errors(row[None], values[None], fast)[0] for row in rows], dim=1)


def _pool(x, kernel, pooling, border):
    present = torch.ones_like(x, dtype=torch.bool)[None]
    if pooling == "max":
        return max_pool(x[None], kernel, present)[0]
    return mean_pool(x[None], kernel, border, present)[0]


def _rotate(x, positions, base, rotated, neighbours):
    first, second = slice(rotated // 2), slice(rotated // 2, rotated)
    if neighbours:
        first, second = slice(0, rotated, 2), slice(1, rotated, 2)
    frequencies = base ** (-torch.arange(0, rotated, 2) / rotated)
    return rotation(frequencies, first, second)(x, positions)


# --- steps of a method ---------------------------------------------------------------------------


def _observe(method, budget, **given):
    policy, seen = _prepared(method, budget, given, before=True)
    policy.score.observe(seen.cache.state, seen)
    found = {}
    for name, column in policy.score.columns.items():
        numbers = seen.cache.columns[name][0]
        elapsed = isinstance(column, Elapsed)
        found[column.since if elapsed else name] = numbers
        if elapsed:
            found[column.since] = given["generated"] - numbers
    return found


def _score(method, budget, candidates, room, **given):
    policy, seen = _prepared(method, budget, given)
    room = min(room, int(candidates.sum(dim=-1).max()) - 1)  # on the host, else none is asked
    scores = policy.score.score(seen.cache.state, seen, candidates[None], [room])
    return scores.expand_as(seen.positions)[0]


def _select(method, budget, **given):
    policy, seen = _prepared(method, budget, given)
    decision, (G, n) = decide(policy, seen, [True]), given["positions"].shape
    stays = torch.ones(G, n, dtype=torch.bool)
    if decision is not None and decision.evicted_slot is not None:
        stays.scatter_(-1, decision.evicted_slot[0], False)
    elif decision is not None and decision.keep is not None:
        stays = decision.keep.among(n)[0]
    return torch.nonzero(stays)[:, 1].view(G, -1)


def _keep(method, budget, scores, **given):
    policy, seen = _prepared(method, budget, given)
    protected, n = policy.protect.protected(seen), given["positions"].shape[1]
    count = 0 if protected is None else int(protected[0, 0].sum())
    room = policy.budget.room(seen.clock.rows[0], n, count)
    assert room is not None
    kept = min(n, count + room)
    return keep_slots(scores[None], protected, seen.positions, [kept], ordered=True)[0]


def _store(method, budget, keep, **given):
    policy, seen = _prepared(method, budget, given)
    cache = seen.cache
    stays = policy.precision.store(cache, seen, KeepSet(keep[None], (keep.shape[1],)))
    indices = torch.sort(stays.slots[0]).values
    cache.compact(stays)
    return {"keep": indices, **_stored(cache)}


def _stored(cache: LayerCache) -> dict[str, Tensor]:
    assert cache.mixed is not None
    order = cache.positions.argsort(dim=-1)
    found = {}
    for name, storage in zip(("key", "value"), cache.mixed, strict=True):
        vectors = storage.read(torch.float32)
        found[f"{name}_bits"] = storage.bits().gather(-1, order)[0]
        found[f"{name}s"] = vectors.gather(2, order[..., None].expand_as(vectors))[0]
    return found


@torch.inference_mode()
def _run(method, budget, queries, keys, values, blocks, confidence, prompt, softcap):
    policy, t, steps, done = get(method, budget), keys.shape[1], [], 0
    layers = Layers(policy, 1, watch=lambda _, step: steps.append((step.output[0], step.cache)))
    for m in blocks.tolist():
        part = slice(done, done + m)
        done += m
        clock = BatchClock.of([Clock(done, m, prompt)], "cpu")
        new = queries[None, :, :, part], keys[None, :, part], values[None, :, part]
        begin(layers, clock)
        attend(layers, 0, Block(clock, 0, *new, confidence[None, :done], softcap=softcap))
    present = torch.stack([_marked(cache.positions[0], t) for _, cache in steps])
    found = {"output": torch.cat([output for output, _ in steps], dim=2), "present": present}
    return found | (_stored(layers.copies()[0]) if policy.precision.quantises else {})


def _marked(positions: Tensor, tokens: int) -> Tensor:
    """Mark positions along a last axis of so many tokens; negative ones are no positions."""
    there = torch.zeros(*positions.shape[:-1], tokens + 1, dtype=torch.bool)
    there.scatter_(-1, torch.where(positions < 0, tokens, positions).long(), True)
    return there[..., :tokens]


def _prepared(
    method: str, budget: int | None, given: Mapping[str, Any], before: bool = False
) -> tuple[Policy, Observation]:
    """Fill a cache with a case's entries and state, which may be those ``before`` the block."""
    policy, positions, block = get(method, budget), given["positions"], given["block"]
    (G, n), cache = positions.shape, policy.empty_cache()
    keys, values = (given.get(name, torch.zeros(G, n, 1)) for name in ("keys", "values"))
    cache.append(keys[None], values[None], BatchClock.of([Clock(n, n, n)], "cpu"))
    cache.positions.copy_(positions[None])
    clock = BatchClock.of([Clock(given["seen"], block, given["prompt"])], "cpu")
    _fill_state(policy, cache, given, block if before else 0)
    weights, confidence = given.get("attention"), given.get("confidence")
    queries = given.get("queries", torch.zeros(G, 1, block, 1))[None].to(compute_dtype(keys.dtype))
    unknown = torch.full((given["seen"],), torch.nan)
    seen = Observation(
        clock=clock,
        numbers=[0],
        layers=1,
        given_queries=queries,
        query_positions=clock.positions,
        view=LayerView(cache, given.get("softcap")),
        confidence=(unknown if confidence is None else confidence)[None],
        attended=Attended(None if weights is None else weights[None].to(queries)),
    )
    return policy, seen


def _fill_state(policy: Policy, cache: LayerCache, given: Mapping[str, Any], new: int) -> None:
    """Set the state of the stream, and of all entries except the ``new`` last ones."""
    old = len(cache) - new
    for name, column in policy.score.columns.items():
        elapsed = isinstance(column, Elapsed)
        numbers = given.get(column.since if elapsed else name)
        if numbers is not None:
            since = max(0, given["generated"] - new) - numbers if elapsed else numbers
            cache.columns[name][:, :, :old].copy_(since[None, :, :old])
    prefix = "remembered_"
    for name, x in given.items():
        if name.startswith(prefix) and x is not None:
            cache.state.stream[name.removeprefix(prefix)] = x[None]


# --- whole caches --------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def decoder(directory: str, sliding_window: int | None) -> PreTrainedModel:
    """Return a model, with any window in every second layer: as a Qwen2, because Llama has none."""
    model, _ = load(directory, "float32", "cpu")
    if sliding_window is None:
        return model
    given, kinds = model.config.to_dict(), ("full_attention", "sliding_attention")
    given["layer_types"] = [kinds[layer % 2] for layer in range(given["num_hidden_layers"])]
    given |= {"sliding_window": sliding_window, "use_sliding_window": True}
    del given["architectures"], given["model_type"]
    sliding = Qwen2ForCausalLM(Qwen2Config(**given)).eval()
    biases = {name: x.zero_() for name, x in sliding.state_dict().items() if "_proj.bias" in name}
    sliding.load_state_dict({**biases, **model.state_dict()})
    return sliding


@contextmanager
def softcapped(model: PreTrainedModel, softcap: float | None) -> Iterator[None]:
    """Let a model without a softcap hand one to attention, as Gemma 2's layers do."""

    def add(_: torch.nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        return args, {**given, "softcap": softcap}

    layers = [] if softcap is None else model.model.layers
    hooks = [layer.self_attn.register_forward_pre_hook(add, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _whole_cache(method, budget, model, tokens, padding, calls, continues, **given):
    if given["learned_sinks"] is not None:
        raise NotImplementedError("kvlab does not know attention with learned sinks")
    if given["softcap"] is not None and given["sliding_window"] is not None:
        raise NotImplementedError("layers with a window are a Qwen2's, which knows no softcap")
    whole = decoder(model, given["sliding_window"])
    real = torch.arange(tokens.shape[1]) >= padding[:, None]
    found, first = {"logits": [], "kept": [], "bytes": []}, 0
    capped = softcapped(whole, given["softcap"])
    with compress(whole, method, budget, block_size=given["block_size"]) as cache, capped:
        for length, order in zip(calls.tolist(), continues, strict=True):
            last = first + length
            if first and not torch.equal(order, torch.arange(len(order))):
                cache.reorder_cache(order)
                real = real[order]
            outputs = whole(
                input_ids=tokens[:, first:last],
                attention_mask=real[:, :last].long(),
                past_key_values=cache,
                logits_to_keep=1,
            )
            found["logits"].append(outputs.logits[:, -1])
            found["kept"].append(_held(cache, tokens.shape[1]))
            found["bytes"].append(torch.tensor(cache.memory().entries))
            first = last
    return {name: torch.stack(each) for name, each in found.items()}


def _held(cache: CompressedCache, tokens: int) -> Tensor:
    """Mark the positions that each layer and head holds; none in layers with a window."""
    positions = cache.positions()
    held = iter([_marked(each, tokens) for each in positions])
    nowhere = _marked(torch.full_like(positions[0], -1), tokens)
    compressed = [layer in cache.compressed_layers for layer in cache.layers]
    return torch.stack([next(held) if each else nowhere for each in compressed], dim=1)


IMPLEMENTATIONS = {
    "attend": lambda **given: _attend_to(**given)[0],
    "attention": lambda **given: _attend_to(values=given["keys"], **given)[1],
    "received_attention": _received,
    "keep_set": _keep_set,
    "compact": _compacted,
    "quantize": _quantize,
    "quantize_channels": _quantize_channels,
    "dequantize": lambda **given: _stored_codes(**given).dequantize(torch.float32),
    "quantize_dequantize": lambda x, bits, group: quantise(x, bits, group).dequantize(
        torch.float32
    ),
    "pack": pack,
    "attend_coded": _attend_coded,
    "encode": _encode,
    "eviction_error": _errors_of_rows,
    "rotate": _rotate,
    "pool": _pool,
    "outlier_score": lambda x, over: outlier_scores(x, x.shape[-1], over)[..., 0],
    "*.observe": _observe,
    "*.score": _score,
    "*.select": _select,
    "*.keep": _keep,
    "*.store": _store,
    "*.run": _run,
    "*.whole_cache": _whole_cache,
}
