"""R-KV: importance minus redundancy (arXiv 2505.24133)."""

import torch

from kvlab.fast.engine.observation import parts
from kvlab.fast.engine.policy import Observation, Score, State
from kvlab.fast.engine.windows import (
    among_candidates,
    max_pool,
    queries_remembered,
    remember_queries,
    window,
    window_logits,
)
from kvlab.fast.kernels.attention import softmax
from kvlab.fast.kernels.notation import (
    Candidates,
    PerEntry,
    Room,
    Scores,
    Vectors,
)
from kvlab.reference.methods import rkv as reference


class ImportanceMinusRedundancy(Score[reference.ImportanceMinusRedundancy]):
    """Attention of the last queries, less the similarity to other keys."""

    tensors_alone = True

    def observe(self, state: State, seen: Observation) -> None:
        remember_queries(state, seen, self.spec.options.window)

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        importance = self.importance(state, seen, candidates)
        mix = self.spec.options.mix
        return mix * importance - (1 - mix) * self.redundancy(seen)

    def importance(self, state: State, seen: Observation, candidates: Candidates) -> PerEntry:
        """Pooled attention of the last queries; the group is reduced on logits, by maximum."""
        options = self.spec.options
        raw, _ = window_logits(state, seen, options.window)
        chosen = seen.present if candidates is None else candidates & seen.present
        real = (window(state, options.window)[1] >= 0)[:, None, :, None]
        attention = softmax(raw.amax(dim=2), chosen[:, :, None] & real)
        looked_at = attention.sum(dim=2) / queries_remembered(state, options.window)
        return among_candidates(looked_at, candidates, seen, max_pool, options.kernel)

    def redundancy(self, seen: Observation) -> PerEntry:
        """Return how similar each key of a head is to the other keys.

        Pairs are made some keys at a time, so that not all are in memory at once.
        """
        unit = seen.keys / (seen.keys.norm(dim=-1, keepdim=True) + 1e-8)
        rows = parts(unit[:, :, None], unit.shape[2])
        total = torch.stack([self._cosines(seen, unit, part) for part in rows]).sum(dim=0)
        entries = seen.present.sum(dim=-1, keepdim=True).clamp(min=1)
        return softmax(total / entries, seen.present)

    def _cosines(self, seen: Observation, unit: Vectors, rows: slice) -> PerEntry:
        """Return the sum of these keys' cosines with every key, without those that are spared."""
        present, positions = seen.present, seen.positions
        cosine = (unit[:, :, rows] @ unit.mT) * present[:, :, rows, None] * present[:, :, None]
        cosine.diagonal(rows.start, dim1=-2, dim2=-1).zero_()
        similar = cosine > self.spec.options.similarity
        newest = torch.where(similar, positions[:, :, None], -1)
        spared = similar & (newest == newest.amax(dim=-1, keepdim=True))
        if self.spec.options.first_column_quirk:
            earliest = torch.where(present, positions, torch.iinfo(torch.int32).max)
            first = positions == earliest.amin(dim=-1, keepdim=True)
            spared = spared | (first[:, :, None] & ~similar.any(dim=-1, keepdim=True))
        return cosine.masked_fill(spared, 0.0).sum(dim=-2)
