"""CAOTE and FastCAOTE: evict what changes the attention output least (arXiv 2504.14051).

Equations of the paper: 8 and 9 (score = eviction error), 21 (any retention score h), 22
(normalisation), 23 (FastCAOTE), 5-7 (evict, then attend; see `kvlab.reference.step`).
"""

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from kvlab.reference.granularity import with_score
from kvlab.reference.method import Example, Wrapper
from kvlab.reference.notation import OverEntries, Rows, Vectors
from kvlab.reference.observation import Array, Bool, Float, Marks, Observation, Scores, State
from kvlab.reference.policy import Around, EveryBlock, Full, Nobody, Policy, Score
from kvlab.reference.windows import among_candidates, mean_pool

Heads = Literal["l2", "mean", "max", "attention", "layer"]
OfEntries = Float[Array, "... n d"]
"""Values, whatever the axes before the entries are."""


def normalize(retention: OverEntries) -> OverEntries:
    """Divide by the sum; all zero becomes uniform."""
    if (retention < 0).any():
        raise ValueError("CAOTE needs retention scores that are at least 0, got a negative one")
    total = retention.sum(axis=-1, keepdims=True)
    uniform = np.full_like(retention, 1 / retention.shape[-1])
    return np.divide(retention, total, out=uniform, where=total > 0)  # [CAOTE 22]


def eviction_error(h: OverEntries, values: OfEntries, norm: float = 2) -> OverEntries:
    """c_j = h_j/(1 − h_j)·‖Σ h·v − v_j‖: the change of the output when entry j alone is evicted.

    Where h_j is above one half, which holds for at most one entry, `dominant_error` says the same.
    """
    output = (h[..., None] * values).sum(axis=-2, keepdims=True)
    dominant, rest = h > 0.5, remaining_mass(h)
    ratio = np.divide(h, rest, out=np.zeros_like(h), where=~dominant & (rest > 0))
    error = ratio * np.linalg.norm(output - values, ord=norm, axis=-1)  # [CAOTE 21]
    return np.where(dominant, dominant_error(h, values, norm), error) if dominant.any() else error


def remaining_mass(h: OverEntries) -> OverEntries:
    """Return Σh − h_j: of equal entries the same, and without cancellation."""
    total = h.sum(axis=-1, keepdims=True)
    dominant = h > total / 2
    others = np.where(dominant, 0.0, h).sum(axis=-1, keepdims=True)
    return np.where(dominant, others, total - h)


def dominant_error(h: OverEntries, values: OfEntries, norm: float) -> OverEntries:
    """h_j·‖Σ_{i≠j} h_i·v_i/(1 − h_j) − v_j‖ of the entry above one half: Eq. 21 in another form.

    The output of the others keeps the digits that the printed form loses as h_j → 1. An entry with
    all the mass has infinite error.
    """
    others = np.where(h > 0.5, 0.0, h)
    mass = others.sum(axis=-1, keepdims=True)
    share = np.divide(others, mass, out=np.zeros_like(h), where=mass > 0)
    without = (share[..., None] * values).sum(axis=-2, keepdims=True)
    distance = np.linalg.norm(without - values, ord=norm, axis=-1)
    return np.where(mass > 0, h * distance, np.inf)


def fast_eviction_error(h: OverEntries, values: OfEntries, norm: float = 2) -> OverEntries:
    """FastCAOTE: the unweighted mean of all present values stands in for the output.

    An entry with all the mass has infinite error.
    """
    rest = remaining_mass(h)
    mean = values.mean(axis=-2, keepdims=True)
    odds = np.divide(h, rest, out=np.zeros_like(h), where=rest > 0)
    far = np.linalg.norm(mean - values, ord=norm, axis=-1)
    return np.where(rest > 0, odds * far, np.inf)  # [CAOTE 23]


