"""Measure the embedded reasoner and write its model card.

``python -m kvlab.fast.lab.training.evaluate_reasoner DIR`` solves held-out problems with the full
cache and with StreamingLLM at 30 %, measures recurrence, and writes ``evaluation.json``,
``loss_curve.svg`` and ``README.md`` beside the weights.
"""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvlab.fast.lab.sweep.compare import compare
from kvlab.fast.lab.sweep.plan import Sweep
from kvlab.fast.lab.training.card import run
from kvlab.reference.simulator.observed import recurrence
from kvlab.reference.tasks import reasoning

SPECS = ("full", "streaming_llm")
BUDGET = "30%"
RECURRENCE_PROBLEMS = 40
RECURRENCE_THRESHOLD = 0.01


def evaluate(directory: Path, problems: int, seed: int) -> dict[str, Any]:
    """Return accuracy with interval, lengths in tokens and the distribution of recurrence."""
    sweep = Sweep(
        SPECS,
        (BUDGET,),
        problems,
        models=(str(directory),),
        tasks=("reasoning",),
        seeds=(seed,),
        batch=1,
        backend="reference",
    )
    comparison = compare(sweep, workers=os.cpu_count() or 1)
    rows = {row["spec"]: row for row in comparison.to_json()["rows"]}
    lengths = [problem.tokens for problem in reasoning.held_out(problems, seed)]
    return {
        "problems": problems,
        "seed": seed,
        "tokens": {"min": min(lengths), "mean": sum(lengths) / problems, "max": max(lengths)},
        "budget": comparison.summary.budgets[BUDGET],
        **rows,
        "recurrence": asdict(
            recurrence(directory, RECURRENCE_PROBLEMS, seed, RECURRENCE_THRESHOLD)
        ),
    }


if __name__ == "__main__":
    run(__doc__, evaluate, 200, "card.md.jinja", "running", "solutions with all look-ups right")
