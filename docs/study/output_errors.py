"""How far methods move attention outputs and predictions from the full cache's, on given texts.

    python -m study.output_errors --model smollm2 --out output_errors.json

Every text's end is fed token by token under every method, whatever the method would have written.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from kvlab.fast.lab.evaluate.backends import FastBackend
from kvlab.fast.lab.evaluate.likelihood import Passage, cut_windows
from kvlab.fast.lab.files import write_text
from kvlab.fast.lab.loop import Step, kept, run_all
from kvlab.fast.lab.points import points
from kvlab.fast.lab.provenance import versions
from kvlab.fast.lab.store import Store
from kvlab.fast.lab.terminal import OnProgress, print_line, progress_bar, run
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
    store: Store | None = None,
    progress: OnProgress = lambda done, total, what: None,
    tell: Callable[[dict[str, Any]], object] = lambda row: None,
) -> list[dict[str, Any]]:
    """Feed the rated tokens of passages under methods; return each method's row of figures.

    Args:
        backend: holds the model.
        passages: prompts, which are read at once, and the tokens that are fed after them.
        asked: methods in registry syntax, each with its budget.
        store: keeps the rows.
        progress: is told how many methods are done.
        tell: is called with each row.

    Raises:
        ValueError: if a method does not fit the passages.
    """
    prompts = [list(passage.prompt) for passage in passages]
    rated = [list(passage.rated) for passage in passages]
    yardstick = [logits for _, logits in backend.measure(registry.get("full"), prompts, rated)]

    def row(method: str, budget: int | None) -> dict[str, Any]:
        policy = registry.get(method, budget)
        found = [each for each, _ in backend.measure(policy, prompts, rated, yardstick)]
        means = {name: [float(np.mean(getattr(each, name))) for each in found] for name in FIGURES}
        return {"method": method, "budget": budget, "figures": means}

    steps = [Step(f"{method} {budget}", partial(row, method, budget)) for method, budget in asked]
    found = run_all(steps, store, progress=progress, tell=lambda step, row: tell(row))
    return [*found.values()]


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

    def tell(row: dict[str, Any]) -> None:
        rows.append(row)
        write_text(out, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        print_line(f"{row['method']}: KL {np.mean(row['figures']['kl']):.3f}")

    with progress_bar() as progress, kept("output_errors", **given) as store:
        measure(backend, texts, asked, store, progress, tell)


if __name__ == "__main__":
    run(main)
