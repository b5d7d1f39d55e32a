"""The view of one block of queries in one layer, and the place of the block in the text."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from kvlab.reference.attention import logits
from kvlab.reference.notation import Array


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


@dataclass(frozen=True)
class Observation:
    """Everything that one block of queries saw in one layer."""

    clock: Clock
    layer: int
    queries: Float[Array, "G rho m d"]
    attention: Float[Array, "G rho m n"]
    keys: Float[Array, "G n d"]
    values: Float[Array, "G n d"]
    positions: Int[Array, "G n"]
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

    def logits(self, queries: Float[Array, "G rho w d"]) -> Float[Array, "G rho w n"]:
        """Logits of these queries over the present entries, as the model computes them."""
        return logits(queries, self.keys, self.softcap)

    @property
    def query_positions(self) -> Int[Array, " m"]:
        """Absolute positions of the block's queries."""
        return self.clock.positions
