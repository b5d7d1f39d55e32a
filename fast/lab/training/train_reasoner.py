"""Train the embedded reasoner: ``python -m kvlab.fast.lab.training.train_reasoner --out DIR``.

What made it learn: a fact is one token; a fact's embedding starts as the sum of its name's and its
digit's; a step of the solution has as many tokens as its definition; problems grow in stages, as
soon as most solutions look up the right operands; arithmetic is drilled in problems of its own; the
learning rate decays only after the last stage is mastered.
"""

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from kvlab.reference.tasks import reasoning

IGNORED = -100
"""Target that the loss leaves out."""


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the result."""

    seed: int = 0
    steps: int = 3500
    tokens_per_step: int = 4096
    learning_rate: float = 2e-3
    warmup: int = 100
    decay: float = 0.35
    """Share of the steps, at the end, over which the learning rate falls to zero."""
    recall_share: float = 0.2
    """Share of the problems that only repeat stated facts."""
    drill_share: float = 0.1
    """Share of the problems that only compute."""
    stages: tuple[tuple[int, ...], ...] = ((8,), (12,), reasoning.HELD_OUT_VARIABLES)
    """Numbers of variables that each stage mixes."""
    promotion: float = 0.75
    """Running share of solutions with all look-ups right at which the curriculum grows."""


def tokens() -> dict[str, int]:
    """Return the id of every token."""
    return {token: i for i, token in enumerate(reasoning.vocabulary())}


def write_tokenizer(directory: Path) -> None:
    """Write a tokenizer that splits text at single blanks into the task's tokens."""
    tokenizer = Tokenizer(WordLevel(tokens(), unk_token=reasoning.END))
    tokenizer.pre_tokenizer = Split(" ", "removed")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=reasoning.END,
        eos_token=reasoning.END,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(directory)


def build_model(seed: int) -> LlamaForCausalLM:
    """Return the untrained model with embeddings of facts composed of name and digit."""
    torch.manual_seed(seed)
    ids = tokens()
    config = LlamaConfig(
        vocab_size=len(ids),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=ids[reasoning.END],
        eos_token_id=ids[reasoning.END],
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.mul_(1 / math.sqrt(2 * config.num_hidden_layers))
        table = model.model.embed_tokens.weight
        for name in reasoning.NAMES:
            for digit in range(10):
                table[ids[f"{name}{digit}"]] = table[ids[name]] + table[ids[str(digit)]]
    return model


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
    ids = tokens()
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


def learning_rate(step: int, recipe: Recipe) -> float:
    """Warm up, hold, then fall along a cosine to zero."""
    start = recipe.steps * (1 - recipe.decay)
    progress = max(0.0, (step - start) / (recipe.steps - start))
    return (
        recipe.learning_rate
        * min(1, (step + 1) / recipe.warmup)
        * (1 + math.cos(math.pi * progress))
        / 2
    )


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
    is_digit = torch.tensor([token.isdigit() for token in tokens()])
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_tokenizer(arguments.out)
    train(Recipe(seed=arguments.seed, steps=arguments.steps), arguments.out)


if __name__ == "__main__":
    main()
