"""LazyEviction: tokens become important again; wait and see (arXiv 2506.15969).

Equations of the paper: 1 (maximum recurrence interval), 2 (score), 5 (keep set: `Edges` protects
the newest W entries, `Entries` leaves room for the best B − W of the others). H1 and H2 are printed
without numbers in §4; Eq. 4 is a yardstick (``measure.py``), not part of the method.

TS is the generated step of an entry's latest activation, MRI the longest interval between two.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvlab.reference.attention import GroupReduction, reduce_group
from kvlab.reference.method import Example, Method
from kvlab.reference.notation import Array, Marks, Scores
from kvlab.reference.observation import Column, Float, Needs, Observation, State
from kvlab.reference.policy import Edges, EveryDecode, Policy, Score

LARGEST = 2.0
"""The most that H1 and H2 give together, each at most 1."""

Form = Literal["sigmoid", "exp", "tanh", "inverse", "log", "none"]


def decreasing(form: Form) -> Callable[[Float[Array, "..."]], Float[Array, "..."]]:
    """Return a map of [0, ∞) onto (0, 1] that falls from 1: the forms of Appendix D and Table 5."""
    forms: dict[str, Callable[[Array], Array]] = {
        "sigmoid": lambda x: 2 * np.exp(-np.logaddexp(0.0, x)),
        "exp": lambda x: np.exp(-x),
        "tanh": lambda x: 1 - np.tanh(x),
        "inverse": lambda x: 1 / (1 + x),
        "log": lambda x: 1 / (1 + np.log1p(x)),
        "none": np.zeros_like,
    }
    return forms[form]


@dataclass(frozen=True)
class Recurrence(Score):
    """Rates how soon an entry is expected to matter again, judged by its own history."""

    options: "LazyEviction"

    columns = {
        "stamp": Column(
            "generated step of the latest activation (TS); until then of the token before it",
            integer=True,
            recorded=True,
        ),
        "interval": Column(
            "longest steps between two activations (MRI)", integer=True, recorded=True
        ),
        "activated": Column("1 once the entry was activated", integer=True, compared=False),
    }

    @property
    def needs(self) -> Needs:
        return Needs(prompt=False, heads=self.options.reduce, may_wait=True)

    def observe(self, state: State, seen: Observation) -> State:
        """Track recurrence, one generated token after the other; prefill is not observed."""
        if seen.clock.prefilling:
            return state
        stamp, interval, activated = (
            state.entries[name].copy() for name in ("stamp", "interval", "activated")
        )
        received = reduce_group(seen.attention, self.options.reduce)
        for row, position in enumerate(seen.query_positions):
            step = position + 1 - seen.clock.prompt
            born = step if self.options.stamp_start == "birth" else step - 1
            stamp[seen.positions == position] = born
            paid = received[:, row] >= self.options.threshold  # [LazyEviction Algorithm 1, line 2]
            active = paid & (seen.positions <= position)
            waits = self.options.stamp_start == "first_activation"
            counts = active & (activated > 0) if waits else active
            longest = np.maximum(interval, step - stamp)  # [LazyEviction 1]
            interval[counts] = longest[counts]
            stamp[active] = step  # [LazyEviction Algorithm 1, line 3]
            activated[active] = 1
        return state.with_entries(stamp=stamp, interval=interval, activated=activated)

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        """Add both heuristics; an entry without an interval gets 0, or H1's limit."""
        elapsed = seen.clock.generated - state.entries["stamp"]
        interval = state.entries["interval"]
        recurs = interval > 0
        h1 = self.elapsed_score(elapsed, np.maximum(interval, 1))
        h2 = self.interval_score(np.maximum(interval, 1))
        limit = h1 * (elapsed == 0) if self.options.zero_interval == "limit" else 0.0
        importance = np.where(recurs, h1 + h2, limit)  # [LazyEviction 2]
        if self.options.guard:  # on top of all that H1 and H2 can give
            importance = importance + LARGEST * (elapsed < interval)
        return importance

    def elapsed_score(self, elapsed: Array, interval: Array) -> Scores:
        """H1: falls as the time since the last activation outgrows the longest interval."""
        offset = 1.0 if self.options.official else 0.0
        return decreasing(self.options.h1)(offset + elapsed / interval)  # [LazyEviction H1]

    def interval_score(self, interval: Array) -> Scores:
        """H2: falls with the longest interval."""
        h2 = decreasing(self.options.h2)
        if self.options.h2 == "none" or self.options.h2_reading == "code":
            return h2(interval - 1.0)  # [LazyEviction H2]
        if self.options.h2_reading == "acl":
            return h2(interval + 1.0)
        gap = np.where(interval > 1, interval - 1.0, 1.0)
        return np.where(interval > 1, h2(1 / gap), 0.0)  # [LazyEviction H2, printed]


