"""Attention of one new token that also hands scores their probabilities.

Bytes, for N·G heads with ρ query heads each, n entries of d channels of e bytes: keys and values
once, 2·n·d·e; raw logits written and read again as float32, 8·ρ·n, and what is received written,
4·n. The logits are ρ/(d·e/4) of the cache: 6 % for ρ = 4, d = 128, 16 bits. Operations: 4·ρ·n·d.
"""

from jaxtyping import Float, Int
from torch import Tensor

from kvlab.fast.engine import attention
from kvlab.fast.engine.attention import Reduction
from kvlab.fast.kernels.choice import uses_triton
from kvlab.fast.kernels.recurrence import RecurrenceCounters, count_recurrence


def decode_attention(
    queries: Float[Tensor, "N G rho 1 d"],
    keys: Float[Tensor, "N G n d"],
    values: Float[Tensor, "N G n d"],
    positions: Int[Tensor, "N G n"] | None = None,
    softcap: float | None = None,
    reduce: Reduction = "none",
    counters: RecurrenceCounters | None = None,
) -> tuple[Float[Tensor, "N G rho 1 d"], Tensor]:
    """Attend from one token to all entries.

    Args:
        queries: queries of the token; logits are q·k/√d.
        keys: keys of the entries, with any strides, channels next to each other.
        values: likewise.
        positions: -1 marks empty slots; None where there is none.
        softcap: bound into which logits are squeezed.
        reduce: how to join the query heads of a KV head; ``skip``: only the output is wanted.
        counters: counters to update; they need a reduction.

    Returns:
        The output, and the probabilities ``[N, G, rho, 1, n]`` or, reduced, ``[N, G, n]``, float32;
        with ``skip`` an empty tensor.

    Raises:
        ValueError: if there are counters without a reduction.
    """
    if counters is not None and reduce in ("none", "skip"):
        raise ValueError(f"counters need reduce = 'sum', 'mean' or 'max', not {reduce!r}")
    if uses_triton(queries):
        from kvlab.fast.kernels.triton.decode import decode_attention_triton

        return decode_attention_triton(queries, keys, values, positions, softcap, reduce, counters)
    dtype = attention.compute_dtype(keys.dtype)
    mask = None if positions is None else (positions >= 0)[:, :, None, None]
    output, weights = attention.attend(
        queries.to(dtype), keys.to(dtype), values.to(dtype), mask, softcap
    )
    output = output.to(queries.dtype)
    if reduce == "none":
        return output, weights
    if reduce == "skip":
        return output, weights.new_empty(0)
    received = attention.reduce_group(weights[:, :, :, 0], reduce)
    if counters is not None:
        active = received >= counters.threshold
        counters.elapsed.add_(1)
        count_recurrence(counters.elapsed, counters.interval, active, counts=active)
    return output, received
