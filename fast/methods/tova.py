"""TOVA: token omission via attention (arXiv 2401.06104)."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from kvlab.fast.cache import State
from kvlab.fast.kernels.tracking import Reduction
from kvlab.fast.policy import Observation, Score, twin_of
from kvlab.reference.methods import tova as reference
from kvlab.reference.policy import Clock


@twin_of(reference.LastRowAttention)
@dataclass(frozen=True)
class LastRowAttention(Score):
    """Attention that the newest token pays."""

    per_head: bool

    retains_attention = True

    @property
    def couples_heads(self) -> bool:
        """Unless every head decides for itself."""
        return not self.per_head

    def reads(self, clock: Clock) -> str:
        """The newest token's."""
        return "last"

    @property
    def reduces(self) -> Reduction:
        """Mean over the query heads of a KV head."""
        return "mean"

    def score(
        self,
        state: State,
        seen: Observation,
        candidates: Bool[Tensor, "N G n"] | None,
        room: Sequence[int],
    ) -> Float[Tensor, "N #G n"]:
        """Average the last row over the heads that decide together."""
        last_row = seen.received("mean")[:, :, -1]
        return last_row if self.per_head else last_row.mean(dim=1, keepdim=True)

    def retention(
        self, state: State, seen: Observation, candidates: Bool[Tensor, "N G n"] | None
    ) -> Float[Tensor, "N G rho n"]:
        """Return each query head's own row."""
        return seen.attention[:, :, :, -1]
