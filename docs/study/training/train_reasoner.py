"""Train the reasoner: ``PYTHONPATH=docs python -m study.training.train_reasoner --out DIR``.

What made it learn: a fact is one token; a fact's embedding starts as the sum of its name's and its
digit's; a step of the solution has as many tokens as its definition; problems grow in stages, as
soon as most solutions look up the right operands; arithmetic is drilled in problems of its own; the
learning rate decays only after the last stage is mastered.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from kvlab.reference.tasks import reasoning
from study.training import small_model
from study.training.small_model import Batch


@dataclass(frozen=True)
class Recipe(small_model.Recipe):
    """Everything that decides the result."""

    steps: int = 3500
    warmup: int = 100
    decay: float = 0.35
    stages: tuple[tuple[int, ...], ...] = ((8,), (12,), reasoning.HELD_OUT_VARIABLES)
    """Numbers of variables that each stage mixes."""
    promotion: tuple[float, ...] = (0.75, 0.75)
    """Running share of solutions with all look-ups right that ends each stage but the last."""
    tokens_per_step: int = 4096
    recall_share: float = 0.2
    """Share of the problems that only repeat stated facts."""
    drill_share: float = 0.1
    """Share of the problems that only compute."""


class Curriculum(small_model.Curriculum):
    """Draws problems of mixed kind and size, and grows them as they are mastered."""

    vocabulary, end = reasoning.vocabulary(), reasoning.END

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe, reasoning.training_stream(recipe.seed))
        self.digits = self.ids_where(token.isdigit() for token in self.vocabulary)

    @classmethod
    def model(cls, seed: int) -> LlamaForCausalLM:
        """Return the untrained model with embeddings of facts composed of name and digit."""
        return small_model.build_model(cls, seed, reasoning.NAMES, max_position_embeddings=512)

    def batch(self) -> Batch:
        """Draw problems, together about ``tokens_per_step`` tokens."""
        problems, rows, asked = [], [], []
        while sum(map(len, rows)) < self.recipe.tokens_per_step:
            problems.append(self.problem())
            rows.append(problems[-1].text.split(" "))
            places = range(len(problems[-1].prompt.split(" ")), len(rows[-1]))
            drill = problems[-1].variables == 0
            asked.append([i for i in places if not drill or rows[-1][i].isdigit()])
        return self.batch_of(rows, asked, problems)

    def problem(self) -> reasoning.Problem:
        """Draw a problem of the present stage, or an exercise."""
        recipe, rng, kind = self.recipe, self.rng, self.rng.random()
        if kind < recipe.recall_share:
            return reasoning.recall(rng, int(rng.integers(3, reasoning.MAX_VARIABLES + 1)))
        variables = int(rng.choice(recipe.stages[self.stage]))
        if kind < recipe.recall_share + recipe.drill_share:
            return reasoning.drill(rng, variables)
        return reasoning.chain(rng, variables, reasoning.FACTS)

    def judge(self, batch: Batch, right: Tensor) -> dict[str, float]:
        """Return the share of right digits; look-ups are all tokens but digits."""
        digits = torch.isin(batch.targets, self.digits)
        found = (right | digits).all(dim=1).tolist()
        for problem, is_right in zip(batch.problems, found, strict=True):
            if problem.variables in self.recipe.stages[self.stage]:
                self.running += (is_right - self.running) / 100
        self.promote()
        return {"digits_right": right[digits].float().mean().item()}


if __name__ == "__main__":
    small_model.main(__doc__, Recipe, Curriculum, threads=2)
