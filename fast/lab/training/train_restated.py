"""Train a jump-program model that reads restated facts, from the embedded model.

``python -m kvlab.fast.lab.training.train_restated --out DIR`` goes on where its last checkpoint was
written if it was stopped. Each batch states the facts of its programs 1, 2, 3 or 5 times.
"""

from dataclasses import dataclass, replace

from transformers import LlamaForCausalLM

from kvlab.fast.lab.training import small_model, train_jumps
from kvlab.reference.models import embedded_directory

COPIES = (1, 2, 3, 5)


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


if __name__ == "__main__":
    small_model.main(__doc__, Recipe, Curriculum, threads=1)
