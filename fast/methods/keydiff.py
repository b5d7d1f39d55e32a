"""KeyDiff: keys that point elsewhere than most (arXiv 2504.15364)."""

from kvlab.fast.engine.policy import Observation, Score, State
from kvlab.fast.kernels.notation import Candidates, Room, Scores, Tensor
from kvlab.reference.methods import keydiff as reference
from kvlab.reference.methods.keydiff import SHORTEST


class KeyDifference(Score[reference.KeyDifference]):
    """The negative cosine of a key and the mean direction."""

    tensors_alone = True

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        keys = seen.keys * seen.present[..., None]
        unit = direction(keys)
        mean = unit if self.spec.anchor == "directions" else keys
        entries = seen.present.sum(dim=-1, keepdim=True).clamp(min=1)
        anchor = direction(mean.sum(dim=2) / entries)
        return -(unit @ anchor[..., None])[..., 0]


def direction(vectors: Tensor) -> Tensor:
    """Return vectors of length 1, or of 0 where a vector has no direction."""
    return vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=SHORTEST)
