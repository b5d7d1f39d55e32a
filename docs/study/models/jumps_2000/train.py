"""Train this model on a GPU: ``PYTHONPATH=docs python …/jumps_2000/train.py OUT SECONDS``.

Without SECONDS, count the held-out programs that the model in OUT runs right.

It differs from `study.training.train_jumps` in width, head dimension, RoPE base, sizes of
programs, and in a learning rate that falls with time in place of steps.
"""

import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from kvlab.reference.tasks import jumps
from kvlab.reference.tasks.jumps import SIZES, Size
from study.training import small_model, train_jumps
from study.training.train_jumps import LONG, MIDDLE, SHORT, Stage

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

    width, positions, rope_theta = 256, 8192, 1e7


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
