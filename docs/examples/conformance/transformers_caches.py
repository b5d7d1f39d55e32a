"""transformers' caches in a whole model: ``kvlab conformance run transformers_caches.py``.

`DynamicCache` keeps everything: the method ``full``, also with layers that slide. `QuantizedCache`
is said to be "similar to" KIVI; its backend quanto is installed by ``pip install optimum-quanto``.
"""

from importlib.util import find_spec

import torch
from transformers import DynamicCache, QuantizedCache

from kvlab.fast.lab.conformance import decoder

ARRAYS = "torch"


def fed(model, cache, tokens, padding, calls, continues, block_size):
    """Feed the calls as ``generate`` does: padding is masked, and positions do not count it."""
    real = torch.arange(tokens.shape[1]) >= padding[:, None]
    positions = (real.long().cumsum(dim=1) - 1).clamp(min=0)
    found, first = {"logits": [], "kept": [], "bytes": []}, 0
    for length, order in zip(calls.tolist(), continues, strict=True):
        if first and not torch.equal(order, torch.arange(len(order))):
            cache.reorder_cache(order)
        size = block_size or length
        for start in range(first, first + length, size):
            part = slice(start, min(start + size, first + length))
            with torch.inference_mode():
                outputs = model(
                    input_ids=tokens[:, part],
                    attention_mask=real[:, : part.stop].long(),
                    position_ids=positions[:, part],
                    past_key_values=cache,
                    logits_to_keep=1,
                )
        first += length
        found["logits"].append(outputs.logits[:, -1])
        found["kept"].append(everything(model, padding, first, tokens.shape[1]))
        found["bytes"].append(torch.tensor(sum(each.nbytes for each in tensors_of(cache))))
    return {name: torch.stack(each) for name, each in found.items()}


def everything(model, padding, columns, tokens):
    """Mark all positions so far, in every layer and head."""
    seen = torch.arange(tokens) < (columns - padding)[:, None]
    heads, layers = model.config.num_key_value_heads, model.config.num_hidden_layers
    return seen[:, None, None].expand(-1, layers, heads, -1)


def tensors_of(cache):
    """Return what the layers hold."""
    for layer in cache.layers:
        yield layer.keys
        yield layer.values
        for name in ("_quantized_keys", "_quantized_values"):
            stored = getattr(layer, name, None)
            if stored is not None:
                yield from (stored._data._data, stored._scale, stored._shift)


def full_with(kind):
    """Return the target of a kind of cache that keeps everything."""

    def full(
        model,
        softcap,
        sliding_window,
        learned_sinks,
        tokens,
        padding,
        calls,
        continues,
        block_size,
        precision="full",
    ):
        if precision != "full":
            raise NotImplementedError("these caches store vectors as they are")
        if softcap is not None or learned_sinks is not None:
            raise NotImplementedError("Llama's attention in transformers has no softcap, no sinks")
        whole = decoder(model, sliding_window)
        cache = kind(config=whole.config, max_cache_len=tokens.shape[1])
        return fed(whole, cache, tokens, padding, calls, continues, block_size)

    return full


def dynamic(config, max_cache_len):
    """Return a cache that grows, with sliding layers where the model has them."""
    return DynamicCache(config=config)


def kivi(
    model, key_bits, value_bits, group, residual, tokens, padding, calls, continues, block_size
):
    """Quantised cache."""
    if find_spec("optimum") is None:
        raise NotImplementedError("optimum-quanto is not installed")
    if key_bits != value_bits or key_bits not in (2, 4):
        raise NotImplementedError("quanto stores keys and values at the same 2 or 4 bits")
    whole = decoder(model, None)
    options = {"axis_key": 0, "axis_value": 0, "q_group_size": group, "residual_length": residual}
    cache = QuantizedCache("quanto", whole.config, nbits=key_bits, **options)
    return fed(whole, cache, tokens, padding, calls, continues, block_size)


IMPLEMENTATIONS = {"full.whole_cache": full_with(dynamic), "kivi.whole_cache": kivi}
