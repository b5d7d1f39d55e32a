"""kvpress in a whole model: ``kvlab conformance run kvpress_caches.py``.

A press prunes the prompt once, after the model has read it; what comes later stays. So it can be
asked for SnapKV, which does the same, with a prompt in one block. Install kvpress yourself.
"""

import torch
from kvpress import SnapKVPress
from transformers import DynamicCache

from kvlab.fast.lab.conformance import decoder

ARRAYS = "torch"


def snapkv(model, budget, window, kernel, pooling, tokens, padding, calls, continues, block_size):
    """Prune the prompt with the press, then feed the rest."""
    if block_size is not None or padding.any() or pooling != "mean":
        raise NotImplementedError("one prompt at once, without padding, mean pooling")
    whole, prompt = decoder(model, None), int(calls[0])
    ratio = 1 - min(budget, prompt) / prompt
    press = SnapKVPress(compression_ratio=ratio, window_size=window, kernel_size=kernel)
    full = DynamicCache(config=whole.config)
    with torch.inference_mode():
        whole(input_ids=tokens[:, :prompt], past_key_values=full)
    cache, found, first = DynamicCache(config=whole.config), {"logits": [], "kept": []}, 0
    for length in calls.tolist():
        part = {
            "input_ids": tokens[:, first : first + length],
            "position_ids": torch.arange(first, first + length)[None],
            "past_key_values": cache,
        }
        with torch.inference_mode():
            if first == 0:
                with press(whole):
                    outputs = whole(**part)
            else:
                outputs = whole(**part)
        first += length
        found["logits"].append(outputs.logits[:, -1])
        found["kept"].append(positions(cache, full, prompt, first, tokens.shape[1]))
    return {name: torch.stack(each) for name, each in found.items()}


def positions(cache, full, prompt, seen, tokens):
    """Find the prompt's survivors by their keys; everything after the prompt is there."""
    marks = []
    for layer, whole in zip(cache.layers, full.layers, strict=True):
        kept = layer.keys[:, :, : layer.keys.shape[2] - (seen - prompt)]
        same = (whole.keys[:, :, :, None] == kept[:, :, None]).all(-1).any(-1)
        later = torch.ones(*same.shape[:2], seen - prompt, dtype=torch.bool)
        rest = torch.zeros(*same.shape[:2], tokens - seen, dtype=torch.bool)
        marks.append(torch.cat([same, later, rest], dim=2))
    return torch.stack(marks, dim=1)


IMPLEMENTATIONS = {"snapkv.whole_cache": snapkv}
