"""KIVI: keys per channel, values per token (arXiv 2402.02750, §3).

Equations (numbered here; the quantiser itself is in ``quantization.py``):

1. Δ = (max − min)/(2^b − 1), z = min, per group
2. code = round((x − z)/Δ)
3. x̂ = Δ·code + z
4. keys: every complete run of R_res tokens is quantised at once, ⌊n/R_res⌋·R_res in all
5. values: everything but the last R_res tokens is quantised
"""

from dataclasses import dataclass, replace

import numpy as np

from kvlab.reference.cache import LayerCache
from kvlab.reference.checks import check_choice
from kvlab.reference.method import Example, Method, refuse_budget
from kvlab.reference.methods.full import Recency
from kvlab.reference.observation import Array, Bool, KeepSet, Observation
from kvlab.reference.policy import EveryBlock, Nobody, Policy, Precision, Stored, Unlimited
from kvlab.reference.quantization import FULL_BITS, WIDTHS
from kvlab.reference.stored_vectors import ChannelGroups, TokenGroups


@dataclass(frozen=True)
class KeysPerChannelValuesPerToken(Precision):
    """Quantise everything that is older than the residual window."""

    options: "KIVI"

    def store(self, cache: LayerCache, seen: Observation, keep: KeepSet) -> Stored:
        d, group = seen.keys.shape[-1], self.options.group
        if d % group:
            raise ValueError(f"group = {group} must divide the head dimension {d}")
        keys_due, values_due = self.due(len(cache))
        by_channel = ChannelGroups(self.options.key_bits, group)
        by_token = TokenGroups(self.options.value_bits, group)
        keys = cache.keys.encode(by_channel, keys_due & (cache.keys.bits == FULL_BITS))
        values = cache.values.encode(by_token, values_due & (cache.values.bits == FULL_BITS))
        return replace(cache, keys=keys, values=values), keep

    def due(self, n: int) -> tuple[Bool[Array, " n"], Bool[Array, " n"]]:
        """Mark the keys and the values that have to be quantised by now."""
        index, residual = np.arange(n), self.options.residual
        keys_due = index < n // residual * residual  # [KIVI 4]
        values_due = index < n - residual  # [KIVI 5]
        return keys_due, values_due


@dataclass(frozen=True)
class KIVI(Method):
    """Evict nothing; store keys and values in fewer bits."""

    key_bits: int = 4
    """Bits of a key's codes: 2, 3, 4 or 8."""
    value_bits: int = 4
    """Bits of a value's codes: 2, 3, 4 or 8."""
    group: int = 32
    """Elements that share a scale: tokens of a channel for keys, channels of a token for values."""
    residual: int = 128
    """Newest tokens at full precision: of keys, those behind the last complete run of so many; of
    values, so many."""

    name = "kivi"
    source = "Liu et al., KIVI: A Tuning-Free Asymmetric 2bit Quantization, 2402.02750"
    published = "2024-02"
    equations = ("KIVI 1", "KIVI 2", "KIVI 3", "KIVI 4", "KIVI 5")
    budgeted = False
    limits = {"group": 1, "residual": 1}
    examples = (
        Example("kivi@group=4,residual=8", None),
        Example("kivi@group=4,residual=8,key_bits=8,value_bits=2", None),
    )
    compared = (
        "kivi@key_bits=8,value_bits=4,residual=32",
        "kivi@key_bits=4,value_bits=4,residual=32",
    )
    variants = {
        "kivi-k4v4": "kivi@key_bits=4,value_bits=4",
        "kivi-k8v4": "kivi@key_bits=8,value_bits=4",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(WIDTHS, key_bits=self.key_bits, value_bits=self.value_bits)
        if self.residual % self.group:
            raise ValueError(
                f"residual = {self.residual} must be a multiple of group = {self.group}"
            )

    def policy(self, budget: int | None = None) -> Policy:
        refuse_budget(self.name, budget)
        stored = KeysPerChannelValuesPerToken(self)
        return Policy(self.name, Recency(), EveryBlock(), Nobody(), Unlimited(), stored)
