"""What one block of queries sees in one layer, its place in the text, and what a score reads.

The file of a method imports from here all that its score is given and returns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvlab.reference.attention import logits
from kvlab.reference.cache import Column as Column, State as State
from kvlab.reference.notation import (
    Array,
    Attention,
    Bool as Bool,
    Float,
    Int,
    KeepSet as KeepSet,
    Marks as Marks,
    Positions,
    Queries,
    Scores as Scores,
    Vectors,
)


@dataclass(frozen=True)
class Clock:
    """Where in the text a block of tokens stands; all counts are tokens of the sequence."""

    seen: int
    """Tokens seen, the block included: the absolute position of the next token."""
    block: int
    """Tokens in this block."""
    prompt: int
    """Tokens of the prompt; 0 for pure decoding."""

    @property
    def positions(self) -> Int[Array, " m"]:
        """Absolute positions of the block's tokens."""
        return np.arange(self.seen - self.block, self.seen)

    @property
    def prefilling(self) -> bool:
        """Whether the block belongs to the prompt."""
        return self.seen <= self.prompt

    @property
    def prefill_ends(self) -> bool:
        """Whether this is the last block of the prompt."""
        return self.seen == self.prompt

    @property
    def generated(self) -> int:
        """Tokens seen after the prompt."""
        return max(0, self.seen - self.prompt)

    @property
    def generated_before(self) -> int:
        """Tokens seen after the prompt when the block began."""
        return max(0, self.seen - self.block - self.prompt)


Rotate = Callable[[Float[Array, "..."], Int[Array, "..."]], Float[Array, "..."]]
"""Rotates vectors ``[..., d]`` by a number of positions ``[...]`` (RoPE)."""


@dataclass(frozen=True)
class Observation:
    """Everything that one block of queries saw in one layer."""

    clock: Clock
    layer: int
    queries: Queries
    attention: Attention
    keys: Vectors
    values: Vectors
    positions: Positions
    bits: Int[Array, "G n"]
    """Bits per element of the stored keys: 16 for entries never quantised."""
    confidence: Float[Array, " t"]
    """Largest probability of the distribution that produced each token; NaN for given tokens."""
    softcap: float | None = None
    """Bound of the model's attention logits, if it has one."""
    hidden_states: Float[Array, "m D"] | None = None
    """What the attention module is given for the block's tokens and projects to queries, keys and
    values: where a norm comes before attention, as in Llama, the norm's output. None if the score
    does not read them."""
    layers: int = 1
    """Layers of the model, those that no policy compresses included."""
    rotary: Rotate | None = None
    """The layer's rotary embedding. None if the score does not read it."""
    projection: Float[Array, "G rho d D"] | None = None
    """The layer's output projection W_O, by query heads. None if the score does not read it."""

    def logits(self, queries: Float[Array, "G rho w d"]) -> Float[Array, "G rho w n"]:
        """Logits of these queries over the present entries, as the model computes them."""
        return logits(queries, self.keys, self.softcap)

    def rotate(
        self, vectors: Float[Array, "*batch d"], by: Int[Array, "..."]
    ) -> Float[Array, "*batch d"]:
        """Rotate vectors by a number of positions, for a score that reads the rotary embedding."""
        assert self.rotary is not None
        return self.rotary(vectors, by)

    @property
    def projected(self) -> Float[Array, "G rho n D"]:
        """What every value adds to the hidden state if a query head reads it alone: v_j W_O^h."""
        assert self.projection is not None
        return self.values[:, None] @ self.projection

    @property
    def query_positions(self) -> Int[Array, " m"]:
        """Absolute positions of the block's queries."""
        return self.clock.positions


@dataclass(frozen=True)
class Needs:
    """What a score reads of a block. The fast side computes nothing that no score reads."""

    rows: Literal["all", "last", "none"] = "all"
    """Rows of the attention probabilities, one per query of the block."""
    prompt: bool = True
    """Whether the score reads them during the prompt, too; if not, during generation only."""
    heads: Literal["apart", "sum", "mean", "max"] = "apart"
    """How the query heads of a KV head are joined before the score reads them."""
    sums_rows: bool = False
    """Whether the score reads nothing but the sum over the rows of a block."""
    may_wait: bool = False
    """Whether the score may observe several generated tokens together, once a decision is due."""
    queries: int | None = None
    """If the score reads of a prompt, beside keys and values, only its last queries: how many."""
    hidden_states: bool = False
    """Whether the score reads `Observation.hidden_states`; only models have them, not traces."""
    rotary: bool = False
    """Whether the score calls `Observation.rotate`; only models rotate, not traces."""
    projection: bool = False
    """Whether the score reads `Observation.projection`; only models have one, not traces."""

    @property
    def of_models(self) -> str:
        """What the score reads that only models hand over, in words; empty if it reads nothing."""
        return " and ".join(words for name, _, words in OF_MODELS if getattr(self, name))


OF_MODELS = (
    ("hidden_states", "hidden_states", "hidden states"),
    ("rotary", "rotate", "the rotary embedding"),
    ("projection", "projection", "the output projection"),
)
"""What only models hand over: the names of the need and of the block's field, and its words."""

NO_ATTENTION = Needs(rows="none")
"""The needs of scores that read no attention probabilities of the block."""