def joint_error(
    h: OverEntries, values: OfEntries, evicted: Bool[Array, "... n"]
) -> Float[Array, "..."]:
    """Exact change of the output when a whole set is evicted: ‖Σ_E h(v − X)‖/(1 − Σ_E h)."""
    output = (h[..., None] * values).sum(axis=-2, keepdims=True)
    pull = np.where(evicted[..., None], h[..., None] * (values - output), 0.0).sum(axis=-2)
    left = np.where(evicted, 0.0, h).sum(axis=-1)
    size = np.linalg.norm(pull, axis=-1)
    return np.divide(size, left, out=np.full_like(left, np.inf), where=left > 0)


@dataclass(frozen=True)
class EvictionError(Around):
    """CAOTE applied to any score."""

    options: "Caote"

    @property
    def needs(self):
        """What the inner score reads, with query heads apart if its retention keeps them apart."""
        inner = self.inner.needs
        if type(self.inner).retention is Score.retention:
            return inner
        return replace(inner, heads="apart", sums_rows=False, may_wait=False)

    @property
    def ordinal(self) -> bool:
        return self.inner.ordinal or self.options.several != "independent"

    @property
    def joins_kv_heads(self) -> bool:
        return self.options.heads == "layer"

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        """Return the eviction error of each entry, or the order in which to evict them."""
        retention = self.inner.retention(state, seen, candidates)
        if self.options.normalize_over == "candidates":
            retention = np.where(candidates[:, None], retention, 0.0)
        if self.options.heads == "attention":
            retention = retention.mean(axis=1, keepdims=True)
        h = normalize(retention)
        if self.options.several == "independent":
            error = self.group_error(h, seen.values)
            if self.options.pool is None:
                return error
            return among_candidates(error, candidates, mean_pool, self.options.pool, "zero")
        return np.stack(
            [
                self.elimination_order(h[g], seen.values[g], candidates[g], room)
                for g in range(len(h))
            ]
        )

    def group_error(self, h: Float[Array, "G k n"], values: Vectors) -> Scores:
        """Error of each entry over the query group; L2 is the exact change of all its outputs."""
        measure = fast_eviction_error if self.options.fast else eviction_error
        per_head = measure(h, values[:, None], self.options.norm)
        if self.options.heads == "max":
            return per_head.max(axis=1)
        if self.options.heads == "mean":
            return per_head.mean(axis=1)
        if self.options.heads == "layer":
            return np.tile(np.linalg.norm(per_head, axis=(0, 1)), (len(per_head), 1))
        return np.linalg.norm(per_head, axis=1)  # [CAOTE 8]

    def elimination_order(
        self, h: Float[Array, "k n"], values: Rows, candidates: Bool[Array, " n"], room: int
    ) -> Float[Array, " n"]:
        """Evict one entry after another; rank later evictions higher, and survivors highest."""
        order = np.full(len(candidates), np.inf)
        evicted = np.zeros(len(candidates), dtype=bool)
        for turn in range(int(candidates.sum()) - room):
            open_entries = np.flatnonzero(candidates & ~evicted)
            if self.options.several == "joint_greedy":
                sets = evicted | (open_entries[:, None] == np.arange(len(evicted)))
                per_head = joint_error(
                    h[:, None], values, np.broadcast_to(sets, (len(h), *sets.shape))
                )
                errors = np.linalg.norm(per_head, axis=0)
            else:
                left = normalize(np.where(evicted, 0.0, h))
                errors = self.group_error(left[None], values[None])[0][open_entries]
            victim = open_entries[int(np.argmin(errors))]
            evicted[victim], order[victim] = True, turn
        return order


