"""Expected Attention: keys by the attention that queries to come would pay (arXiv 2510.00636).

Equations (numbered here):

1. μ, Σ = mean and covariance of the queries before their rotation, without those of the S sinks
2. R̄ = mean of the rotations of the next T positions; μ̄ = R̄ μ, Σ̄ = R̄ Σ R̄ᵀ
3. â_j = mean over the group of softmax_j(μ̄·k_j/√d + k_jᵀ Σ̄ k_j/(2d)), sinks left out
4. s_j = (â_j + ε) ‖v_j‖₂; sinks: one more than the largest
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvlab.reference.attention import softmax
from kvlab.reference.files import read_statistics
from kvlab.reference.method import Example, Method
from kvlab.reference.notation import Queries
from kvlab.reference.observation import Array, Bool, Float, Marks, Needs, Observation, Scores, State
from kvlab.reference.policy import AfterPrefillThenEveryDecode, Edges, Policy, Score
from kvlab.reference.windows import query_statistic, remember_queries


@dataclass(frozen=True)
class AttentionToCome(Score):
    """Attention that a Gaussian of queries to come would pay, times the length of the value."""

    options: "ExpectedAttention"

    @property
    def needs(self) -> Needs:
        return Needs(rows="none", rotary=True, projection=self.options.values == "projected")

    def observe(self, state: State, seen: Observation) -> State:
        if self.options.statistics is not None:
            return state
        if not seen.clock.prefilling:
            stream = {name: x for name, x in state.stream.items() if name != "moments"}
            return remember_queries(State(state.entries, stream), seen, self.options.buffer)
        queries = seen.rotate(seen.queries, -seen.query_positions)
        found = moments(queries, seen.query_positions >= self.options.sinks)
        return state.with_stream(moments=state.stream.get("moments", 0) + found)

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        options, d = self.options, seen.keys.shape[-1]
        mean, covariance, first = self.queries_to_come(state, seen)
        turn = mean_rotation(seen, first, options.ahead)
        mean, covariance = mean @ turn, turn.T @ covariance @ turn
        linear = np.einsum("grd,gnd->grn", mean, seen.keys) / np.sqrt(d)
        quadratic = np.einsum("gnc,grcd,gnd->grn", seen.keys, covariance, seen.keys) / (2 * d)
        sinks = seen.positions < options.sinks
        paid = softmax(linear + quadratic, ~sinks[:, None]).mean(axis=1)  # [Expected-Attention 3]
        if options.values == "cached":
            lengths = np.linalg.norm(seen.values, axis=-1)
        else:
            lengths = np.linalg.norm(seen.projected, axis=-1).mean(axis=1)
        scores = (paid + options.epsilon) * lengths
        largest = np.where(sinks, 0, scores).max(axis=1, keepdims=True)
        return np.where(sinks, largest + 1, scores)  # [Expected-Attention 4]

    def queries_to_come(
        self, state: State, seen: Observation
    ) -> tuple[Float[Array, "G rho d"], Float[Array, "G rho d d"], int]:
        """Return mean and covariance of the queries, and the first position of those to come."""
        options, first = self.options, seen.clock.seen
        if options.statistics is not None:
            mean, covariance = (
                query_statistic(options.statistics, name, seen) for name in ("mean", "covariance")
            )
            return mean, covariance, first
        if seen.clock.prefilling:
            found = state.stream["moments"]
        else:
            positions = state.stream["query_positions"]
            counted = np.ones(len(positions), dtype=bool)
            if options.origin == "buffer":
                first, counted = len(positions), np.arange(len(positions)) >= options.sinks
            found = moments(seen.rotate(state.stream["queries"], -positions), counted)
        return *mean_and_covariance(found), first


def moments(queries: Queries, counted: Bool[Array, " m"]) -> Float[Array, "G rho c c"]:
    """Sum the products of all channels, and of a channel of ones: second moments, sums, count."""
    ones = np.ones((*queries.shape[:3], 1))
    rows = np.concatenate([queries, ones], axis=-1)[:, :, counted]
    return rows.swapaxes(-1, -2) @ rows


def mean_and_covariance(
    found: Float[Array, "G rho c c"],
) -> tuple[Float[Array, "G rho d"], Float[Array, "G rho d d"]]:
    """Return what `moments` hold; zeros of no queries."""
    found = found / np.maximum(found[..., -1:, -1:], 1)
    mean = found[..., -1, :-1]
    return mean, found[..., :-1, :-1] - mean[..., None] * mean[
        ..., None, :
    ]  # [Expected-Attention 1]


def mean_rotation(seen: Observation, first: int, ahead: int) -> Float[Array, "d d"]:
    """Return R̄, transposed: the mean of the rotations of ``ahead`` positions from ``first`` on."""
    channels = np.tile(np.eye(seen.keys.shape[-1]), (ahead, 1, 1))
    turned = seen.rotate(channels, first + np.arange(ahead)[:, None])
    return turned.mean(axis=0)  # [Expected-Attention 2]


@dataclass(frozen=True)
class ExpectedAttention(Method):
    """Keep the keys that queries to come are expected to attend to."""

    ahead: int = 512
    """Positions T to come over which the rotation is averaged."""
    sinks: int = 4
    """First tokens S of the text, which are protected and are in no statistic."""
    epsilon: float = 0.0
    """Number ε that is added to the expected attention."""
    every: int = 512
    """Generated tokens between two evictions; the first is after the prompt."""
    buffer: int = 128
    """Newest generated queries that decide while the model writes."""
    origin: Literal["text", "buffer"] = "text"
    """What positions to come follow while the model writes: the text, or, as in kvpress, the
    buffer, whose first S queries then are in no statistic."""
    values: Literal["cached", "projected"] = "cached"
    """Whose length counts: the cached value's, or, as in the paper, that of W_O v. Each query head
    of a KV head has its own part of W_O; the mean over them counts, as in DefensiveKV's code."""
    statistics: str | None = None
    """File of ``kvlab trace --statistics`` to take in place of the text's own queries."""

    name = "expected_attention"
    source = "Devoto et al., Expected Attention, 2510.00636"
    published = "2025-10"
    equations = tuple(f"Expected-Attention {number}" for number in range(1, 5))
    limits = {"ahead": 1, "every": 1, "buffer": 1, "sinks": 0, "epsilon": 0}
    examples = (
        Example("expected_attention@every=3,ahead=5,sinks=2,buffer=4"),
        Example("expected_attention@every=3,ahead=5,sinks=1,origin=buffer,epsilon=0.02"),
    )
    compared = ("expected_attention@every=16", "expected_attention@every=16,recent=16")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.statistics is not None:
            read_statistics(self.statistics)

    def policy(self, budget: int | None) -> Policy:
        schedule = AfterPrefillThenEveryDecode(self.every)
        return self.composed(AttentionToCome(self), schedule, Edges(sinks=self.sinks), budget)
