"""Attention with a mistake, which docs/kernel_fails.md finds: a mask that is not low enough."""

import numpy as np


def attend(queries, keys, values, positions, query_positions, softcap):
    logits = queries @ keys[:, None].swapaxes(-1, -2) / np.sqrt(queries.shape[-1])
    if softcap is not None:
        logits = softcap * np.tanh(logits / softcap)
    hidden = positions[:, None, None] > query_positions[:, None]
    logits = logits - 10_000 * hidden
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ values[:, None]


IMPLEMENTATIONS = {"attend": attend}
