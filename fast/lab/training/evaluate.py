"""Measure an embedded model on held-out problems, and write its card.

``python -m kvlab.fast.lab.training.evaluate jumps DIR``, or ``restated``, or ``reasoner``, writes
``evaluation.json``, ``loss_curve.svg`` and ``README.md`` beside the weights.
"""

import argparse
import json
from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from matplotlib.figure import Figure

from kvlab.fast.lab.sweep.compare import run_in_memory
from kvlab.fast.lab.sweep.plan import Sweep
from kvlab.fast.lab.sweep.summary import TaskSummary, summarise
from kvlab.fast.lab.training.train_restated import COPIES
from kvlab.reference.simulator.observed import intervals, recurrence
from kvlab.reference.tasks import jumps, reasoning
from kvlab.reference.tasks.jumps import Size
from kvlab.reference.tasks.jumps_oracle import least_memory

RUNS = [
    {"fewest": fewest, "most": most}
    for fewest, most in ((45, 65), (2, 9), (10, 25), (26, 44), (66, 80), (81, 100))
]
"""The sizes that are measured; training has no runs of more than 65 steps."""
RESTATED = [{"copies": copies, "fewest": 18, "most": 22} for copies in COPIES]
SHARE_OF_OTHERS = 3
"""The first size gets all problems, each other size one in so many."""
BUDGET = "30%"
RECURRENCE: dict[str, Any] = {"problems": 40, "threshold": 0.01}


def _evaluate_jumps(
    sizes: Sequence[dict[str, int]], directory: Path, problems: int, seed: int
) -> list[dict[str, Any]]:
    rows = []
    for size in sizes:
        count = -(-problems // SHARE_OF_OTHERS) if size in RUNS[1:] else problems
        task = f"jumps@{','.join(f'{name}={value}' for name, value in size.items())}"
        drawn = jumps.held_out(count, seed, Size(**size))
        about = {"task": task, "problems": count, "seed": seed, "tokens": _lengths(drawn)}
        memory = float(np.mean([least_memory(problem) for problem in drawn]))
        solved = _solved_by_method(_run(directory, task, ("full",), count, seed, batch=100))
        rows.append({**about, "least_memory": memory, **solved["full"]})
    return rows


def _evaluate_reasoner(directory: Path, problems: int, seed: int) -> dict[str, Any]:
    summary = _run(directory, "reasoning", ("full", "streaming_llm"), problems, seed, batch=32)
    longest = intervals(directory, seed=seed, **RECURRENCE)
    return {
        "problems": problems,
        "seed": seed,
        "tokens": _lengths(reasoning.held_out(problems, seed)),
        "budget": summary.budgets[BUDGET],
        **_solved_by_method(summary),
        "recurrence": {**RECURRENCE, **recurrence(longest)},
    }


def _lengths(problems: Sequence[Any]) -> dict[str, float]:
    tokens = [problem.tokens for problem in problems]
    return {"min": min(tokens), "mean": float(np.mean(tokens)), "max": max(tokens)}


def _run(
    directory: Path, task: str, methods: tuple[str, ...], problems: int, seed: int, batch: int
) -> TaskSummary:
    budgets = (BUDGET,) if len(methods) > 1 else ()
    asked = (methods, budgets, problems, (str(directory),), (task,), (seed,))
    (summary,) = summarise(run_in_memory(Sweep(*asked, batch=batch, to_first_error=True)))
    return summary


def _solved_by_method(summary: TaskSummary) -> dict[str, dict[str, float | None]]:
    return {
        point.method: {
            "solved": point.solved,
            "low": point.interval.low if point.interval else None,
            "high": point.interval.high if point.interval else None,
        }
        for point in summary.points
    }


def _draw_loss_curve(log: Sequence[dict[str, Any]], share: str, label: str, path: Path) -> None:
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.add_subplot()
    steps = [entry["step"] for entry in log]
    axes.plot(steps, [entry["loss"] for entry in log], color="tab:blue")
    axes.set(xlabel="step", ylabel="loss (nats per token)", yscale="log")
    right = axes.twinx()
    right.plot(steps, [entry[share] for entry in log], color="tab:orange")
    right.set_ylabel(label, color="tab:orange")
    figure.savefig(path, metadata={"Date": None})


MODELS = {
    "jumps": (partial(_evaluate_jumps, RUNS), 300, "runs", "whole runs right"),
    "restated": (partial(_evaluate_jumps, RESTATED), 100, "runs", "whole runs right"),
    "reasoner": (_evaluate_reasoner, 200, "running", "solutions with all look-ups right"),
}
"""How each model is measured, on how many problems, and which share its training log tells."""


def main() -> None:
    """Evaluate the model in a directory, and write its card there from a packaged template."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--problems", type=int)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    evaluate, problems, share, label = MODELS[given.model]
    log = json.loads((given.directory / "training_log.json").read_text())
    evaluation = evaluate(given.directory, given.problems or problems, given.seed)
    (given.directory / "evaluation.json").write_text(json.dumps(evaluation, indent=1) + "\n")
    _draw_loss_curve(log["log"], share, label, given.directory / "loss_curve.svg")
    template = files("kvlab.fast.models") / f"{given.model}_card.md.jinja"
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    card = environment.from_string(template.read_text(encoding="utf-8"))
    text = card.render(log=log, evaluation=evaluation)
    (given.directory / "README.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
