"""TOVA: token omission via attention (arXiv 2401.06104)."""

from dataclasses import dataclass

from kvlab.fast.engine.cache import State
from kvlab.fast.engine.notation import Candidates, Room, Scores
from kvlab.fast.engine.observation import Observation
from kvlab.fast.engine.policy import Retention, Score, twin_of
from kvlab.reference.methods import tova as reference


@twin_of(reference.LastRowAttention)
@dataclass(frozen=True)
class LastRowAttention(Score):
    """Attention that the newest token pays."""

    per_head: bool

    @property
    def couples_heads(self) -> bool:
        return not self.per_head

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        last_row = seen.received("mean")[:, :, -1]
        return last_row if self.per_head else last_row.mean(dim=1, keepdim=True)

    @property
    def retention_couples_heads(self) -> bool:
        return False

    def retention(self, state: State, seen: Observation, candidates: Candidates) -> Retention:
        return Retention(seen.attention[:, :, :, -1], seen.newest_output)
