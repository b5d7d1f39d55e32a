"""Train this model on a GPU: ``python docs/study/models/jumps_2000/train.py OUT SECONDS``.

Without SECONDS, count the held-out programs that the model in OUT runs right.

It differs from `kvlab.fast.lab.training.train_jumps` in width, head dimension, RoPE base, sizes of
programs, and in a learning rate that falls with time in place of steps.
"""

import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kvlab.fast.lab.training import small_model, train_jumps
from kvlab.fast.lab.training.small_model import Batch
from kvlab.fast.lab.training.train_jumps import LONG, MIDDLE, SHORT, Stage
from kvlab.reference.tasks import jumps
from kvlab.reference.tasks.jumps import SIZES, STEP, SUM, Size

WIDTH, ROPE_THETA = 256, 1e7
SHORT_2, HALF_2 = Size(2, 6, 2, 20), Size(2, 6, 40, 80)
SHORT_3, HALF_3 = Size(3, 6, 2, 30), Size(3, 6, 60, 140)
STAGES = (
    Stage((SHORT, MIDDLE, SHORT_2), 4096, 0.5),
    Stage((SHORT, MIDDLE, LONG, SHORT_2, SHORT_3), 8192, 0.25),
    Stage((SHORT_2, SHORT_3, SIZES[600], HALF_2, HALF_3), 12288, 0.15),
    Stage((SHORT_3, SIZES[600], SIZES[1000], SIZES[2000], SIZES[2000]), 16384, 0.1),
)


@dataclass(frozen=True)
class Recipe(train_jumps.Recipe):
    """Everything that decides the result, besides the speed of the machine."""

    steps: int = 10**6
    decay: float = 0.5
    stages: tuple[Stage, ...] = STAGES
    promotion: tuple[float, ...] = (0.96, 0.98, 0.985)
    learning_rate: float = 1e-3
    began: float = 0.0
    seconds: float = 500.0

    def rate(self, step: int) -> float:
        """Warm up over steps, hold, then fall along a cosine while time runs out."""
        spent = min(1.0, (time.monotonic() - self.began) / self.seconds)
        late = max(0.0, (spent - (1 - self.decay)) / self.decay)
        warm = min(1, (step + 1) / self.warmup)
        return self.learning_rate * warm * (1 + math.cos(math.pi * late)) / 2


class Curriculum(train_jumps.Curriculum):
    """Programs of one to three groups of registers."""

    @classmethod
    def model(cls, seed: int) -> LlamaForCausalLM:
        """Return the untrained model with composed embeddings and built-in look-ups."""
        torch.manual_seed(seed)
        ids = cls.ids()
        config = LlamaConfig(
            vocab_size=len(ids),
            hidden_size=WIDTH,
            intermediate_size=3 * WIDTH,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=True,
            bos_token_id=ids[cls.end],
            eos_token_id=ids[cls.end],
            pad_token_id=None,
            max_position_embeddings=8192,
            rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        )
        model = LlamaForCausalLM(config)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    weight.mul_(1 / math.sqrt(8))
                if name.endswith(("q_proj.weight", "k_proj.weight")):
                    weight.mul_(2)
            table = model.model.embed_tokens.weight
            for name in jumps.REGISTERS:
                for digit in range(10):
                    table[ids[f"{name}{digit}"]] = table[ids[name]] + table[ids[str(digit)]]
            train_jumps.start_with_look_ups(model)
        return model

    def batch(self) -> Batch:
        """Draw problems of one size, and drills of the same length and groups."""
        stage = self.recipe.stages[self.stage]
        size = stage.sizes[int(self.rng.integers(len(stage.sizes)))]
        problems = self.take(size, int(stage.tokens * (1 - stage.drills)))
        rows = [problem.text.split(" ") for problem in problems]
        asked = [list(range(len(p.prompt.split(" ")), p.tokens)) for p in problems]
        length = max(map(len, rows))
        while sum(map(len, rows)) < stage.tokens:
            rows.append(jumps.drill(self.rng, length // STEP, size.groups))
            asked.append([i for i in range(len(rows[-1])) if i % STEP >= SUM])
        return self.batch_of(rows, list(asked), problems)


def main(out: Path, seconds: float) -> None:
    """Train for so long, and write the model in bfloat16."""
    torch.backends.cuda.matmul.allow_tf32 = True
    out.mkdir(parents=True, exist_ok=True)
    recipe = Recipe(began=time.monotonic(), seconds=seconds)
    training = small_model.Training(Curriculum(recipe), out)
    while time.monotonic() < recipe.began + seconds:
        training.recent.append(training.learn(training.curriculum.batch()))
        training.step += 1
        training.seconds = time.monotonic() - recipe.began
        if training.step % small_model.LOG_EVERY == 0:
            training.report()
    training.model.bfloat16()
    training.write()


def solved(model: LlamaForCausalLM, size: Size, count: int) -> int:
    """Count held-out programs whose whole run greedy decoding writes right.

    It does if every token of the run is the likeliest after those before it, which one reading of
    the text shows.
    """
    ids, right = Curriculum.ids(), 0
    for problem in jumps.held_out(count, size=size):
        tokens, start = problem.text.split(" "), len(problem.prompt.split(" "))
        text = torch.tensor([[ids[token] for token in tokens]])
        with torch.no_grad():
            written = model(text).logits[0].argmax(-1)
        right += bool(torch.equal(written[start - 1 : -1], text[0, start:]))
    return right


if __name__ == "__main__":
    if len(sys.argv) > 2:
        main(Path(sys.argv[1]), float(sys.argv[2]))
    else:
        trained = LlamaForCausalLM.from_pretrained(sys.argv[1])
        for size in SIZES.values():
            print(size, solved(trained, size, 100))
