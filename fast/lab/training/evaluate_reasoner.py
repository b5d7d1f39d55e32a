"""Measure the embedded reasoner and write its model card.

``python -m kvlab.fast.lab.training.evaluate_reasoner DIR`` solves held-out problems with the full
cache and with StreamingLLM at 30 %, measures recurrence, and writes ``evaluation.json``,
``loss_curve.svg`` and ``README.md`` beside the weights.
"""

import argparse
import json
import os
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from matplotlib.figure import Figure

from kvlab.fast.lab.evaluate.compare import compare
from kvlab.fast.lab.sweep.configuration import Sweep
from kvlab.reference.tasks import reasoning
from kvlab.reference.traces.recurrence import recurrence

SPECS = ("full", "streaming_llm")
BUDGET = "30%"
RECURRENCE_PROBLEMS = 40
RECURRENCE_THRESHOLD = 0.01


def evaluate(directory: Path, problems: int, seed: int) -> dict[str, Any]:
    """Return accuracy with interval, trace lengths and the distribution of recurrence."""
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


def draw_loss_curve(log: dict[str, Any], path: Path) -> None:
    """Draw loss and share of right digits over the steps."""
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.add_subplot()
    steps = [entry["step"] for entry in log["log"]]
    axes.plot(steps, [entry["loss"] for entry in log["log"]], color="tab:blue")
    axes.set(xlabel="step", ylabel="loss (nats per token)", yscale="log")
    share = axes.twinx()
    share.plot(steps, [entry["running"] for entry in log["log"]], color="tab:orange")
    share.set_ylabel("solutions with all look-ups right", color="tab:orange")
    figure.savefig(path, metadata={"Date": None})


def write_card(directory: Path, evaluation: dict[str, Any]) -> None:
    """Write the measurements, the curve and the model card."""
    log = json.loads((directory / "training_log.json").read_text())
    (directory / "evaluation.json").write_text(json.dumps(evaluation, indent=1) + "\n")
    draw_loss_curve(log, directory / "loss_curve.svg")
    template = (files("kvlab.fast.models") / "card.md.jinja").read_text(encoding="utf-8")
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    card = environment.from_string(template).render(log=log, evaluation=evaluation)
    (directory / "README.md").write_text(card, encoding="utf-8")


def main() -> None:
    """Parse the command line and write the card."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    evaluation = evaluate(arguments.directory, arguments.problems, arguments.seed)
    write_card(arguments.directory, evaluation)
    print(json.dumps(evaluation, indent=1))


if __name__ == "__main__":
    main()
