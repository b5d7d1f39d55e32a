"""Train the jump-program model: ``PYTHONPATH=docs python -m study.training.train_jumps --out DIR``.

The command goes on where its last checkpoint was written if it was stopped.

What made the model learn:

- A register with its value is one token, whose embedding starts as the sum of name and digit.
- A line of the program has as many tokens as a step, so that both are copied in one way.
- Two look-ups by name are built into the start, and stay as they are while the model learns to use
  them (`start_with_look_ups`). From a random start, the names of the operands were still guessed
  after 700 steps; look-ups that were free to change from the first step were lost within 200.
- Additions are also drilled, in rows of unrelated steps: half of the tokens at first.
- Runs grow in stages. Very short ones stay in the mixture: most of their lines run only once.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from kvlab.reference.tasks import jumps
from kvlab.reference.tasks.jumps import SIZES, STEP, SUM, Line, Problem, Size
from study.training import small_model
from study.training.small_model import Batch

ROPE_THETA = 1e5
LOOK_BACK = (1, 3, 4, 5)
"""How many tokens the heads of the first layer start to look back."""
POOL = 256
"""Problems of one size that are drawn at once; those of like length share a batch."""
SHORT, MIDDLE, LONG = Size(fewest=2, most=9), Size(fewest=10, most=25), Size(fewest=26, most=44)


@dataclass(frozen=True)
class Stage:
    """What the batches of a stage hold."""

    sizes: tuple[Size, ...]
    """Each batch takes its problems from one of them."""
    tokens: int
    """Tokens of a batch, about."""
    drills: float
    """Share of the tokens that are in drills."""


STAGES = (
    Stage((SHORT, MIDDLE), 2048, 0.5),
    Stage((SHORT, MIDDLE, LONG), 3072, 0.2),
    Stage((SHORT, LONG, SIZES[600], SIZES[600]), 4096, 0.1),
)


@dataclass(frozen=True)
class Recipe(small_model.Recipe):
    """Everything that decides the result."""

    steps: int = 2100
    warmup: int = 20
    decay: float = 0.58
    stages: tuple[Stage, ...] = STAGES
    promotion: tuple[float, ...] = (0.96, 0.985)
    """Running share of right tokens, in the worst kind of token, that ends each stage."""
    held: int = 1
    """Stages during which the built-in look-ups stay as they are."""


def start_with_look_ups(model: LlamaForCausalLM) -> None:
    """Set weights of the first two layers so that the operands of a line are found by its label.

    The first component of every embedding becomes a constant. From it alone, each head of the first
    layer computes query and key: their product under RoPE is largest `LOOK_BACK` tokens ago. So a
    token learns which tokens stand before it. Two heads of the second layer compare names:

    - The token after a label seeks where the same label stood one token ago (the first operand).
    - The plus of a step seeks what stands four tokens after the same label (the second operand).

    Only the slowly turning half of RoPE takes part in comparisons, so that distance hardly matters.
    """
    constant, sharpness, likeness = 5.0, 8.0, 1.6
    config: Any = model.config
    hidden, head, base = config.hidden_size, config.head_dim, config.rope_parameters["rope_theta"]
    half = head // 2
    embedding = model.model.embed_tokens.weight
    share = constant / math.sqrt(hidden)
    embedding[:, 0] = embedding[:, 1:].norm(dim=1) * share / math.sqrt(1 - share**2)

    speed = base ** (-torch.arange(half) / half)
    back, compare = _first_attentions(model)
    back.q_proj.weight.zero_()
    back.k_proj.weight.zero_()
    for distance, query in zip(LOOK_BACK, back.q_proj.weight.split(head), strict=True):
        query[:half, 0] = torch.cos(speed * distance) * sharpness / constant
        query[half:, 0] = -torch.sin(speed * distance) * sharpness / constant
    for key in back.k_proj.weight.split(head):
        key[:half, 0] = sharpness / constant

    basis = torch.linalg.qr(torch.randn(hidden - 1, 4 * half))[0].T
    basis = torch.cat([torch.zeros(4 * half, 1), basis], dim=1)
    itself, one_ago, three_ago, four_ago = basis.split(half)
    for value in back.v_proj.weight.split(head):
        value[:half] = 0.8 * itself
    for i, found in enumerate((one_ago, three_ago, four_ago)):
        back.o_proj.weight[:, i * head : i * head + half] = 0.08 * found.T
    slow = torch.cat([torch.arange(half // 2, half), torch.arange(half + half // 2, head)])
    compare.q_proj.weight[slow] = 3 * likeness * itself
    compare.k_proj.weight[slow] = likeness * one_ago
    compare.q_proj.weight[2 * head + slow] = likeness * three_ago
    compare.k_proj.weight[head + slow] = likeness * four_ago


def look_ups(model: LlamaForCausalLM) -> list[Tensor]:
    """Return the weights that `start_with_look_ups` has set, besides the embedding."""
    back, compare = _first_attentions(model)
    return [*back.parameters(), compare.q_proj.weight, compare.k_proj.weight]


def _first_attentions(model: LlamaForCausalLM) -> list[Any]:
    layers: Any = model.model.layers
    return [layer.self_attn for layer in layers[:2]]


class Curriculum(small_model.Curriculum):
    """Draws problems of one size at a time, and drills."""

    vocabulary, end = jumps.vocabulary(), jumps.END
    width: ClassVar = 128
    positions: ClassVar = 4096
    rope_theta: ClassVar = ROPE_THETA

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe, np.random.default_rng(recipe.seed))
        self.pools: dict[Size, list[Problem]] = {}
        tokens = self.vocabulary
        self.kinds = {
            "names": self.ids_where(each in jumps.REGISTERS for each in tokens),
            "sums": self.ids_where(each.isdigit() for each in tokens),
            "values": self.ids_where(
                each[0] in jumps.REGISTERS and len(each) == 2 for each in tokens
            ),
        }

    @classmethod
    def model(cls, seed: int) -> LlamaForCausalLM:
        """Return the untrained model with composed embeddings and built-in look-ups."""
        model = small_model.build_model(
            cls,
            seed,
            jumps.REGISTERS,
            cls.width,
            max_position_embeddings=cls.positions,
            rope_parameters={"rope_type": "default", "rope_theta": cls.rope_theta},
        )
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith(("q_proj.weight", "k_proj.weight")):
                    weight.mul_(2)
            start_with_look_ups(model)
        return model

    def batch(self) -> Batch:
        """Draw problems of one size, and drills of the same length and groups."""
        stage = self.recipe.stages[self.stage]
        size = stage.sizes[int(self.rng.integers(len(stage.sizes)))]
        problems = self.take(size, int(stage.tokens * (1 - stage.drills)))
        rows = [problem.text.split(" ") for problem in problems]
        asked: list[Any] = [range(len(p.prompt.split(" ")), p.tokens) for p in problems]
        length = max(map(len, rows))
        while sum(map(len, rows)) < stage.tokens:
            rows.append(jumps.drill(self.rng, length // STEP, size.groups))
            asked.append([i for i in range(len(rows[-1])) if i % STEP >= SUM])
        return self.batch_of(rows, asked, problems)

    def take(self, size: Size, wanted: int) -> list[Problem]:
        """Take problems of like length, together at least so many tokens, out of a pool."""
        pool = self.pools.setdefault(size, [])
        if len(pool) < POOL // 2:
            pool += islice(jumps.training(self.rng, size), POOL)
            pool.sort(key=lambda problem: problem.tokens)
        taken, first = [], int(self.rng.integers(len(pool)))
        while sum(problem.tokens for problem in taken) < wanted:
            taken.append(pool.pop(min(first, len(pool) - 1)))
        return taken

    def state(self) -> dict[str, Any]:
        pools = [
            (
                asdict(size),
                [(p.registers, [*map(tuple, p.lines)], p.steps[0].line.label) for p in pool],
            )
            for size, pool in self.pools.items()
        ]
        return {**super().state(), "pools": pools}

    def go_on_from(self, state: dict[str, Any]) -> None:
        super().go_on_from(state)
        for size, pool in state["pools"]:
            self.pools[Size(**size)] = [
                jumps.run(registers, [Line(*line) for line in lines], start, size["copies"])
                for registers, lines, start in pool
            ]

    def judge(self, batch: Batch, right: Tensor) -> dict[str, float]:
        """Return the shares of right tokens of each kind, and of right runs."""
        found = {kind: torch.isin(batch.targets, ids) for kind, ids in self.kinds.items()}
        shares = {
            kind: right[own].float().mean().item() for kind, own in found.items() if own.any()
        }
        self.running += (min(shares.values()) - self.running) / 20
        self.promote()
        whole = right[: len(batch.problems)].all(dim=1)
        return {**shares, "runs": whole.float().mean().item()}

    def held(self, model: LlamaForCausalLM) -> Iterable[Tensor]:
        """Return the built-in look-ups, at first."""
        return look_ups(model) if self.stage < self.recipe.held else ()


if __name__ == "__main__":
    small_model.main(__doc__, Recipe, Curriculum, threads=1)
