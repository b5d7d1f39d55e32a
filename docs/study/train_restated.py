"""Train a jump-program model that reads restated facts, from the embedded model.

``PYTHONPATH=docs python -m study.train_restated --out DIR`` goes on where its last checkpoint was
written if it was stopped. Each batch states the facts of its programs 1, 2, 3 or 5 times. If more
than once, entries are hidden at random, because a model that sees all of them learns to read the
first copies only.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from kvlab.reference.models import embedded_directory
from study.training import small_model, train_jumps
from study.training.small_model import Batch

HIDDEN = {1: 0.0, 2: 0.35, 3: 0.5, 5: 0.6}
"""Copies in a batch, and the largest probability with which an entry is hidden."""
COPIES = tuple(HIDDEN)
NEWEST = 24
"""Entries that every query sees: so many newest ones, and the first."""


@dataclass(frozen=True)
class Recipe(train_jumps.Recipe):
    """Everything that decides the result."""

    steps: int = 400
    decay: float = 0.7
    learning_rate: float = 1e-3
    stages: tuple[train_jumps.Stage, ...] = (
        train_jumps.Stage(tuple(replace(train_jumps.MIDDLE, copies=n) for n in COPIES), 4096, 0.0),
    )
    promotion: tuple[float, ...] = ()
    held: int = 0


class Curriculum(train_jumps.Curriculum):
    """Draws programs whose facts are stated equally often."""

    @classmethod
    def model(cls, seed: int) -> LlamaForCausalLM:
        """Return the embedded model."""
        return LlamaForCausalLM.from_pretrained(embedded_directory("jumps"))

    def mask(self, batch: Batch) -> Tensor | None:
        """Hide entries at random, other ones in each KV head."""
        most, (rows, length) = HIDDEN[batch.problems[0].copies], batch.inputs.shape
        if not most:
            return None
        chance = self.rng.uniform(0, most, size=(rows, 1, 1))
        hidden = self.rng.random((rows, small_model.KV_HEADS, length)) < chance
        hidden[..., 0] = False
        age = np.subtract.outer(np.arange(length), np.arange(length))
        hidden = (age < 0) | (age >= NEWEST) & hidden[:, :, None]
        by_head = hidden.repeat(small_model.HEADS // small_model.KV_HEADS, axis=1)
        return torch.zeros(by_head.shape).masked_fill(torch.from_numpy(by_head), -torch.inf)


if __name__ == "__main__":
    small_model.main(__doc__, Recipe, Curriculum, threads=1)
