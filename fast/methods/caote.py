"""CAOTE and FastCAOTE: evict what changes the attention output least (arXiv 2504.14051)."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvlab.fast.engine.policy import Around, Candidates, Needs, Observation, Room, Score, State
from kvlab.fast.engine.step import first_to_go
from kvlab.fast.engine.windows import among_candidates, mean_pool
from kvlab.fast.kernels.caote import (
    errors_per_row,
    eviction_errors,
    fast_errors_per_row,
    joined_by_norm,
    remaining_mass,
)
from kvlab.fast.kernels.common import to_device
from kvlab.fast.kernels.notation import Float, Marks, PerEntry, PerRow, Scores, Vectors
from kvlab.reference.methods import caote as reference


def normalize(retention: PerRow, present: Candidates = None) -> PerRow:
    """Divide by the sum; all zero becomes uniform over what is ``present``."""
    total = retention.sum(dim=-1, keepdim=True)
    uniform: float | Tensor = 1 / retention.shape[-1]
    if present is not None:
        entries = present.sum(dim=-1, keepdim=True).clamp(min=1)
        uniform = (present / entries)[:, :, None].to(retention.dtype)
    return torch.where(total == 0, uniform, retention / total)


def joint_errors(h: PerRow, values: Vectors, evicted: Marks) -> PerEntry:
    """Exact change of the outputs when each entry is evicted besides those in ``evicted``.

    ‖Σ_E h(v − X)‖/(1 − Σ_E h) for E = evicted ∪ {j}, L2 over the rows of a group.
    """
    output = torch.matmul(h, values)
    pull = h[..., None] * (values[:, :, None] - output[:, :, :, None])
    gone = evicted[:, :, None, :, None]
    size = torch.linalg.vector_norm((pull * gone).sum(dim=3, keepdim=True) + pull, dim=-1)
    left = remaining_mass(h.masked_fill(evicted[:, :, None], 0.0))
    error = torch.where(left > 0, size / left, torch.inf)
    return joined_by_norm(error)


@dataclass(frozen=True)
class EvictionError(Around[reference.EvictionError]):
    """CAOTE applied to any score."""

    def __post_init__(self) -> None:
        if self.inner.spec.signed:
            raise ValueError("CAOTE needs retention scores that are at least 0")

    @property
    def needs(self) -> Needs:
        inner = self.inner.needs
        if type(self.inner).retention is Score.retention:
            return inner
        output = inner.rows == "last" and not self.spec.options.fast
        apart = {"heads": "apart", "sums_rows": False, "may_wait": False, "counters": None}
        return replace(inner, **apart, output=output)

    @property
    def tensors_alone(self) -> bool:
        return self.inner.tensors_alone and self.spec.options.several == "independent"

    @property
    def observes_tensors_alone(self) -> bool:
        return self.inner.observes_tensors_alone

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        """Return the eviction error of each entry, or the order in which to evict them."""
        options = self.spec.options
        inner = self.inner.retention(state, seen, candidates)
        retention, output = inner.rows, inner.output
        if options.normalize_over == "candidates" and candidates is not None:
            retention, output = torch.where(candidates[:, :, None], retention, 0.0), None
        if options.heads == "attention":
            retention = retention.mean(dim=2, keepdim=True)
            output = None if output is None else output.mean(dim=2, keepdim=True)
        present = seen.present if seen.cache.ragged else None
        if present is not None:
            retention = torch.where(present[:, :, None], retention, 0.0)
        if options.several != "independent":
            h = normalize(retention, present)
            return self.elimination_orders(h, seen, candidates, room)
        error = self.group_error(normalize(retention, present), seen, present, output)
        if options.pool is None:
            return error
        return among_candidates(error, candidates, seen, mean_pool, options.pool, "zero")

    def group_error(
        self,
        h: PerRow,
        seen: Observation,
        present: Candidates,
        output: Float[Tensor, "N G k d"] | None = None,
    ) -> Scores:
        """Error of each entry over the query group; L2 is the exact change of all its outputs.

        ``output`` is Σ h·value, where attention has it already.
        """
        options = self.spec.options
        fast, norm, heads = options.fast, options.norm, options.heads
        joins_by_norm = heads == "l2" or (h.shape[2] == 1 and heads != "layer")
        plain = norm == 2 and joins_by_norm and not (fast and present is not None)
        if plain and seen.cache.triton:
            return eviction_errors(h, seen.view.column("values"), fast, output)
        if fast:
            per_head = fast_errors_per_row(h, seen.values, present, norm)
        else:
            per_head = errors_per_row(h, seen.values, norm)
        if heads == "layer":
            return torch.linalg.vector_norm(per_head, dim=(1, 2))[:, None]
        if heads == "max":
            return per_head.amax(dim=2)
        if heads == "mean":
            return per_head.mean(dim=2)
        return joined_by_norm(per_head)

    def elimination_orders(
        self, h: PerRow, seen: Observation, candidates: Candidates, room: Room
    ) -> PerEntry:
        """Evict one entry after another; rank later evictions higher, and survivors highest.

        Waits for the device once, to learn how many turns there are.
        """
        candidates = seen.present if candidates is None else candidates & seen.present
        places = to_device(room, h.device)[:, None, None]
        leaving = candidates.sum(dim=-1, keepdim=True) - places
        order = torch.full(seen.positions.shape, torch.inf, dtype=h.dtype, device=h.device)
        evicted = torch.zeros_like(candidates)
        for turn in range(int(leaving.max())):
            if self.spec.options.several == "joint_greedy":
                errors = joint_errors(h, seen.values, evicted)
            else:
                left = normalize(h.masked_fill(evicted[:, :, None], 0.0), seen.present)
                errors = self.group_error(left, seen, seen.present)
            slot, _ = first_to_go(errors, ~candidates | evicted, seen.positions)
            goes = turn < leaving
            order.scatter_(-1, slot, torch.where(goes, turn, order.gather(-1, slot)))
            evicted.scatter_(-1, slot, goes | evicted.gather(-1, slot))
        return order
