"""kvpress in a whole model: ``kvlab conformance run kvpress_caches.py``.

A press prunes the prompt once, after the model has read it; `DecodingPress` prunes again after
every later call. Install kvpress yourself, with a version of transformers that it allows.
"""

import torch
from kvpress import DecodingPress, PrefillDecodingPress, SnapKVPress, StreamingLLMPress, TOVAPress
from transformers import DynamicCache

from kvlab.fast.lab.conformance import decoder

ARRAYS = "torch"


def followed(press, held):
    """Let ``held``, the positions in each layer, follow what the press keeps, by its keys."""
    prune = press.compress

    def compress(module, hidden_states, keys, values, attentions, kwargs):
        kept = prune(module, hidden_states, keys, values, attentions, kwargs)
        same = (keys[:, :, None] == kept[0][:, :, :, None]).all(-1)
        layer = module.layer_idx
        held[layer] = held[layer].gather(2, same.int().argmax(-1))
        return kept

    press.compress = compress
    return press


def share_removed(budget, length):
    """Return the compression ratio at which a press keeps ``budget`` of ``length`` entries."""
    return max(0.0, 1 - (budget + 0.5) / length)


def fed(
    model,
    press_of,
    tokens,
    padding,
    calls,
    continues,
    block_size,
    sliding_window,
    precision="full",
    **_,
):
    """Feed the calls under the press that ``press_of`` makes for the length of the first block."""
    if padding.any() or sliding_window is not None or precision != "full":
        raise NotImplementedError("kvpress prunes entries of full precision, without padding")
    whole, (N, t) = decoder(model, None), tokens.shape
    nothing = torch.zeros(N, whole.config.num_key_value_heads, 0, dtype=torch.long)
    held = [nothing] * whole.config.num_hidden_layers
    press = press_of(min(block_size or t, int(calls[0])), held)
    cache, found, first = DynamicCache(config=whole.config), {"logits": [], "kept": []}, 0
    with torch.inference_mode(), press(whole):
        for length, order in zip(calls.tolist(), continues, strict=True):
            if first:
                cache.reorder_cache(order)
                held[:] = [places[order] for places in held]
            for part in torch.arange(first, first + length).split(block_size or length):
                new = part.expand(*nothing.shape[:2], -1)
                held[:] = [torch.cat([places, new], dim=2) for places in held]
                outputs = whole(
                    input_ids=tokens[:, part],
                    position_ids=part.expand(N, -1),
                    past_key_values=cache,
                )
            first += length
            marks = torch.zeros(len(held), *nothing.shape[:2], t, dtype=torch.bool)
            found["kept"].append(marks.scatter_(3, torch.stack(held), True).transpose(0, 1))
            found["logits"].append(outputs.logits[:, -1])
    return {name: torch.stack(each) for name, each in found.items()}


def snapkv(model, budget, window, kernel, pooling, block_size, **stream):
    """Prune the prompt alone."""
    if block_size is not None or pooling != "mean":
        raise NotImplementedError("one prompt at once, mean pooling")

    def press_of(length, held):
        ratio = share_removed(budget, length)
        press = SnapKVPress(compression_ratio=ratio, window_size=window, kernel_size=kernel)
        return followed(press, held)

    return fed(model, press_of, block_size=None, **stream)


def streaming_llm(model, budget, sinks, every, **stream):
    """Prune after every block."""
    refuse_pauses(every)
    return fed(model, always(budget, StreamingLLMPress, n_sink=sinks), **stream)


def tova(model, budget, per_head, every, page=1, **stream):
    """Prune after every block; the press shares one score among the heads of a layer."""
    refuse_pauses(every)
    if per_head or page != 1:
        raise NotImplementedError("TOVAPress decides per layer and about single entries")
    return fed(model, always(budget, TOVAPress), **stream)


def refuse_pauses(every):
    """Raise NotImplementedError unless every token decides: a press counts calls, not tokens."""
    if every != 1:
        raise NotImplementedError("DecodingPress counts calls between two decisions, not tokens")


def always(budget, kind, **options):
    """Make presses that prune the first block and every later one."""

    def press_of(length, held):
        first = kind(compression_ratio=share_removed(budget, length), **options)
        later = DecodingPress(
            followed(kind(**options), held), compression_interval=1, target_size=budget
        )
        return PrefillDecodingPress(followed(first, held), later)

    return press_of


IMPLEMENTATIONS = {
    "snapkv.whole_cache": snapkv,
    "streaming_llm.whole_cache": streaming_llm,
    "tova.whole_cache": tova,
}
