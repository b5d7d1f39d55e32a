"""VaSE: values of extreme range stay, the rest is sampled (arXiv 2606.03928)."""

from dataclasses import dataclass
from math import pi

import torch

from kvlab.fast.engine.policy import Observation, Score, State
from kvlab.fast.engine.windows import (
    among_candidates,
    mean_pool,
    queries_remembered,
    remember_queries,
    window_received,
)
from kvlab.fast.kernels.keep import in_ascending_position, rank
from kvlab.fast.kernels.notation import Candidates, Float, PerEntry, Room, Scores, Tensor
from kvlab.fast.methods.random import Draw
from kvlab.reference.methods import vase as reference
from kvlab.reference.methods.random import BITS, draws
from kvlab.reference.methods.vase import COLUMNS, KERNEL


@dataclass(frozen=True)
class LargeValuesAndSample(Score[reference.LargeValuesAndSample]):
    """Values of extreme range, then a draw without replacement by attention."""

    draw: Draw

    def observe(self, state: State, seen: Observation) -> None:
        remember_queries(state, seen, self.spec.window)

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        chosen = seen.present if candidates is None else candidates & seen.present
        spread = largeness(seen.values, self.spec.size)
        spread = spread.masked_fill(seen.positions < self.spec.first, torch.inf)
        spread, into_slots = in_ascending_position(
            spread.masked_fill(~chosen, -torch.inf), seen.positions, seen.cache.ordered
        )
        large = into_slots(rank(spread)) >= spread.shape[-1] - self.spec.large
        noise = self.draw.score(state, seen, candidates, room)
        waiting = (-torch.log1p(-noise)).clamp(min=2.0**-BITS)
        return (self.attention(state, seen, candidates) / waiting).masked_fill(large, torch.inf)

    def attention(self, state: State, seen: Observation, candidates: Candidates) -> PerEntry:
        """Return what the last queries pay the candidates, smoothed over neighbours."""
        size = self.spec.window
        paid = window_received(state, seen, size, candidates) / queries_remembered(state, size)
        return among_candidates(paid, candidates, seen, mean_pool, KERNEL, "zero")


def largeness(values: Float[Tensor, "*rows d"], size: str) -> Float[Tensor, "*rows"]:
    """Return how large values are: their range over the channels, or an ablation of it."""
    if size == "length":
        return values.norm(dim=-1)
    if size == "variance":
        return values.var(dim=-1, correction=0)
    return values.amax(dim=-1) - values.amin(dim=-1)


@dataclass(frozen=True)
class ProjectedNorms(Score[reference.ProjectedNorms]):
    """Lengths of key and value after a random projection, which all heads of a layer share."""

    draw: Draw

    def observe(self, state: State, seen: Observation) -> None:
        self.draw.observe(state, seen)

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        self.observe(state, seen)
        columns = self.projection(state, seen)
        keys, values = ((x @ columns).square().sum(dim=-1) for x in (seen.keys, seen.values))
        products = keys * values * seen.present
        shares = products / products.sum(dim=-1, keepdim=True)
        return shares.masked_fill(seen.positions < self.spec.first, 1.0)

    def projection(self, state: State, seen: Observation) -> Float[Tensor, "N 1 d columns"]:
        """Return normal draws of variance 1/20, by Box and Muller, for the layer of each row."""
        device, at = seen.keys.device, (self.draw.spec.seed, state.stream["layer"])
        rows = torch.arange(seen.keys.shape[-1], device=device)[:, None]
        columns, time = torch.arange(COLUMNS, device=device), seen.clock.seen.long()
        one, other = (draws(*at, rows, columns, half, time).double() for half in (1, 2))
        normal = (-2 * torch.log1p(-one) / COLUMNS).sqrt() * (2 * pi * other).cos()
        return normal.to(seen.keys.dtype)[:, None]