@dataclass(frozen=True)
class LazyEviction(Method):
    """Evict only every W steps, and by how often and how recently entries came back."""

    window: int = 25
    """Generated tokens W between two evictions; as many newest entries are protected."""
    threshold: float = 5e-4
    """Attention α from which on an entry is activated."""
    h1: Form = "sigmoid"
    """Form of H1, a map of [0, ∞) onto (0, 1]; ``none`` leaves it out."""
    h2: Form = "sigmoid"
    """Form of H2; ``none`` leaves it out."""
    h2_reading: Literal["code", "printed", "acl"] = "code"
    """Argument of H2: MRI − 1, 1/(MRI − 1) as printed, or MRI + 1."""
    official: bool = False
    """Add 1 inside H1, as the authors' code does."""
    stamp_start: Literal["before_birth", "birth", "first_activation"] = "before_birth"
    """TS before the first activation: the step before birth, or birth as in RaaS, so that the time
    until that activation is an interval; ``first_activation``: this time is no interval."""
    zero_interval: Literal["worthless", "limit"] = "worthless"
    """What an entry with MRI = 0 is worth: nothing, or H1's limit, which is 1 if Δ = 0, too."""
    guard: bool = False
    """Never evict an entry with Δ < MRI while another candidate has Δ ≥ MRI."""
    reduce: GroupReduction = "max"
    """How the query heads of a KV head join before α is compared."""

    name = "lazy_eviction"
    source = "Zhang et al., LazyEviction: Lagged KV Eviction, arXiv 2506.15969, §4, App. A, B, D"
    published = "2025-06"
    equations = ("LazyEviction 1", "LazyEviction 2", "LazyEviction 5")
    limits = {"window": 1, "threshold": 0}
    examples = (
        Example("lazy_eviction@window=4,threshold=0.05"),
        Example("lazy_eviction@window=4,threshold=2.0", shared=False),
        Example("lazy_eviction@window=4,threshold=0.0625", shared=False),
        Example("lazy_eviction@window=4,threshold=0.05,official=true", shared=False),
        Example("lazy_eviction@window=4,threshold=0.05,h2_reading=printed", shared=False),
        Example("lazy_eviction@window=4,threshold=0.05,stamp_start=first_activation", shared=False),
        Example("lazy_eviction@window=4,threshold=0.05,guard=true"),
    )
    compared = ("lazy_eviction", "lazy_eviction@window=16,threshold=0.01")
    variants = {
        "lazy_eviction-h1": "lazy_eviction@h1=none",
        "lazy_eviction-h2": "lazy_eviction@h2=none",
        **{
            f"lazy_eviction-{part}-{form}": f"lazy_eviction@{part}={form}"
            for part in ("h1", "h2")
            for form in ("exp", "tanh", "inverse", "log")
        },
    }

    @classmethod
    def tracker(cls, threshold: float) -> Recurrence:
        return Recurrence(cls(threshold=threshold))

    def policy(self, budget: int | None) -> Policy:
        return self.composed(
            Recurrence(self),
            EveryDecode(self.window),  # [LazyEviction Algorithm 1, line 8]
            Edges(recent=self.window),  # [LazyEviction Eq. 5, window]
            budget,
        )
