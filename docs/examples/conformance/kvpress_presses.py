"""kvpress presses under test: ``kvlab conformance run kvpress_presses.py``.

Install kvpress yourself, in an environment of its own where it needs another transformers:
``pip install kvpress kvlab``. A press rates a whole prompt; it is handed attention as its hook
would get it from a model with eager attention.
"""

from types import SimpleNamespace

import torch
from kvpress import ObservedAttentionPress, SnapKVPress, StreamingLLMPress, TOVAPress
from kvpress_caches import share_removed

ARRAYS = "torch"


def rated(press, keys, values, attentions):
    """Return the press's scores of one sequence; ``attentions`` is [G, rho, rows, n]."""
    G, rho, rows, n = attentions.shape
    config = SimpleNamespace(num_attention_heads=G * rho, num_key_value_heads=G)
    module = SimpleNamespace(config=config, head_dim=keys.shape[-1])
    hidden_states = torch.zeros(1, n, 1)
    weights = attentions.reshape(1, G * rho, rows, n)
    return press.score(module, hidden_states, keys[None], values[None], weights, {})[0]


def survivors(press, scores, keys, budget):
    """Let the press evict entries, and return the indices of those that it kept."""
    n = keys.shape[1]
    press.compression_ratio = share_removed(budget, n)
    press.score = lambda *_: scores[None]
    marked = torch.arange(n, dtype=torch.float64).expand(1, len(keys), n)[..., None]
    kept, _ = press.compress(SimpleNamespace(head_dim=1), None, marked, marked, None, {})
    return kept[0, :, :, 0].long().sort().values


def window_attention(keys, positions, queries, query_positions, softcap):
    """Attention of the remembered queries, as the model computes it."""
    logits = queries @ keys[:, None].mT / keys.shape[-1] ** 0.5
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    seen = positions[:, None, None] <= query_positions[:, None]
    return logits.masked_fill(~seen, -torch.inf).softmax(-1)


def snapkv_score(
    keys,
    values,
    positions,
    remembered_queries,
    remembered_query_positions,
    window,
    kernel,
    pooling,
    border,
    softcap,
):
    """SnapKVPress pools means with zeros at the border."""
    if pooling != "mean" or border != "zero":
        raise NotImplementedError(f"pooling = {pooling}, border = {border}")
    queries = remembered_queries, remembered_query_positions
    attentions = window_attention(keys, positions, *queries, softcap)
    return rated(SnapKVPress(window_size=window, kernel_size=kernel), keys, values, attentions)


def snapkv_select(budget, keys, **given):
    """Scores, then the press's own pruning."""
    names = snapkv_score.__code__.co_varnames[: snapkv_score.__code__.co_argcount]
    scores = snapkv_score(keys=keys, **{name: given[name] for name in names if name != "keys"})
    return survivors(SnapKVPress(), scores, keys, budget)


def tova_score(keys, values, attention, per_head):
    """TOVAPress shares one score among all heads."""
    if per_head:
        raise NotImplementedError("TOVAPress decides per layer")
    return rated(TOVAPress(), keys, values, attention)


def tova_select(budget, keys, values, attention, per_head):
    """Scores, then the press's own pruning."""
    return survivors(TOVAPress(), tova_score(keys, values, attention, per_head), keys, budget)


def streaming_llm_select(budget, sinks, keys, values, attention):
    """The press decides by score alone: ones at both ends, zeros between."""
    press = StreamingLLMPress(share_removed(budget, keys.shape[1]), n_sink=sinks)
    return survivors(StreamingLLMPress(), rated(press, keys, values, attention), keys, budget)


def h2o_score(keys, values, accumulated, reduce):
    """ObservedAttentionPress is the press that is related to H2O."""
    if reduce != "mean":
        raise NotImplementedError(f"reduce = {reduce}")
    return rated(ObservedAttentionPress(), keys, values, accumulated[:, None, None])


IMPLEMENTATIONS = {
    "snapkv.score": snapkv_score,
    "snapkv.select": snapkv_select,
    "tova.score": tova_score,
    "tova.select": tova_select,
    "streaming_llm.select": streaming_llm_select,
    "h2o.score": h2o_score,
}
