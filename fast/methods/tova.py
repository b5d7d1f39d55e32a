"""TOVA: token omission via attention (arXiv 2401.06104)."""

from kvlab.fast.engine.policy import Observation, Retention, Score, State
from kvlab.fast.kernels.notation import Candidates, Room, Scores
from kvlab.reference.methods import tova as reference


class LastRowAttention(Score[reference.LastRowAttention]):
    """Attention that the newest token pays."""

    tensors_alone = True

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        last_row = seen.received("mean")[:, :, -1]
        return last_row if self.spec.options.per_head else last_row.mean(dim=1, keepdim=True)

    def retention(self, state: State, seen: Observation, candidates: Candidates) -> Retention:
        output = seen.attended.output
        output = None if output is None else output[:, :, :, -1]
        return Retention(seen.attention[:, :, :, -1], output)
