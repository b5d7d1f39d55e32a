"""What a text must be when blocks were evicted: dense attention over the kept positions."""

from collections.abc import Sequence

import torch

from kvlab.fast import compress
from kvlab.reference import methods

BLOCK = 32
Evicted = Sequence[tuple[int, int]]
"""Tokens seen, and the number of a block that later tokens do not see."""


def dense(model, prompt, tokens, evicted: Evicted) -> tuple[list[int], list[float]]:
    """Return the tokens that dense attention writes, and log-probabilities of ``tokens``."""
    ids = [*prompt, *tokens]
    sees = torch.tril(torch.ones(len(ids), len(ids), dtype=torch.bool))
    for seen, number in evicted:
        sees[seen:, number * BLOCK : (number + 1) * BLOCK] = False
    mask = torch.zeros(sees.shape).masked_fill(~sees, torch.finfo(torch.float32).min)
    with torch.inference_mode():
        found = model(torch.tensor([ids]), attention_mask=mask[None, None]).logits[0]
    return _written(found[len(prompt) - 1 : -1], tokens)


def specified(model, spec, budget, prompt, tokens, evicted: Evicted) -> tuple[list, list]:
    """Return the same of kvlab in transformers, which must keep the same blocks at every step."""
    logits = []
    with compress(model, methods.get(spec, budget)) as cache, torch.inference_mode():
        for given in ([*prompt], *[[token] for token in tokens[:-1]]):
            logits.append(model(torch.tensor([given]), past_key_values=cache).logits[0, -1])
            seen = cache.clocks[0].seen
            gone = {number for when, number in evicted if when <= seen}
            kept = [n for n in range(-(-seen // BLOCK)) if n not in gone]
            for layer in cache.positions():
                assert sorted({int(p) // BLOCK for p in layer.flatten()}) == kept, seen
    return _written(torch.stack(logits), tokens)


def _written(logits, tokens) -> tuple[list[int], list[float]]:
    rows = logits.float().log_softmax(-1)
    return rows.argmax(-1).tolist(), [float(row[t]) for row, t in zip(rows, tokens, strict=True)]
