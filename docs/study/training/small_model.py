"""What the trainings of both embedded models share: tokenizer, untrained model, batches, loop."""

import json
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from typer import Option

from kvlab.fast.lab.files import write_text
from kvlab.fast.lab.loop import stop_with, until_stopped
from kvlab.fast.lab.terminal import run

IGNORED = -100
"""Target that the loss leaves out."""
HEADS, KV_HEADS = 4, 2
CHECKPOINT_SECONDS = 120.0
LOG_EVERY = 50


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the result."""

    steps: int
    warmup: int
    """Steps until the highest learning rate is reached."""
    decay: float
    """Share of the steps, at the end, over which the rate falls to zero."""
    stages: tuple[Any, ...]
    promotion: tuple[float, ...]
    """Running share of what is right that ends each stage but the last."""
    learning_rate: float = 2e-3
    seed: int = 0

    def rate(self, step: int) -> float:
        """Return the learning rate: warm up, hold, then fall along a cosine to zero."""
        start = self.steps * (1 - self.decay)
        progress = max(0.0, (step - start) / (self.steps - start))
        cosine = (1 + math.cos(math.pi * progress)) / 2
        return self.learning_rate * min(1, (step + 1) / self.warmup) * cosine


def plain(recipe: Any) -> dict[str, Any]:
    """Return a recipe as JSON holds it."""
    return json.loads(json.dumps(asdict(recipe)))


@dataclass(frozen=True)
class Batch:
    """Rows of tokens and what is asked of the model."""

    inputs: Tensor
    """Token ids, ``[rows, length]``."""
    targets: Tensor
    """The token that follows each, `IGNORED` where nothing is asked."""
    problems: Sequence[Any]
    """The problems of the first rows."""


class Curriculum(ABC):
    """Draws batches of a task, and goes on to the next stage as soon as one is mastered."""

    vocabulary: ClassVar[Sequence[str]]
    end: ClassVar[str]
    """Token that begins and ends a problem."""

    def __init__(self, recipe: Any, rng: np.random.Generator) -> None:
        self.recipe, self.rng = recipe, rng
        self.stage, self.running = 0, 0.0

    @classmethod
    @abstractmethod
    def model(cls, seed: int) -> LlamaForCausalLM:
        """Return the untrained model."""

    @abstractmethod
    def batch(self) -> Batch:
        """Draw a batch of the present stage."""

    @abstractmethod
    def judge(self, batch: Batch, right: Tensor) -> dict[str, float]:
        """Return shares of what is ``right`` or was not asked for, and `promote`."""

    def mask(self, batch: Batch) -> Tensor | None:
        """Return what is added to attention scores, ``[rows, heads, length, length]``, if any."""
        return None

    def held(self, model: LlamaForCausalLM) -> Iterable[Tensor]:
        """Return weights that stay as they are in the present stage."""
        return ()

    def promote(self) -> None:
        """Go on to the next stage if the running share allows it."""
        ends = self.recipe.promotion
        if self.stage < len(ends) and self.running > ends[self.stage]:
            self.stage, self.running = self.stage + 1, 0.0

    def state(self) -> dict[str, Any]:
        """Return what the curriculum needs, beside the recipe, to go on, as plain values."""
        rng = self.rng.bit_generator.state
        return {"rng": rng, "stage": self.stage, "running": self.running}

    def go_on_from(self, state: dict[str, Any]) -> None:
        """Go back to what `state` returned."""
        self.rng.bit_generator.state = state["rng"]
        self.stage, self.running = state["stage"], state["running"]

    @classmethod
    def ids(cls) -> dict[str, int]:
        """Return the id of every token."""
        return {token: i for i, token in enumerate(cls.vocabulary)}

    def batch_of(
        self, rows: list[list[str]], asked: list[Sequence[int]], problems: Sequence[Any]
    ) -> Batch:
        """Return a batch of rows of tokens; ``asked`` are the places to be written."""
        ids, length = self.ids(), max(map(len, rows))
        inputs = torch.zeros(len(rows), length, dtype=torch.long)
        targets = torch.full((len(rows), length), IGNORED)
        for i, row in enumerate(rows):
            inputs[i, : len(row)] = torch.tensor([ids[token] for token in row])
            places = torch.tensor(asked[i])
            targets[i, places - 1] = inputs[i, places]
        return Batch(inputs[:, :-1], targets[:, :-1], problems)

    def ids_where(self, wanted: Iterable[bool]) -> Tensor:
        """Return the ids of the tokens of which something is true."""
        return torch.tensor(list(wanted)).nonzero()[:, 0]


def build_model(
    curriculum: type[Curriculum], seed: int, names: Sequence[str], width: int = 128, **options: Any
) -> LlamaForCausalLM:
    """Return the untrained model; the embedding of ``x3`` is the sum of those of ``x`` and ``3``.

    ``names`` stand beside a digit in such tokens; ``options`` go to the configuration.
    """
    torch.manual_seed(seed)
    ids = curriculum.ids()
    config = LlamaConfig(
        vocab_size=len(ids),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=4,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        tie_word_embeddings=True,
        bos_token_id=ids[curriculum.end],
        eos_token_id=ids[curriculum.end],
        pad_token_id=None,
        **options,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.mul_(1 / math.sqrt(2 * config.num_hidden_layers))
        table = model.model.embed_tokens.weight
        for name in names:
            for digit in range(10):
                table[ids[f"{name}{digit}"]] = table[ids[name]] + table[ids[str(digit)]]
    return model


def write_tokenizer(directory: Path, curriculum: Curriculum) -> None:
    """Write a tokenizer that splits text at single blanks into the tokens of a task."""
    tokenizer = Tokenizer(WordLevel(curriculum.ids(), unk_token=curriculum.end))
    tokenizer.pre_tokenizer = Split(" ", "removed")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=curriculum.end,
        eos_token=curriculum.end,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(directory)


class Training:
    """A training that can be stopped at any moment, and goes on from its checkpoint."""

    def __init__(self, curriculum: Curriculum, out: Path) -> None:
        self.curriculum, self.out = curriculum, out
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model: Any = curriculum.model(curriculum.recipe.seed)
        self.model.to(self.device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), betas=(0.9, 0.98), weight_decay=0.01
        )
        self.step, self.seconds, self.cpu_seconds = 0, 0.0, 0.0
        self.log: list[dict[str, Any]] = []
        self.recent: deque[dict[str, float]] = deque(maxlen=LOG_EVERY)
        self.checkpoint = out / "checkpoint.pt"
        if self.checkpoint.exists():
            self.resume()

    def resume(self) -> None:
        """Go back to the state of the last checkpoint."""
        state = torch.load(self.checkpoint, weights_only=True)
        there, asked = state["recipe"], plain(self.curriculum.recipe)
        for name in asked:
            if there[name] != asked[name]:
                raise ValueError(
                    f"{name} = {asked[name]!r}: the training in {self.checkpoint} has "
                    f"{there[name]!r}; give the same, another --out, or delete that file"
                )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.curriculum.go_on_from(state["curriculum"])
        self.step, self.log = state["step"], state["log"]
        self.seconds, self.cpu_seconds = state["seconds"], state["cpu_seconds"]
        self.recent.extend(state["recent"])

    def run(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Train to the end, and write the model and its log; ``stopped`` ends it with a step."""
        saved = time.monotonic()
        while self.step < self.curriculum.recipe.steps:
            if stopped():
                self.save()
                raise stop_with(
                    f"step {self.step} is in {self.checkpoint}, which the next run reads"
                )
            started, worked = time.monotonic(), time.process_time()
            self.recent.append(self.learn(self.curriculum.batch()))
            self.step += 1
            self.seconds += time.monotonic() - started
            self.cpu_seconds += time.process_time() - worked
            if self.step % LOG_EVERY == 0:
                self.report()
            if time.monotonic() - saved > CHECKPOINT_SECONDS:
                self.save()
                saved = time.monotonic()
        self.write()

    def learn(self, batch: Batch) -> dict[str, float]:
        """Take one step; return the loss and the shares of what is right."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.curriculum.recipe.rate(self.step)
        asked = batch.targets != IGNORED
        targets = batch.targets[asked].to(self.device)
        mask = self.curriculum.mask(batch)
        mask = None if mask is None else mask.to(self.device)
        read = self.model.model(batch.inputs.to(self.device), mask, use_cache=False)
        logits = self.model.lm_head(read.last_hidden_state[asked.to(self.device)])
        loss = torch.nn.functional.cross_entropy(logits, targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for weight in self.curriculum.held(self.model):
            weight.grad = None
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        right = torch.ones_like(asked)
        right[asked] = (logits.argmax(-1) == targets).cpu()
        return {"loss": loss.item(), **self.curriculum.judge(batch, right)}

    def report(self) -> None:
        """Log means over the last steps."""
        kinds = sorted({kind for shares in self.recent for kind in shares})
        means = {
            kind: float(np.mean([shares[kind] for shares in self.recent if kind in shares]))
            for kind in kinds
        }
        state = {"stage": self.curriculum.stage, "running": self.curriculum.running}
        self.log.append({"step": self.step, **state, "seconds": self.seconds, **means})
        print(json.dumps(self.log[-1]), flush=True)

    def save(self) -> None:
        """Write the checkpoint; a stop while it is written leaves the last one whole."""
        state = {
            "recipe": plain(self.curriculum.recipe),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "curriculum": self.curriculum.state(),
            "step": self.step,
            "log": self.log,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "recent": list(self.recent),
        }
        unfinished = self.checkpoint.with_suffix(".unfinished")
        torch.save(state, unfinished)
        unfinished.replace(self.checkpoint)

    def write(self) -> None:
        """Write the model, its tokenizer, the recipe and the log; the checkpoint has served."""
        self.model.save_pretrained(self.out)
        write_tokenizer(self.out, self.curriculum)
        record = {
            "recipe": asdict(self.curriculum.recipe),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "device": self.device,
            "cpu_seconds": self.cpu_seconds,
            "log": self.log,
        }
        write_text(self.out / "training_log.json", json.dumps(record, indent=1) + "\n")
        self.checkpoint.unlink(missing_ok=True)


def main(description: str | None, recipe: Any, curriculum: Any, threads: int) -> None:
    """Read ``--out``, ``--seed`` and ``--steps`` from the command line, and train."""

    def train(
        out: Annotated[Path, Option(help="Directory of the checkpoint, then of the model.")],
        seed: int = recipe.seed,
        steps: int = recipe.steps,
    ) -> None:
        out.mkdir(parents=True, exist_ok=True)
        torch.set_num_threads(threads)
        with until_stopped("step") as stopped:
            Training(curriculum(recipe(seed=seed, steps=steps)), out).run(stopped)

    train.__doc__ = description
    run(train)
