"""Measure the model of the jump programs and write its card.

``python -m kvlab.fast.lab.training.evaluate_jumps DIR`` solves held-out problems of several sizes
with the full cache, and writes ``evaluation.json``, ``loss_curve.svg`` and ``README.md`` beside the
weights.
"""

import argparse
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from matplotlib.figure import Figure

from kvlab.fast.lab.evaluate.compare import run_in_memory
from kvlab.fast.lab.sweep.configuration import Sweep
from kvlab.fast.lab.sweep.summary import summarise
from kvlab.reference.tasks import jumps
from kvlab.reference.tasks.jumps import Size
from kvlab.reference.tasks.jumps_oracle import least_memory

RUNS = ((45, 65), (2, 9), (10, 25), (26, 44), (66, 80), (81, 100))
"""Fewest and most steps of the sizes that are measured; training knows none above 65."""
SHARE_OF_OTHERS = 3
"""The first size gets all problems, the others one in so many."""


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


def draw_loss_curve(log: dict[str, Any], path: Path) -> None:
    """Draw the loss and the share of whole runs that are right over the steps."""
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.add_subplot()
    steps = [entry["step"] for entry in log["log"]]
    axes.plot(steps, [entry["loss"] for entry in log["log"]], color="tab:blue")
    axes.set(xlabel="step", ylabel="loss (nats per token)", yscale="log")
    share = axes.twinx()
    share.plot(steps, [entry["runs"] for entry in log["log"]], color="tab:orange")
    share.set_ylabel("whole runs right", color="tab:orange")
    figure.savefig(path, metadata={"Date": None})


def write_card(directory: Path, evaluation: list[dict[str, Any]]) -> None:
    """Write the measurements, the curve and the model card."""
    log = json.loads((directory / "training_log.json").read_text())
    (directory / "evaluation.json").write_text(json.dumps(evaluation, indent=1) + "\n")
    draw_loss_curve(log, directory / "loss_curve.svg")
    template = (files("kvlab.fast.models") / "jumps_card.md.jinja").read_text(encoding="utf-8")
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    card = environment.from_string(template).render(log=log, evaluation=evaluation)
    (directory / "README.md").write_text(card, encoding="utf-8")


def main() -> None:
    """Parse the command line and write the card."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    write_card(
        arguments.directory, evaluate(arguments.directory, arguments.problems, arguments.seed)
    )


if __name__ == "__main__":
    main()
