"""TriAttention: keys by their distance to a mean query, as a trigonometric series (2604.04921)."""

import torch

from kvlab.fast.engine.policy import Observation, Score, State
from kvlab.fast.engine.windows import query_statistic
from kvlab.fast.kernels.common import to_device
from kvlab.fast.kernels.notation import Candidates, Float, Marks, Room, Scores, Tensor
from kvlab.reference.methods import triattention as reference
from kvlab.reference.methods.triattention import AHEAD, LEAST


class TrigonometricSeries(Score[reference.TrigonometricSeries]):
    """What a mean query pays, averaged over distances to come; the first of the prompt stay."""

    def observe(self, state: State, seen: Observation) -> None:
        counted = "sums" in state.stream and not seen.clock.prefilling
        if counted or self.spec.options.statistics is not None:
            return
        positions = seen.query_positions[:, None, None]
        queries = seen.rotate(seen.queries, -positions)
        rows = [queries, pair_lengths(queries, pairs(seen)[:, None, None])]
        rows = torch.cat([*rows, torch.ones_like(queries[..., :1])], dim=-1)
        found = (rows * (positions >= 0)[..., None]).sum(dim=3)
        state.stream["sums"] = state.stream.get("sums", 0) + found

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        centre, length = self.statistics(state, seen)
        together = pairs(seen)[:, None]
        ahead = to_device(AHEAD, centre.device)
        to_come = centre[:, None].expand(-1, len(ahead), *centre.shape[1:])
        to_come = seen.rotate(to_come, (seen.clock.seen + ahead)[:, 0, :, None, None]).mean(dim=1)
        spread = (length - pair_lengths(centre, together)) / together.sum(dim=-1, keepdim=True).mT
        scores = to_come @ seen.keys.mT + spread @ pair_lengths(seen.keys, together).mT
        first = torch.zeros_like(seen.present)
        if self.spec.options.prompt == "cut":
            places = to_device(room, first.device)[:, None, None]
            first = seen.positions < torch.minimum(seen.clock.prompt, places)
        rated = seen.present & ~first
        z = standardised(scores, rated if candidates is None else rated & candidates)
        return z.amax(dim=2).masked_fill(first, torch.inf)

    def statistics(
        self, state: State, seen: Observation
    ) -> tuple[Float[Tensor, "N G rho d"], Float[Tensor, "N G rho d"]]:
        """Return the mean query, and the mean length of the pair that each channel is in."""
        if (path := self.spec.options.statistics) is not None:
            return query_statistic(path, "mean", seen), query_statistic(path, "length", seen)
        sums = state.stream["sums"]
        mean, length = (sums[..., :-1] / sums[..., -1:]).chunk(2, dim=-1)
        return mean, length


def pairs(seen: Observation) -> Float[Tensor, "N d d"]:
    """Mark the channels that are rotated together with each channel, itself included."""
    keys = seen.keys
    channels = torch.eye(keys.shape[-1], dtype=keys.dtype, device=keys.device)
    one = torch.ones((1, 1), dtype=torch.int32, device=keys.device)
    return (seen.rotate(channels.expand(len(keys), -1, -1), one) != 0).to(keys.dtype)


def pair_lengths(x: Tensor, together: Tensor) -> Tensor:
    """Return for every channel the length of the complex number that it is in."""
    return (x.square() @ together).sqrt()


def standardised(scores: Float[Tensor, "N G rho n"], rated: Marks) -> Float[Tensor, "N G rho n"]:
    """Subtract the mean of the rated entries, and divide by their deviation."""
    weights = rated[:, :, None].to(scores.dtype)
    weights = weights / weights.sum(dim=-1, keepdim=True).clamp(min=1)
    centred = scores - (scores * weights).sum(dim=-1, keepdim=True)
    deviations = (centred.square() * weights).sum(dim=-1, keepdim=True).sqrt()
    return centred / deviations.clamp(min=LEAST)
