"""H2O: heavy hitters by accumulated attention (arXiv 2306.14048).

Equations (numbered here; the score is Eq. 4 of AhaKV and the h of CAOTE's Eq. 22):

1. S_j ← S_j + Σ_i a_ij over the queries i of the block
2. keep = {the last b_r entries} ∪ top-(B − b_r) of S: `Edges` protects the former, and `Entries`
   leaves room for the latter
"""

from dataclasses import dataclass

from kvlab.reference.attention import GroupReduction, reduce_group
from kvlab.reference.method import Example, Method, require_budget
from kvlab.reference.observation import Column, Marks, Needs, Observation, Scores, State
from kvlab.reference.policy import Edges, EveryBlock, Policy, Score


@dataclass(frozen=True)
class AccumulatedAttention(Score):
    """Sum of all attention that an entry has received since it was written."""

    options: "H2O"

    columns = {"accumulated": Column("attention received so far")}

    @property
    def needs(self) -> Needs:
        return Needs(heads=self.options.reduce, sums_rows=True, may_wait=True)

    def observe(self, state: State, seen: Observation) -> State:
        received = reduce_group(seen.attention, self.options.reduce).sum(axis=1)
        return state.with_entries(
            accumulated=state.entries["accumulated"] + received  # [H2O 1]
        )

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        return state.entries["accumulated"]


@dataclass(frozen=True)
class H2O(Method):
    """Keep the entries that have received most attention, and the newest ones."""

    recent: int | None = None
    """Newest entries that are protected; None: half of the budget, rounded down."""
    every: int = 1
    """Generated tokens between two evictions."""
    reduce: GroupReduction = "mean"
    """How the query heads of a KV head join."""

    name = "h2o"
    source = "Zhang et al., H2O: Heavy-Hitter Oracle, 2306.14048"
    published = "2023-06"
    equations = ("H2O 1", "H2O 2")
    examples = (
        Example("h2o@recent=4"),
        Example("h2o@every=5,recent=3"),
        Example("h2o@recent=4,reduce=max"),
        Example("h2o@recent=4,reduce=sum", shared=False),
    )
    compared = ("h2o", "h2o@every=16")

    def policy(self, budget: int | None) -> Policy:
        budget = require_budget(self.name, budget)
        recent = budget // 2 if self.recent is None else self.recent
        score, edges = AccumulatedAttention(self), Edges(recent=recent)
        return self.composed(score, EveryBlock(self.every), edges, budget)  # [H2O 2]
