"""DDKS, also known as MiKV: do not discard, but keep it small (OpenReview CRQ8JuQDEd; 2402.18096).

Equations (numbered here):

1. entries that are not kept at full precision stay at 2 bits; demotion is final
2. MiKV's balance: β_c = √(max|q_c| / max|k_c|); quantise β⊙k and read q·(k̂/β)
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from kvlab.reference.cache import LayerCache
from kvlab.reference.checks import check_choice
from kvlab.reference.method import Example, Method, require_budget
from kvlab.reference.methods.h2o import H2O
from kvlab.reference.methods.rpc import RPC
from kvlab.reference.observation import Array, Float, KeepSet, Marks, Observation
from kvlab.reference.policy import Edges, Entries, Policy, Precision, Protect, Stored
from kvlab.reference.quantization import FULL_BITS, WIDTHS
from kvlab.reference.stored_vectors import TokenGroups


@dataclass(frozen=True)
class AlsoDemoted(Protect):
    """The entries that ``protect`` marks, and the entries that were demoted before."""

    protect: Protect

    def protected(self, seen: Observation) -> Marks:
        return self.protect.protected(seen) | (seen.bits < FULL_BITS)

    def count(self, prompt: int) -> int:
        return self.protect.count(prompt)

    def with_edges(self, edges: Edges) -> "AlsoDemoted":
        return AlsoDemoted(self.protect.with_edges(edges))

    def replaced(self, choice: Protect) -> "AlsoDemoted":
        return AlsoDemoted(self.protect.replaced(choice))


@dataclass(frozen=True)
class FullPrecisionEntries(Entries):
    """At most ``budget`` entries at full precision."""

    def room(self, seen: Observation, protected: Marks) -> int:
        return super().room(seen, protected & (seen.bits == FULL_BITS))


@dataclass(frozen=True)
class Demote(Precision):
    """Entries outside the keep set stay, quantised per token."""

    options: "DDKS"

    def store(self, cache: LayerCache, seen: Observation, keep: KeepSet) -> Stored:
        demoted = np.ones(seen.positions.shape, dtype=bool)
        np.put_along_axis(demoted, keep, False, axis=-1)
        keys = cache.keys
        if self.options.reading == "mikv" and keys.balance is None and demoted.any():
            keys = replace(keys, balance=balance(seen))
        code = TokenGroups(self.options.bits, self.options.group)
        keys, values = keys.encode(code, demoted), cache.values.encode(code, demoted)  # [DDKS 1]
        everything = np.tile(np.arange(len(cache)), (len(demoted), 1))
        return replace(cache, keys=keys, values=values), everything


def balance(seen: Observation) -> Float[Array, "G d"]:
    """Per channel: the factor that makes keys as large as queries; 1 where either is zero."""
    largest_query: Array = np.abs(seen.queries).max(axis=(1, 2))
    largest_key: Array = np.abs(seen.keys).max(axis=1)
    usable = (largest_query > 0) & (largest_key > 0)
    ratio = np.divide(largest_query, largest_key, out=np.ones_like(largest_key), where=usable)
    return np.sqrt(ratio)  # [DDKS 2]


@dataclass(frozen=True)
class DDKS(Method):
    """Keep what RPC (or H2O) would evict, at 2 bits."""

    reading: Literal["rpc", "mikv"] = "rpc"
    """``rpc``: as DesireKV measured it. ``mikv``: importance by H2O, balanced keys."""
    bits: int = 2
    """Bits of demoted entries: 2, 3, 4 or 8."""
    group: int = 64
    """Channels of a token that share a scale."""
    interval: int = RPC.interval
    """Generated tokens P between two selections, as RPC's."""
    selector: int = RPC.selector
    """Newest queries R that decide, and are kept, as RPC's."""
    compression: float = RPC.compression
    """Factor by which the part at full precision shrinks, as RPC's."""
    recent: int | None = None
    """Newest entries that are protected under ``mikv``; None: half of the budget."""

    name = "ddks"
    source = "Yang et al., Don't Discard, but Keep It Small (MiKV), OpenReview CRQ8JuQDEd"
    published = "2024-02"
    equations = ("DDKS 1", "DDKS 2")
    budgeted = False
    limits = {"group": 1}
    examples = (
        Example("ddks@interval=6,selector=3,group=4", None),
        Example("ddks@reading=mikv,group=4", shared=False),
    )
    compared = ("ddks@interval=32,selector=8,group=32",)
    variants = {"mikv": "ddks@reading=mikv"}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(WIDTHS, bits=self.bits)

    @property
    def needs_budget(self) -> bool:
        return self.reading == "mikv"

    def policy(self, budget: int | None = None) -> Policy:
        if self.reading == "mikv":
            base = H2O(self.recent).policy(require_budget("ddks@reading=mikv", budget))
        else:
            base = RPC(self.interval, self.selector, self.compression).policy()
        limit = base.budget if budget is None else FullPrecisionEntries(budget)
        protect = AlsoDemoted(base.protect)
        return replace(base, name=self.name, protect=protect, budget=limit, precision=Demote(self))