@dataclass(frozen=True)
class Caote(Wrapper):
    """Correct a score (in caote:h2o H2O's) by how much the output changes without the entry."""

    norm: float = 2
    """Order of the norm in which the change of the output is measured."""
    heads: Heads = "l2"
    """How errors of a query group combine. ``attention``: error of the group's mean attention;
    ``layer``: L2 over all query heads, one keep set per layer."""
    several: Literal["independent", "sequential", "joint_greedy"] = "independent"
    """How to choose several entries to evict at once."""
    normalize_over: Literal["present", "candidates"] = "present"
    """Entries over which the wrapped score is divided by its sum."""
    pool: int | None = None
    """Kernel of a mean pooling of the finished score."""
    protect: Literal["inherit", "none"] = "inherit"
    """Whether the wrapped method's protection holds."""
    evict_before_attend: bool = False
    """Attend over the survivors only, as the paper's Eq. 5-7 do."""
    every: int = 1
    """Generated tokens between two evictions, whatever the wrapped method's schedule is."""
    fast: bool = field(default=False, init=False)
    """Whether the plain mean of the values stands for the output, as in FastCAOTE."""

    name = "caote"
    source = (
        "Goel et al., CAOTE: KV Caching through Attention Output Error based Token Eviction, "
        "2504.14051"
    )
    published = "2025-04"
    equations = ("CAOTE 7", "CAOTE 8", "CAOTE 21", "CAOTE 22", "CAOTE 23")
    limits = {"pool": "odd"}
    examples = (
        Example("caote:h2o@recent=4"),
        Example("caote:tova"),
        Example("caote:tova@heads=layer"),
        Example("caote:tova@heads=max", shared=False),
        Example("caote:tova@heads=attention", shared=False),
        Example("caote:h2o@recent=4,evict_before_attend=true", shared=False),
        Example("caote:h2o@recent=4,several=joint_greedy"),
        Example("caote:h2o@recent=4,several=sequential"),
        Example("caote:snapkv@window=4"),
        Example("caote:tova@every=5"),
    )
    compared = ("caote:h2o", "caote:tova", "caote:tova@heads=layer", "caote:snapkv@window=16")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads == "layer" and self.several != "independent":
            raise ValueError("heads = 'layer' needs several = 'independent'")
        if self.several != "independent" and self.pool is not None:
            raise ValueError(f"pool = {self.pool} needs several = 'independent'")
        exact = self.norm == 2 and self.heads in ("l2", "attention")
        if self.several == "joint_greedy" and not exact:
            raise ValueError(
                "several = 'joint_greedy' needs norm = 2 and heads = 'l2' or 'attention'"
            )
        if self.fast and self.several == "joint_greedy":
            raise ValueError("several = 'joint_greedy' is exact and has no fast form")
        if not self.norm >= 1:
            raise ValueError(f"norm = {self.norm} must be at least 1")

    @property
    def note(self) -> str:
        """Say when CAOTE evicts, if the wrapped method evicts at other times."""
        name, schedule = self.base.name, self.base.timing
        if isinstance(schedule, EveryBlock):  # what every says is all that there is to say
            return ""
        return f"{self.name}:{name} evicts {EveryBlock(self.every)}; {name} alone {schedule}"

    def policy(self, budget: int | None) -> Policy:
        base = self.base.policy(budget)
        if not isinstance(base.precision, Full):
            raise ValueError(f"CAOTE wraps methods that keep 16 bit, not {base.name}")
        if base.score.signed:
            raise ValueError(
                f"CAOTE needs retention scores that are at least 0; those of {base.name} may be "
                "negative"
            )
        if base.score.ordinal:
            raise ValueError(
                f"CAOTE needs retention scores in proportion to what is read; those of {base.name} "
                "are ranks"
            )
        inherits = self.protect == "inherit"
        return replace(
            with_score(base, EvictionError(base.score, self)),
            name=f"{self.name}:{base.name}",
            schedule=EveryBlock(self.every),
            protect=base.protect if inherits else base.protect.replaced(Nobody()),
            evict_before_attend=self.evict_before_attend or base.evict_before_attend,
        )


@dataclass(frozen=True)
class FastCaote(Caote):
    """CAOTE with the plain mean of all values in place of the attention output."""

    fast: bool = field(default=True, init=False)

    name = "fast_caote"
    examples = (Example("fast_caote:h2o@recent=4"), Example("fast_caote:tova"))
    compared = ("fast_caote:h2o", "fast_caote:tova", "fast_caote:snapkv@window=16")
