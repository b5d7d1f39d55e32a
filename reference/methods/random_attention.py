"""Random Attention: the prompt, the newest, and a fresh sample of the rest (arXiv 2609.03430).

Equations (numbered here):

1. u_j = a draw from [0, 1) per layer, KV head, entry and decision; one more for the prompt
2. at B + r entries, keep the M = B - r entries with the largest u, and the r newest
"""

from dataclasses import dataclass
from typing import Literal

from kvlab.reference.checks import check_window
from kvlab.reference.method import Example, Method, require_budget
from kvlab.reference.methods.random import Draw
from kvlab.reference.observation import Marks, Observation, Scores, State
from kvlab.reference.policy import (
    Around,
    Edges,
    EveryGeneratedBeyond,
    EveryMultipleBeyond,
    Policy,
)

Counted = Literal["beyond", "all"]
SCHEDULES = {"beyond": EveryGeneratedBeyond, "all": EveryMultipleBeyond}
"""When to evict, by which entries are counted."""


@dataclass(frozen=True)
class PromptFirst(Around):
    """A draw from [0, 1), and one more for the prompt, of which all but one of the places hold."""

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        drawn = self.inner.score(state, seen, candidates, room)
        return drawn + (seen.positions < min(seen.clock.prompt, room - 1))  # [Random-Attention 1]


@dataclass(frozen=True)
class RandomAttention(Method):
    """Keep the prompt and the newest entries, and draw the rest anew at every decision."""

    recent: int = 64
    """Newest entries r that are protected, and tokens between two evictions."""
    prompt: Literal["cut", "whole"] = "cut"
    """A prompt of more than B - r - 1 tokens is ``cut`` to these, or refused (``whole``)."""
    newest: Literal["inside", "beside"] = "inside"
    """Whether the budget holds the newest entries, or as many more are kept."""
    counted: Counted = "beyond"
    """Entries that are counted from one eviction to the next: those ``beyond`` the budget, until
    they are r; ``all``, until they are a multiple of r, as in the authors' cache. Their program
    refuses budgets that are no multiple of r, and for the others both are the same."""
    seed: int = 0
    """Seed of the draw; layers, heads, entries and decisions draw independently."""

    name = "random_attention"
    source = "Random Attention, 2609.03430"
    published = "2026-09"
    equations = ("Random-Attention 1", "Random-Attention 2")
    limits = {"recent": 1, "seed": 0}
    examples = (
        Example("random_attention@recent=3"),
        Example("random_attention@recent=2,newest=beside", shared=False),
    )
    compared = ("random_attention@recent=16",)

    def policy(self, budget: int | None) -> Policy:
        budget = require_budget(self.name, budget)
        kept = budget + self.recent if self.newest == "beside" else budget
        check_window(self.recent, kept)
        schedule = SCHEDULES[self.counted](self.recent, start=kept)
        whole = self.prompt == "whole"
        edges = Edges(recent=self.recent, prompt=whole)  # [Random-Attention 2]
        score = PromptFirst(Draw("each", self.seed))
        return self.composed(score, schedule, edges, kept)
