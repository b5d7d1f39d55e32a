"""Measure the model of the jump programs and write its card.

``python -m kvlab.fast.lab.training.evaluate_jumps DIR`` solves held-out problems of several sizes
with the full cache, and writes ``evaluation.json``, ``loss_curve.svg`` and ``README.md`` beside the
weights.
"""

from pathlib import Path
from typing import Any

import numpy as np

from kvlab.fast.lab.sweep.compare import run_in_memory
from kvlab.fast.lab.sweep.plan import Sweep
from kvlab.fast.lab.sweep.summary import summarise
from kvlab.fast.lab.training.card import run
from kvlab.reference.tasks import jumps
from kvlab.reference.tasks.jumps import Size
from kvlab.reference.tasks.jumps_oracle import least_memory

RUNS = ((45, 65), (2, 9), (10, 25), (26, 44), (66, 80), (81, 100))
"""Fewest and most steps of the sizes that are measured; training has none above 65."""
SHARE_OF_OTHERS = 3
"""The first size gets all problems, each other size one in so many."""


def evaluate(directory: Path, problems: int, seed: int) -> list[dict[str, Any]]:
    """Return for every size the share solved with its interval, and the memory that is needed."""
    return [
        _evaluate_size(
            directory, size, problems if number == 0 else -(-problems // SHARE_OF_OTHERS), seed
        )
        for number, size in enumerate(Size(fewest=fewest, most=most) for fewest, most in RUNS)
    ]


def _evaluate_size(directory: Path, size: Size, problems: int, seed: int) -> dict[str, Any]:
    task = f"jumps@fewest={size.fewest},most={size.most}"
    sweep = Sweep(
        ("full",), (), problems, (str(directory),), (task,), (seed,), batch=100, to_first_error=True
    )
    (summary,) = summarise(run_in_memory(sweep))
    (point,) = summary.points
    drawn = jumps.held_out(problems, seed, size)
    lengths = [problem.tokens for problem in drawn]
    return {
        "task": task,
        "problems": problems,
        "seed": seed,
        "tokens": {"min": min(lengths), "mean": float(np.mean(lengths)), "max": max(lengths)},
        "least_memory": float(np.mean([least_memory(problem) for problem in drawn])),
        "solved": point.solved,
        "low": point.interval.low if point.interval else None,
        "high": point.interval.high if point.interval else None,
    }


if __name__ == "__main__":
    run(__doc__, evaluate, 300, "jumps_card.md.jinja", "runs", "whole runs right")
