"""The card of an embedded model: measurements, training curve and text beside the weights."""

import argparse
import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from matplotlib.figure import Figure


def draw_loss_curve(log: dict[str, Any], share: str, label: str, path: Path) -> None:
    """Draw the loss and the share that the log calls ``share`` over the steps."""
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.add_subplot()
    steps = [entry["step"] for entry in log["log"]]
    axes.plot(steps, [entry["loss"] for entry in log["log"]], color="tab:blue")
    axes.set(xlabel="step", ylabel="loss (nats per token)", yscale="log")
    right = axes.twinx()
    right.plot(steps, [entry[share] for entry in log["log"]], color="tab:orange")
    right.set_ylabel(label, color="tab:orange")
    figure.savefig(path, metadata={"Date": None})


def write_card(directory: Path, evaluation: Any, template: str, share: str, label: str) -> None:
    """Write ``evaluation.json``, ``loss_curve.svg`` and ``README.md`` from a packaged template."""
    log = json.loads((directory / "training_log.json").read_text())
    (directory / "evaluation.json").write_text(json.dumps(evaluation, indent=1) + "\n")
    draw_loss_curve(log, share, label, directory / "loss_curve.svg")
    text = (files("kvlab.fast.models") / template).read_text(encoding="utf-8")
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    card = environment.from_string(text).render(log=log, evaluation=evaluation)
    (directory / "README.md").write_text(card, encoding="utf-8")


def run(
    description: str | None,
    evaluate: Callable[[Path, int, int], Any],
    problems: int,
    template: str,
    share: str,
    label: str,
) -> None:
    """Parse the command line, evaluate the model in a directory, and write its card there."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--problems", type=int, default=problems)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    evaluation = evaluate(arguments.directory, arguments.problems, arguments.seed)
    write_card(arguments.directory, evaluation, template, share, label)
    print(json.dumps(evaluation, indent=1))
