"""How far methods move attention outputs and predictions from the full cache's, on given texts.

    python -m study.output_errors --model smollm2 --out output_errors.json

Every text's end is fed token by token under every method, whatever the method would have written.
"""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from kvlab.fast.lab.evaluate.backends import FastBackend
from kvlab.fast.lab.evaluate.likelihood import Passage, cut_windows
from kvlab.fast.lab.files import write_text
from kvlab.fast.lab.points import points
from kvlab.fast.lab.steps import Steps, kept_steps, versions
from kvlab.fast.lab.terminal import print_line, reporting, run
from kvlab.fast.models import model_location
from kvlab.reference import methods as registry
from kvlab.reference.models import EMBEDDED
from kvlab.reference.selection import budget_entries
from kvlab.reference.tasks import english
from study.observations import problem_passages
from study.rounded_weights import round_weights

FIGURES = ("output_error", "kl", "agreement", "entries", "average_bits")
"""What is kept of a `Measurement`: means over the fed tokens."""


def measure(
    backend: FastBackend,
    passages: Sequence[Passage],
    asked: Sequence[tuple[str, int | None]],
    steps: Steps | None = None,
) -> Iterator[dict[str, Any]]:
    """Feed the rated tokens of passages under methods; yield each method's row of figures.

    Args:
        backend: holds the model.
        passages: prompts, which are read at once, and the tokens that are fed after them.
        asked: methods in registry syntax, each with its budget.
        steps: keeps the rows.

    Raises:
        ValueError: if a method does not fit the passages.
    """
    prompts = [list(passage.prompt) for passage in passages]
    rated = [list(passage.rated) for passage in passages]
    yardstick = [logits for _, logits in backend.measure(registry.get("full"), prompts, rated)]
    steps = steps or Steps()

    def figures(method: str, budget: int | None) -> dict[str, list[float]]:
        policy = registry.get(method, budget)
        found = [each for each, _ in backend.measure(policy, prompts, rated, yardstick)]
        return {name: [float(np.mean(getattr(each, name))) for each in found] for name in FIGURES}

    for each in asked:
        means = steps.do(each, partial(figures, *each))
        yield {"method": each[0], "budget": each[1], "figures": means}


def main(
    methods: Annotated[str, typer.Option(help="Registry syntax, separated by ';'.")],
    out: Annotated[Path, typer.Option(help="JSON file to write.")],
    model: Annotated[str, typer.Option(help="Short name or directory.")] = "reasoner",
    budgets: Annotated[str, typer.Option(help="Entries or percent, separated by commas.")] = "25%",
    passages: Annotated[int, typer.Option(min=2, help="Texts.")] = 5,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens that are read at once.")] = 960,
    fed: Annotated[int, typer.Option(min=1, help="Tokens that are fed after them.")] = 64,
    weights: Annotated[
        str | None, typer.Option(help="Round weights, as Q4_1 does; default: as they are.")
    ] = None,
) -> None:
    """Measure output errors; an embedded model reads its problems, any other one the novel."""
    backend = FastBackend(model_location(model))
    if weights is not None:
        round_weights(backend.model, weights)
    if model in EMBEDDED:
        texts = problem_passages(backend.tokenizer, passages)
    else:
        texts = cut_windows(backend.encode(english.novel()), prompt + fed, prompt, passages)
    length = round(float(np.mean([len(text) for text in texts])))
    entries = [budget_entries(each, length) for each in budgets.split(",")]
    lengths = [[len(text.prompt), len(text.rated)] for text in texts]
    rows: list[dict[str, Any]] = []
    result = {
        "model": model,
        "weights": weights,
        "texts": lengths,
        "versions": versions(),
        "rows": rows,
    }
    asked = list(points(methods.split(";"), entries))
    given = {
        "model": model,
        "weights": weights,
        "texts": texts,
        "study": Path(__file__).read_text("utf-8"),
    }
    with reporting() as report, kept_steps("output_errors", **given) as steps:
        for row in measure(backend, texts, asked, steps):
            rows.append(row)
            report(len(rows), len(asked), row["method"])
            write_text(out, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
            print_line(f"{row['method']}: KL {np.mean(row['figures']['kl']):.3f}")


if __name__ == "__main__":
    run(main)
