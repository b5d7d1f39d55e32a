"""A learned gate: what an entry is worth is read off the hidden state of its token."""

from dataclasses import dataclass
from functools import cache

import numpy as np
from safetensors.numpy import load_file

from kvlab.reference import Column, Edges, Entries, EveryBlock, Method, Needs, Policy, Score

read_once = cache(load_file)


@dataclass(frozen=True)
class Gate(Score):
    """A number between 0 and 1 for each KV head: the logistic function of weights times state."""

    weights: str

    needs = Needs(rows="none", hidden_states=True)

    columns = {"gate": Column("what the gate said when the token was read")}

    def observe(self, state, seen):
        matrix = read_once(self.weights)[f"layer.{seen.layer}"]  # [G, D]
        new = 1 / (1 + np.exp(-matrix @ seen.hidden_states.T))  # of [m, D]: the block's m tokens
        older = state.entries["gate"][:, : -seen.clock.block]  # the block's entries are the last
        return state.with_entries(gate=np.concatenate([older, new], axis=1))

    def score(self, state, seen, candidates, room):
        return state.entries["gate"]


@dataclass(frozen=True)
class LearnedGate(Method):
    """Keep the entries that a gate opens for."""

    weights: str = "learned_gate.safetensors"
    """File with a matrix `layer.0`, `layer.1`, … of `[KV heads, hidden size]` for each layer."""
    recent: int = 4
    """Newest entries that are protected."""

    name = "learned_gate"
    source = "an example"

    def policy(self, budget):
        protect = Edges(recent=self.recent)
        return Policy(self.name, Gate(self.weights), EveryBlock(), protect, Entries(budget))
