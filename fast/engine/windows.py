"""What several scores share: the last queries, attention of a window, pooling, head reduction."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import avg_pool1d, max_pool1d

from kvlab.fast.engine.cache import State
from kvlab.fast.engine.observation import Observation
from kvlab.fast.kernels.attention import visible
from kvlab.fast.kernels.codes import constant
from kvlab.fast.kernels.notation import Bool, Candidates, Float, Int, Marks, PerEntry, Tensor
from kvlab.fast.kernels.prefill import received_attention
from kvlab.reference.files import query_statistics
from kvlab.reference.windows import Border

Window = tuple[Float[Tensor, "N G rho w d"], Int[Tensor, "N w"]]
"""Remembered queries, and their positions."""


def remember_queries(state: State, seen: Observation, size: int) -> None:
    """Keep the last ``size`` queries and their positions in ``state.stream``."""
    queries, positions = seen.queries[:, :, :, -size:], seen.query_positions[:, -size:]
    old = state.stream.get("queries")
    if old is not None and min(seen.clock.present) < seen.queries.shape[3]:
        queries = torch.cat([old, seen.queries], dim=3)
        positions = torch.cat([state.stream["query_positions"], seen.query_positions], dim=1)
        queries, positions = _last_real(queries, positions, size)
    elif old is not None:
        older = min(old.shape[3], size - queries.shape[3])
        first = old.shape[3] - older
        queries = torch.cat([old[:, :, :, first:], queries], dim=3)
        positions = torch.cat([state.stream["query_positions"][:, first:], positions], dim=1)
    elif queries.shape[3] < seen.queries.shape[3]:
        queries, positions = queries.clone(), positions.clone()
    state.stream["queries"], state.stream["query_positions"] = queries, positions


def query_statistic(path: str, name: str, seen: Observation) -> Float[Tensor, "N G rho *rest"]:
    """Return a statistic of the queries of each row's layer from a file."""
    N, G, rho, _, d = seen.queries.shape
    of = path, name, seen.layers, G * rho, d
    every = constant(query_statistics, of, seen.queries.device, seen.queries.dtype)
    rows = torch.stack([every[layer] for layer in seen.numbers]).unflatten(1, (G, rho))
    return rows.repeat_interleave(N // len(rows), dim=0)


def _last_real(
    queries: Float[Tensor, "N G rho m d"], positions: Int[Tensor, "N m"], size: int
) -> Window:
    """Return the last ``size`` real queries; if there are fewer, padding stands before them."""
    order = (positions >= 0).to(torch.uint8).argsort(dim=-1, stable=True)[:, -size:]
    places = order[:, None, None, :, None].expand(-1, *queries.shape[1:3], -1, queries.shape[4])
    return queries.gather(3, places), positions.gather(1, order)


def window(state: State, size: int) -> Window:
    """Return the last ``size`` remembered queries and their positions."""
    return state.stream["queries"][:, :, :, -size:], state.stream["query_positions"][:, -size:]


def window_logits(
    state: State, seen: Observation, size: int
) -> tuple[Float[Tensor, "N G rho w n"], Bool[Tensor, "N G 1 w n"]]:
    """Return the scaled logits of the last ``size`` queries, and what each of them may see."""
    queries, positions = window(state, size)
    return seen.logits(queries), visible(positions, seen.positions)


def window_received(
    state: State, seen: Observation, size: int, over: Candidates = None
) -> PerEntry:
    """Sum what the last ``size`` queries pay every entry, mean over the query heads of a KV head.

    The softmax runs over the present entries, or over ``over`` alone.
    """
    queries, positions = window(state, size)
    entries = seen.positions if over is None else seen.positions.masked_fill(~over, -1)
    received = received_attention(
        queries, seen.view.column("keys"), positions, entries, softcap=seen.view.softcap
    )
    return received / queries.shape[2]


def queries_remembered(state: State, size: int) -> Int[Tensor, "N 1 1"]:
    """Count the last ``size`` queries without padding, at least one."""
    _, positions = window(state, size)
    return (positions >= 0).sum(dim=-1).clamp(min=1)[:, None, None]


def mean_pool(x: PerEntry, kernel: int, border: Border, present: Marks) -> PerEntry:
    """Average ``kernel`` neighbours; beyond the border lie zeros, or nothing (``shrink``)."""
    pooled = avg_pool1d(x * present, kernel, stride=1, padding=kernel // 2)
    if border == "zero":
        return pooled
    shares = avg_pool1d(present.to(x.dtype), kernel, stride=1, padding=kernel // 2)
    return pooled / shares.clamp(min=0.5 / kernel)


def max_pool(x: PerEntry, kernel: int, present: Marks) -> PerEntry:
    """Maximum over ``kernel`` neighbours."""
    return max_pool1d(x.masked_fill(~present, -torch.inf), kernel, stride=1, padding=kernel // 2)


def among_candidates(
    x: Float[Tensor, "N #G n"],
    candidates: Candidates,
    seen: Observation,
    function: Callable[..., Tensor],
    *options: Any,
) -> PerEntry:
    """Apply ``function`` to the candidates alone, in cache order; others keep ``x``.

    It is given the candidates, moved together, the ``options``, and where candidates are.
    """
    chosen = seen.present if candidates is None else candidates & seen.present
    last = torch.iinfo(seen.positions.dtype).max
    order = torch.where(chosen, seen.positions, last).argsort(dim=-1)
    moved, where = x.expand_as(seen.positions).gather(-1, order), chosen.gather(-1, order)
    pooled = torch.where(where, function(moved, *options, where), moved)
    return torch.empty_like(pooled).scatter_(-1, order, pooled)
