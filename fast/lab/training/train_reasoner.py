"""Train the embedded reasoner: ``python -m kvlab.fast.lab.training.train_reasoner --out DIR``.

What made it learn: a fact is one token; a fact's embedding starts as the sum of its name's and its
digit's; a step of the solution has as many tokens as its definition; problems grow in stages, as
soon as most solutions look up the right operands; arithmetic is drilled in problems of its own; the
learning rate decays only after the last stage is mastered.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import LlamaForCausalLM

from kvlab.fast.lab.training import small_model
from kvlab.fast.lab.training.small_model import IGNORED, Schedule, learning_rate
from kvlab.reference.tasks import reasoning


@dataclass(frozen=True)
class Recipe(Schedule):
    """Everything that decides the result."""

    steps: int = 3500
    learning_rate: float = 2e-3
    warmup: int = 100
    decay: float = 0.35
    seed: int = 0
    tokens_per_step: int = 4096
    recall_share: float = 0.2
    """Share of the problems that only repeat stated facts."""
    drill_share: float = 0.1
    """Share of the problems that only compute."""
    stages: tuple[tuple[int, ...], ...] = ((8,), (12,), reasoning.HELD_OUT_VARIABLES)
    """Numbers of variables that each stage mixes."""
    promotion: float = 0.75
    """Running share of solutions with all look-ups right at which the curriculum grows."""


def build_model(seed: int) -> LlamaForCausalLM:
    """Return the untrained model with embeddings of facts composed of name and digit."""
    return small_model.build_model(
        seed,
        reasoning.vocabulary(),
        reasoning.END,
        reasoning.NAMES,
        max_position_embeddings=512,
    )


@dataclass
class Curriculum:
    """Draws batches and grows the problems as they are mastered."""

    recipe: Recipe
    rng: np.random.Generator
    stage: int = 0
    running: float = 0.0

    def batch(self) -> list[reasoning.Problem]:
        """Draw problems of mixed kind and size, together about ``tokens_per_step`` tokens."""
        problems, total = [], 0
        while total < self.recipe.tokens_per_step:
            problems.append(self.problem())
            total += problems[-1].tokens
        return problems

    def problem(self) -> reasoning.Problem:
        """Draw a problem of the present stage, or an exercise."""
        rng, kind = self.rng, self.rng.random()
        if kind < self.recipe.recall_share:
            return reasoning.recall(rng, int(rng.integers(3, reasoning.MAX_VARIABLES + 1)))
        variables = int(rng.choice(self.recipe.stages[self.stage]))
        if kind < self.recipe.recall_share + self.recipe.drill_share:
            return reasoning.drill(rng, variables)
        return reasoning.chain(rng, variables, reasoning.FACTS)

    def record(self, problems: list[reasoning.Problem], right: list[bool]) -> None:
        """Update the running accuracy, and go on to the next stage."""
        for problem, is_right in zip(problems, right, strict=True):
            if problem.variables in self.recipe.stages[self.stage]:
                self.running += (is_right - self.running) / 100
        if self.running > self.recipe.promotion and self.stage + 1 < len(self.recipe.stages):
            self.stage, self.running = self.stage + 1, 0.0


def tensors(
    problems: list[reasoning.Problem], is_digit: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and targets ``[rows, length]``; `IGNORED` asks for nothing."""
    ids = small_model.token_ids(reasoning.vocabulary())
    rows = [[ids[token] for token in problem.text.split(" ")] for problem in problems]
    length = max(len(row) for row in rows)
    inputs = torch.zeros(len(rows), length, dtype=torch.long)
    targets = torch.full((len(rows), length), IGNORED)
    for i, (problem, row) in enumerate(zip(problems, rows, strict=True)):
        prompt = len(problem.prompt.split(" "))
        inputs[i, : len(row)] = torch.tensor(row)
        asked = torch.tensor(row[prompt:])
        if problem.variables == 0:
            asked = asked.where(is_digit[asked], IGNORED)
        targets[i, prompt - 1 : len(row) - 1] = asked
    return inputs[:, :-1], targets[:, :-1]


def train(recipe: Recipe, out: Path) -> None:
    """Train and save model and log; a checkpoint is written every 500 steps."""
    torch.set_num_threads(2)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = build_model(recipe.seed)
    model.to(device)  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    curriculum = Curriculum(recipe, reasoning.training_stream(recipe.seed))
    is_digit = torch.tensor([token.isdigit() for token in reasoning.vocabulary()])
    log, started, losses, digits = [], time.time(), [], []
    for step in range(recipe.steps):
        problems = curriculum.batch()
        batch = tensors(problems, is_digit)
        inputs, targets = (x.to(device) for x in batch)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, recipe)
        asked = targets != IGNORED
        hidden = model.model(inputs, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[asked])
        loss = torch.nn.functional.cross_entropy(logits, targets[asked])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        right = (logits.argmax(-1) == targets[asked]).cpu()
        computed, asked = is_digit[targets[asked].cpu()], asked.cpu()
        digits.append(right[computed].float().mean().item())
        wrong = torch.zeros_like(asked)
        wrong[asked] = ~(right | computed)
        curriculum.record(problems, (~wrong.any(dim=1)).tolist())
        if (step + 1) % 100 == 0:
            entry = {
                "step": step + 1,
                "loss": float(np.mean(losses)),
                "digits_right": float(np.mean(digits)),
                "stage": curriculum.stage,
                "running": curriculum.running,
                "seconds": time.time() - started,
            }
            log.append(entry)
            losses, digits = [], []
            print(json.dumps(entry), flush=True)
        if (step + 1) % 500 == 0 or step + 1 == recipe.steps:
            model.save_pretrained(out)
            record = {
                "recipe": asdict(recipe),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "device": device,
                "cpu_seconds": time.process_time(),
                "log": log,
            }
            (out / "training_log.json").write_text(json.dumps(record, indent=1))


def main() -> None:
    """Parse the command line and train."""
    arguments = small_model.parse_arguments(__doc__, Recipe.seed, Recipe.steps)
    small_model.write_tokenizer(arguments.out, reasoning.vocabulary(), reasoning.END)
    train(Recipe(seed=arguments.seed, steps=arguments.steps), arguments.out)


if __name__ == "__main__":
    main()
