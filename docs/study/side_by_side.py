"""The embedded reasoner and a real model side by side, from the stored results.

    python -m study.side_by_side

prints the tables of the documentation, in Markdown.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer

from kvlab.fast.lab.evaluate.statistics import Interval, mean_interval
from kvlab.fast.lab.sweep.summary import Point
from kvlab.fast.lab.tables import Column, Table, tabulate
from kvlab.fast.lab.terminal import print_line
from kvlab.reference.selection import budget_entries
from study.contrasts import REAL, RESULTS, read_tables, stored_summary

EMBEDDED = "reasoner"


@dataclass(frozen=True)
class Shown:
    """A row of the table of observations, read from ``observed.toml``."""

    source: str
    figure: str
    """A name in `Observed.figures`."""
    printed: str = ""
    """The paper's figure, in the paper's setting."""


@dataclass(frozen=True)
class Observed:
    """The figures of one text."""

    kind: str
    """``written`` by the model after its prompt, or of the ``novel``."""
    prompt: int
    """Tokens that were given."""
    rated: int
    """Tokens that were written, or read as if written."""
    figures: Mapping[str, float]


def spread(interval: Interval, form: str = ".3g") -> str:
    """Write a mean and its interval, three numbers in the same form."""
    return f"{interval.mean:{form}} ({interval.low:{form}} to {interval.high:{form}})"


def stored(name: str) -> dict[str, Any]:
    """Return a stored file of results as it was written."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def stored_observations(model: str) -> list[Observed]:
    """Return the texts on which the papers' observations were repeated."""
    return [Observed(**text) for text in stored(f"observations_{model}")["texts"]]


def intervals(texts: Sequence[Observed], kind: str) -> dict[str, Interval]:
    """Return every figure's mean over the texts of a kind, with its bootstrap interval."""
    own = [text.figures for text in texts if text.kind == kind]
    return {name: Interval(*mean_interval([each[name] for each in own])) for name in own[0]}


def observations_table() -> Table:
    """Lay the papers' observations out: embedded model, and the real one's two kinds of text."""
    real = stored_observations(REAL)
    found = {
        EMBEDDED: intervals(stored_observations(EMBEDDED), "written"),
        f"{REAL}, written": intervals(real, "written"),
        f"{REAL}, novel": intervals(real, "novel"),
    }
    rows = [
        (
            each.source,
            each.figure,
            each.printed,
            *(spread(own[each.figure]) for own in found.values()),
        )
        for each in read_tables(Shown, "observed", Path(__file__).with_name("observed.toml"))
    ]
    return Table(("paper", "figure", "printed", *found), rows, words=3)


HEADINGS = {"entries": "entries", "output_error": "output error", "kl": "KL, nats"}


def errors_table() -> Table:
    """Lay output errors and divergences out, method by method, at each model's budget."""
    models = {
        model: {point.method.partition("@")[0]: point for point in stored_errors(model)}
        for model in (EMBEDDED, REAL)
    }
    rows = [
        (
            point.method,
            *(_cell(own.get(name), each) for own in models.values() for each in HEADINGS),
        )
        for name, point in models[REAL].items()
    ]
    columns = (f"{model}: {heading}" for model in models for heading in HEADINGS.values())
    return Table(("method", *columns), rows)


def stored_errors(model: str) -> Sequence[Point]:
    """Return how far every method moves outputs and predictions."""
    return stored_summary(f"output_errors_{model}").points


def _cell(point: Point | None, figure: str) -> str:
    if point is None:
        return "–"
    interval = Interval(*mean_interval(point.figures[figure]))
    return f"{interval.mean:.0f}" if figure == "entries" else spread(interval)


ByEntries = Mapping[int, Mapping[str, Any]]
"""The perplexities of a method, by the entries that may stay."""


@cache
def stored_losses() -> dict[str, ByEntries]:
    """Return the real model's perplexities by method; those that were refused are left out."""
    rows: dict[str, dict[int, Mapping[str, Any]]] = {}
    for row in stored(f"perplexity_{REAL}")["rows"]:
        if row["budget"] is not None and row["refusal"] is None:
            rows.setdefault(row["method"], {})[row["budget"]] = row
    return {**rows}


def losses_table() -> Table:
    """Lay the real model's perplexities out: the gap to the full cache's, and the loss in nats."""
    found, rows = stored(f"perplexity_{REAL}"), stored_losses()
    length = round(found["mean_length"])
    budgets = {text: budget_entries(text, length) for text in found["reading"]["budgets"]}
    columns = [Column("method", lambda method: method)]
    for text, entries in budgets.items():
        columns += [
            Column(
                f"{text}, {entries} entries: gap",
                lambda method, entries=entries: rows[method][entries]["gap"],
                "+.2f",
            ),
            Column(
                "nats", lambda method, entries=entries: spread(nats(rows[method][entries]), "+.3f")
            ),
        ]
    first = min(budgets.values())
    return tabulate(sorted(rows, key=lambda method: rows[method][first]["gap"]), columns)


def nats(row: Mapping[str, Any]) -> Interval:
    """Return the loss over the full cache's, with its interval."""
    return Interval(row["nats"], row["nats_low"], row["nats_high"])


def main() -> None:
    """Print the tables."""
    for table in (losses_table(), observations_table(), errors_table()):
        print_line(f"{table.markdown()}\n")


if __name__ == "__main__":
    typer.run(main)
