"""Expected Attention: keys by the attention that queries to come would pay (arXiv 2510.00636)."""

import torch

from kvlab.fast.engine.policy import Observation, Score, State
from kvlab.fast.engine.windows import query_statistic, remember_queries
from kvlab.fast.kernels.attention import logits, softmax
from kvlab.fast.kernels.notation import Candidates, Float, Int, Real, Room, Scores, Tensor
from kvlab.reference.methods import expected_attention as reference


class AttentionToCome(Score[reference.AttentionToCome]):
    """Attention that a Gaussian of queries to come would pay, times the length of the value."""

    def observe(self, state: State, seen: Observation) -> None:
        options, positions = self.spec.options, seen.query_positions
        if options.statistics is not None:
            return
        if not seen.clock.prefilling:
            state.stream.pop("moments", None)
            remember_queries(state, seen, options.buffer)
            return
        queries = seen.rotate(seen.queries, -positions[:, None, None])
        found = moments(queries, (positions >= 0) & (positions >= options.sinks))
        state.stream["moments"] = state.stream.get("moments", 0) + found

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        options, d = self.spec.options, seen.keys.shape[-1]
        mean, covariance, first = self.queries_to_come(state, seen)
        turn = mean_rotation(seen, first, options.ahead)[:, None, None]
        mean, covariance = mean[..., None, :] @ turn, turn.mT @ covariance @ turn
        keys = seen.keys[:, :, None]
        quadratic = ((keys @ covariance) * keys).sum(dim=-1) / (2 * d)
        sinks = seen.positions < options.sinks
        rated = seen.present & ~sinks
        expected = logits(mean, seen.keys)[:, :, :, 0] + quadratic
        paid = softmax(expected, rated[:, :, None].expand_as(expected)).mean(dim=2)
        projected = options.values == "projected"
        lengths = seen.projected_lengths() if projected else seen.values.norm(dim=-1)
        scores = (paid + options.epsilon) * lengths
        largest = scores.masked_fill(~rated, 0).amax(dim=-1, keepdim=True)
        return torch.where(sinks, largest + 1, scores)

    def queries_to_come(
        self, state: State, seen: Observation
    ) -> tuple[Float[Tensor, "N G rho d"], Float[Tensor, "N G rho d d"], Int[Tensor, "N 1"]]:
        """Return mean and covariance of the queries, and the first position of those to come."""
        options, first = self.spec.options, seen.clock.seen[:, 0]
        if options.statistics is not None:
            mean, covariance = (
                query_statistic(options.statistics, name, seen) for name in ("mean", "covariance")
            )
            return mean, covariance, first
        if seen.clock.prefilling:
            found = state.stream["moments"]
        else:
            positions = state.stream["query_positions"]
            counted = positions >= 0
            if options.origin == "buffer":
                first = counted.sum(dim=1, keepdim=True)
                counted = counted & (counted.cumsum(dim=1) > options.sinks)
            queries = seen.rotate(state.stream["queries"], -positions[:, None, None])
            found = moments(queries, counted)
        return *mean_and_covariance(found), first


def moments(queries: Float[Tensor, "N G rho m d"], counted: Real) -> Float[Tensor, "N G rho c c"]:
    """Sum the products of all channels, and of a channel of ones: second moments, sums, count."""
    rows = torch.cat([queries, torch.ones_like(queries[..., :1])], dim=-1)
    rows = rows * counted[:, None, None, :, None]
    return rows.mT @ rows


def mean_and_covariance(
    found: Float[Tensor, "N G rho c c"],
) -> tuple[Float[Tensor, "N G rho d"], Float[Tensor, "N G rho d d"]]:
    """Return what `moments` hold; zeros of no queries."""
    found = found / found[..., -1:, -1:].clamp(min=1)
    mean = found[..., -1, :-1]
    return mean, found[..., :-1, :-1] - mean[..., None] * mean[..., None, :]


def mean_rotation(
    seen: Observation, first: Int[Tensor, "N 1"], ahead: int
) -> Float[Tensor, "N d d"]:
    """Return R̄, transposed: the mean of the rotations of ``ahead`` positions from ``first`` on.

    The sum of 2m rotations is that of m, and the same rotated by m: few rotations are made.
    """
    d = seen.keys.shape[-1]
    channels = torch.eye(d, dtype=seen.keys.dtype, device=seen.keys.device)
    channels = channels.expand(len(seen.keys), d, d)
    total, summed = channels, 1
    for bit in f"{ahead:b}"[1:]:
        total, summed = total + seen.rotate(total, torch.full_like(first, summed)), 2 * summed
        if bit == "1":
            total = total + seen.rotate(channels, torch.full_like(first, summed))
            summed += 1
    return seen.rotate(total / ahead, first)
