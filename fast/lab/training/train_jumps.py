"""Train the jump-program model: ``python -m kvlab.fast.lab.training.train_jumps --out DIR``.

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

import json
import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import LlamaForCausalLM

from kvlab.fast.lab.training import small_model
from kvlab.fast.lab.training.small_model import IGNORED, Schedule, learning_rate
from kvlab.reference.tasks import jumps
from kvlab.reference.tasks.jumps import SIZES, STEP, SUM, Line, Problem, Size

ROPE_THETA = 1e5
LOOK_BACK = (1, 3, 4, 5)
"""How many tokens the heads of the first layer start to look back."""
POOL = 256
"""Problems of one size that are drawn at once; those of like length share a batch."""
SHORT, MIDDLE, LONG = Size(fewest=2, most=9), Size(fewest=10, most=25), Size(fewest=26, most=44)
CHECKPOINT_SECONDS = 120.0
LOG_EVERY = 50


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
class Recipe(Schedule):
    """Everything that decides the result."""

    steps: int = 2100
    learning_rate: float = 2e-3
    warmup: int = 20
    decay: float = 0.58
    seed: int = 0
    promotion: tuple[float, ...] = (0.96, 0.985)
    """Running share of right tokens, in the worst kind of token, that ends each stage."""
    held: int = 1
    """Stages during which the built-in look-ups stay as they are."""


def tokens() -> dict[str, int]:
    """Return the id of every token."""
    return small_model.token_ids(jumps.vocabulary())


# --- the untrained model -------------------------------------------------------------------------


def build_model(seed: int) -> LlamaForCausalLM:
    """Return the untrained model with composed embeddings and built-in look-ups."""
    model = small_model.build_model(
        seed,
        jumps.vocabulary(),
        jumps.END,
        jumps.REGISTERS,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                weight.mul_(2)
        start_with_look_ups(model)
    return model


def start_with_look_ups(model: LlamaForCausalLM) -> None:
    """Set weights of the first two layers so that the operands of a line are found by its label.

    The first component of every embedding becomes a constant. From it alone, each head of the first
    layer computes query and key: their product under RoPE is largest `LOOK_BACK` tokens ago. So a
    token learns which tokens stand before it. Two heads of the second layer compare names:

    - The token after a label seeks where the same label stood one token ago (the first operand).
    - The plus of a step seeks what stands four tokens after the same label (the second operand).

    Only the slowly turning half of RoPE takes part in comparisons, so that distance hardly matters.
    """
    head, half, constant, sharpness, likeness = 32, 16, 5.0, 8.0, 1.6
    hidden = model.config.hidden_size
    embedding = model.model.embed_tokens.weight
    share = constant / math.sqrt(hidden)
    embedding[:, 0] = embedding[:, 1:].norm(dim=1) * share / math.sqrt(1 - share**2)

    speed = ROPE_THETA ** (-torch.arange(half) / half)
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


def look_ups(model: LlamaForCausalLM) -> Iterator[Tensor]:
    """Yield the weights that `start_with_look_ups` has set, besides the embedding."""
    back, compare = _first_attentions(model)
    yield from back.parameters()
    yield from (compare.q_proj.weight, compare.k_proj.weight)


def _first_attentions(model: LlamaForCausalLM) -> list[Any]:
    """Return the attention of the first two layers."""
    layers: Any = model.model.layers
    return [layer.self_attn for layer in layers[:2]]


# --- batches -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """Rows of tokens and what is asked of the model."""

    inputs: Tensor
    """Token ids, ``[rows, length]``."""
    targets: Tensor
    """The token that follows each, `IGNORED` where nothing is asked."""
    problems: int
    """Rows that are problems; they come first, drills after them."""


@dataclass
class Curriculum:
    """Draws batches, and goes on to the next stage as soon as one is mastered."""

    recipe: Recipe
    rng: np.random.Generator
    stage: int = 0
    running: float = 0.0
    pools: dict[Size, list[Problem]] = field(default_factory=dict)

    def batch(self) -> Batch:
        """Draw problems of one size, and drills of the same length."""
        stage, rows, asked = STAGES[self.stage], [], []
        size = stage.sizes[int(self.rng.integers(len(stage.sizes)))]
        for problem in self.take(size, int(stage.tokens * (1 - stage.drills))):
            rows.append(problem.text.split(" "))
            asked.append(range(len(problem.prompt.split(" ")), problem.tokens))
        problems, length = len(rows), max(map(len, rows))
        while sum(map(len, rows)) < stage.tokens:
            rows.append(jumps.drill(self.rng, length // STEP))
            asked.append([i for i in range(len(rows[-1])) if i % STEP >= SUM])
        return _batch(rows, asked, problems)

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
        """Return what the curriculum needs, beside the recipe, to go on, as plain values."""
        pools = [
            (
                asdict(size),
                [(p.registers, [*map(tuple, p.lines)], p.steps[0].line.label) for p in pool],
            )
            for size, pool in self.pools.items()
        ]
        rng = self.rng.bit_generator.state
        return {"rng": rng, "stage": self.stage, "running": self.running, "pools": pools}

    def go_on_from(self, state: dict[str, Any]) -> None:
        """Go back to what `state` returned."""
        self.rng.bit_generator.state = state["rng"]
        self.stage, self.running = state["stage"], state["running"]
        self.pools = {
            Size(**size): [
                jumps.run(registers, [Line(*line) for line in lines], start)
                for registers, lines, start in pool
            ]
            for size, pool in state["pools"]
        }

    def record(self, share_right: float) -> None:
        """Update the running share of right tokens, and go on to the next stage."""
        self.running += (share_right - self.running) / 20
        if self.stage + 1 < len(STAGES) and self.running > self.recipe.promotion[self.stage]:
            self.stage, self.running = self.stage + 1, 0.0


def _batch(rows: list[list[str]], asked: list[Any], problems: int) -> Batch:
    ids, length = tokens(), max(map(len, rows))
    inputs = torch.zeros(len(rows), length, dtype=torch.long)
    targets = torch.full((len(rows), length), IGNORED)
    for i, row in enumerate(rows):
        inputs[i, : len(row)] = torch.tensor([ids[token] for token in row])
        places = torch.tensor(asked[i])
        targets[i, places - 1] = inputs[i, places]
    return Batch(inputs[:, :-1], targets[:, :-1], problems)


def kinds_of_tokens() -> dict[str, Tensor]:
    """Return the ids of each kind of token; training watches the share of right tokens by kind."""
    vocabulary = jumps.vocabulary()
    kinds = {
        "names": [token in jumps.REGISTERS for token in vocabulary],
        "sums": [token.isdigit() for token in vocabulary],
        "values": [token[0] in jumps.REGISTERS and len(token) == 2 for token in vocabulary],
    }
    return {kind: torch.tensor(members) for kind, members in kinds.items()}


# --- training ------------------------------------------------------------------------------------


class Training:
    """A training that can be stopped at any moment and goes on from its last checkpoint."""

    def __init__(self, recipe: Recipe, out: Path) -> None:
        self.recipe, self.out = recipe, out
        self.checkpoint = out / "checkpoint.pt"
        self.model = build_model(recipe.seed)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.01
        )
        self.curriculum = Curriculum(recipe, np.random.default_rng(recipe.seed))
        self.kinds = kinds_of_tokens()
        self.step, self.seconds = 0, 0.0
        self.log: list[dict[str, Any]] = []
        self.recent: deque[dict[str, float]] = deque(maxlen=LOG_EVERY)
        if self.checkpoint.exists():
            self.resume()

    def resume(self) -> None:
        """Go back to the state of the last checkpoint."""
        state = torch.load(self.checkpoint, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.curriculum.go_on_from(state["curriculum"])
        self.step, self.seconds, self.log = state["step"], state["seconds"], state["log"]

    def save(self) -> None:
        """Write the checkpoint; a stop while it is written leaves the last one whole."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "curriculum": self.curriculum.state(),
            "step": self.step,
            "seconds": self.seconds,
            "log": self.log,
        }
        unfinished = self.checkpoint.with_suffix(".unfinished")
        torch.save(state, unfinished)
        unfinished.replace(self.checkpoint)

    def run(self) -> None:
        """Train to the end, and write the model and its log."""
        saved = time.monotonic()
        while self.step < self.recipe.steps:
            started = time.process_time()
            self.recent.append(self.learn(self.curriculum.batch()))
            self.step += 1
            self.seconds += time.process_time() - started
            if self.step % LOG_EVERY == 0:
                self.report()
            if time.monotonic() - saved > CHECKPOINT_SECONDS:
                self.save()
                saved = time.monotonic()
        self.save()
        self.write()

    def learn(self, batch: Batch) -> dict[str, float]:
        """Take one step; return the loss and the shares of right tokens by kind."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.recipe)
        asked = batch.targets != IGNORED
        targets = batch.targets[asked]
        hidden = self.model.model(batch.inputs, use_cache=False).last_hidden_state
        logits = self.model.lm_head(hidden[asked])
        loss = torch.nn.functional.cross_entropy(logits, targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.curriculum.stage < self.recipe.held:
            for weight in look_ups(self.model):
                weight.grad = None
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return self.judge(batch, asked, logits.argmax(-1) == targets, loss.item())

    def judge(self, batch: Batch, asked: Tensor, right: Tensor, loss: float) -> dict[str, float]:
        """Return the shares of right tokens and of right runs, and tell the curriculum."""
        shares, targets = {"loss": loss}, batch.targets[asked]
        for kind, members in self.kinds.items():
            if (chosen := members[targets]).any():
                shares[kind] = right[chosen].float().mean().item()
        self.curriculum.record(min(shares[kind] for kind in self.kinds if kind in shares))
        wrong = torch.zeros_like(asked)
        wrong[asked] = ~right
        shares["runs"] = (~wrong[: batch.problems].any(dim=1)).float().mean().item()
        return shares

    def report(self) -> None:
        """Log means over the last steps."""
        kinds = sorted({kind for shares in self.recent for kind in shares})
        means = {
            kind: float(np.mean([shares[kind] for shares in self.recent if kind in shares]))
            for kind in kinds
        }
        entry = {"step": self.step, "stage": self.curriculum.stage, "seconds": self.seconds}
        self.log.append(entry | means)
        print(json.dumps(self.log[-1]), flush=True)

    def write(self) -> None:
        """Write the model, its tokenizer, the recipe and the log."""
        self.model.save_pretrained(self.out)
        small_model.write_tokenizer(self.out, jumps.vocabulary(), jumps.END)
        record = {
            "recipe": asdict(self.recipe),
            "stages": [asdict(stage) for stage in STAGES],
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "cpu_seconds": self.seconds,
            "log": self.log,
        }
        (self.out / "training_log.json").write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    """Parse the command line and train."""
    arguments = small_model.parse_arguments(__doc__, Recipe.seed, Recipe.steps)
    torch.set_num_threads(1)
    Training(Recipe(seed=arguments.seed, steps=arguments.steps), arguments.out).run()


if __name__ == "__main__":
    main()
