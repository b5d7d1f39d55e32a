"""Parts that several scores share: last queries, attention of a window, pooling."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from kvlab.reference.attention import softmax, visible
from kvlab.reference.files import query_statistics
from kvlab.reference.notation import OverEntries, WindowLogits
from kvlab.reference.observation import Array, Bool, Float, Marks, Observation, Scores, State

Border = Literal["zero", "shrink"]


def remember_queries(state: State, seen: Observation, size: int) -> State:
    """Keep the last ``size`` queries and their positions in ``state.stream``."""
    queries, positions = seen.queries, seen.query_positions
    if "queries" in state.stream:
        queries = np.concatenate([state.stream["queries"], queries], axis=2)
        positions = np.concatenate([state.stream["query_positions"], positions])
    return state.with_stream(queries=queries[:, :, -size:], query_positions=positions[-size:])


def query_statistic(path: str, name: str, seen: Observation) -> Float[Array, "G rho *rest"]:
    """Return a statistic of the queries of this layer from a file; see `query_statistics`."""
    G, rho, _, d = seen.queries.shape
    found = query_statistics(path, name, seen.layers, G * rho, d)[seen.layer]
    return found.reshape(G, rho, *found.shape[1:])


def window_logits(
    state: State, seen: Observation, size: int
) -> tuple[WindowLogits, Bool[Array, "G 1 w n"]]:
    """Return the scaled logits of the last ``size`` queries, and what each of them may see."""
    queries = state.stream["queries"][:, :, -size:]
    positions = state.stream["query_positions"][-size:]
    return seen.logits(queries), visible(positions, seen.positions)


def window_attention(
    state: State, seen: Observation, size: int, over: Marks | None = None
) -> WindowLogits:
    """Attention of the last ``size`` queries over the present entries, or over ``over`` alone."""
    raw, mask = window_logits(state, seen, size)
    return softmax(raw, mask if over is None else mask & over[:, None, None, :])


def mean_pool(x: OverEntries, kernel: int, border: Border) -> OverEntries:
    """Average ``kernel`` neighbours; beyond the border lie zeros, or nothing (``shrink``)."""
    neighbours = windows_along_last(x, kernel, fill=0.0)
    if border == "zero":
        return neighbours.sum(axis=-1) / kernel
    present = windows_along_last(np.ones_like(x), kernel, fill=0.0)
    return neighbours.sum(axis=-1) / present.sum(axis=-1)


def max_pool(x: OverEntries, kernel: int) -> OverEntries:
    """Maximum over ``kernel`` neighbours."""
    return windows_along_last(x, kernel, fill=-np.inf).max(axis=-1)


def windows_along_last(x: OverEntries, kernel: int, fill: float) -> Float[Array, "... n {kernel}"]:
    """Return for every element the ``kernel`` elements around it."""
    padding = [(0, 0)] * (x.ndim - 1) + [(kernel // 2, kernel // 2)]
    padded = np.pad(x, padding, constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(padded, kernel, axis=-1)


def among_candidates(
    x: Scores, candidates: Marks, function: Callable[..., Array], *options: Any
) -> Scores:
    """Apply ``function`` to the candidates' columns alone, in cache order; others keep ``x``.

    It is given these columns and the ``options``.
    """
    result = x.copy()
    chosen = x[candidates].reshape(len(x), -1)
    if chosen.size:
        result[candidates] = function(chosen, *options).reshape(-1)
    return result
