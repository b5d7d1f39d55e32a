"""RPC: reasoning path compression (arXiv 2505.13866, Alg. 1).

Equations (numbered here):

1. compress at P + R generated tokens and every P after that
2. u_j = Σ_i softmax(q_i·k/√d)_j over the last R queries and the candidates, mean over all heads
3. s = avgpool_7(u)
4. keep the (c_n + 1)·⌊P/c⌋ best of the generated entries, the last R and the prompt
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvlab.reference.method import Example, Method
from kvlab.reference.observation import Clock, Marks, Needs, Observation, Scores, State
from kvlab.reference.policy import Budget, Edges, Entries, EveryGenerated, Policy, Score
from kvlab.reference.windows import among_candidates, mean_pool, remember_queries, window_attention


@dataclass(frozen=True)
class SelectorAttention(Score):
    """Pooled attention of the selector window over the candidates."""

    options: "RPC"

    @property
    def needs(self) -> Needs:
        return Needs(rows="none", queries=self.options.selector)

    @property
    def joins_kv_heads(self) -> bool:
        return self.options.heads == "all"

    def observe(self, state: State, seen: Observation) -> State:
        return remember_queries(state, seen, self.options.selector)

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        attention = window_attention(state, seen, self.options.selector, over=candidates)
        looked_at = attention.sum(axis=2).mean(axis=1)
        if self.options.heads == "all":
            looked_at = np.tile(looked_at.mean(axis=0), (len(looked_at), 1))  # [RPC 2]
        kernel = self.options.kernel
        return among_candidates(looked_at, candidates, mean_pool, kernel, "zero")  # [RPC 3]


@dataclass(frozen=True)
class ShareOfGenerated(Budget):
    """The generated part shrinks to 1/``compression`` of what was written."""

    options: "RPC"

    def room(self, seen: Observation, protected: Marks) -> int:
        return self.entries(seen.clock)

    def entries(self, clock: Clock) -> int:
        """Return the number of generated entries that may be kept."""
        interval = self.options.interval
        compressions = max(0, (clock.generated - self.options.selector) // interval)
        return compressions * int(interval // self.options.compression)  # [RPC 4]


@dataclass(frozen=True)
class RPC(Method):
    """Compress the reasoning path periodically, by the attention of its newest tokens."""

    interval: int = 1024
    """Generated tokens P between two compressions."""
    selector: int = 32
    """Newest queries R that decide, and are kept."""
    compression: float = 4.0
    """Factor c by which the generated part shrinks."""
    kernel: int = 7
    """Neighbours of the mean pooling; odd."""
    heads: Literal["all", "group"] = "all"
    """``all``: one keep set per layer; ``group``: one per KV head."""

    name = "rpc"
    source = "Song et al., Reasoning Path Compression, 2505.13866"
    published = "2025-05"
    equations = ("RPC 1", "RPC 2", "RPC 3", "RPC 4")
    budgeted = False
    limits = {"compression": 1, "kernel": "odd"}
    examples = (
        Example("rpc@interval=6,selector=3,compression=3.0", None),
        Example("rpc@interval=6,selector=3,compression=3.0,heads=group", None, shared=False),
        Example("rpc@interval=6,selector=3", 28, shared=False),
    )
    compared = ("rpc@interval=32,selector=8",)

    def policy(self, budget: int | None = None) -> Policy:
        schedule = EveryGenerated(self.interval, self.selector)  # [RPC 1]
        edges = Edges(recent=self.selector, prompt=True)
        kept = ShareOfGenerated(self) if budget is None else Entries(budget)
        return Policy(self.name, SelectorAttention(self), schedule, edges, kept)
