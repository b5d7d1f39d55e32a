"""The embedded reasoner and a real model side by side, from the results that lie in the package.

    python -m study.side_by_side

prints the tables of the documentation, in Markdown.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from kvlab.fast.lab.evaluate.statistics import Interval, mean_interval, paired_difference
from kvlab.fast.lab.tables import Column, Table, tabulate
from kvlab.fast.lab.terminal import print_line
from kvlab.reference.selection import budget_entries
from study.contrasts import REAL, RESULTS

EMBEDDED = "reasoner"


@dataclass(frozen=True)
class Shown:
    """A row of the table of observations."""

    source: str
    figure: str
    """A name in `Observed.figures`."""
    printed: str
    """The paper's figure, in the paper's setting."""


OBSERVED = (
    Shown("LazyEviction Fig. 2b", "missing 16 steps before, by attention", "often"),
    Shown("LazyEviction Fig. 2b", "missing 16 steps before, by its sum", "often"),
    Shown("LazyEviction Fig. 3", "MRI > 1, α = 0.0005", "> 0.95"),
    Shown("LazyEviction Fig. 3", "MRI > 1, α = 0.01", ""),
    Shown("LazyEviction Fig. 3c", "MRI, 50 %, α = 0.0005", ""),
    Shown("LazyEviction Fig. 3c", "MRI, 80 %, α = 0.0005", "175 (α = 0.0001)"),
    Shown("LazyEviction Finding 3", "W / written, α = 0.0005", "0.022 (α = 0.0001)"),
    Shown("AhaKV Eq. 4", "position and attention of all rows", "falls"),
    Shown("AhaKV Eq. 5", "position and attention of the last 32 rows", "level"),
    Shown("AhaKV Fig. 2c", "kept in the first half by H2O", "most"),
    Shown("AhaKV Fig. 2c", "kept in the first half by AhaKV", "half"),
    Shown("AhaKV Fig. 2c", "kept in the first half by AhaKV, all rows", ""),
    Shown("AhaKV Fig. 2c", "kept in the first half by AhaKV without gain", ""),
    Shown("DesireKV Fig. 2", "outlier score and error at 4 bits", "strong"),
    Shown("DesireKV Fig. 3", "R² of importance and sensitivity", "0.018"),
    Shown("DesireKV Fig. 3", "Q2", "0.272"),
    Shown("DesireKV §4.3", "error of keys at 8 bits", ""),
    Shown("DesireKV §4.3", "error of keys at 4 bits", ""),
    Shown("DesireKV §4.3", "error of keys at 2 bits", ""),
)


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


def intervals(texts: Sequence[Observed], kind: str) -> dict[str, Interval]:
    """Return every figure's mean over the texts of a kind, with its bootstrap interval."""
    own = [text.figures for text in texts if text.kind == kind]
    return {name: Interval(*mean_interval([each[name] for each in own])) for name in own[0]}


def read_observed(stored: Mapping[str, Any]) -> list[Observed]:
    """Return the texts of a stored measurement."""
    return [Observed(**text) for text in stored["texts"]]


@dataclass(frozen=True)
class OutputChange:
    """One method at one budget; every figure has one value per text."""

    method: str
    budget: int | None
    figures: Mapping[str, Sequence[float]]
    """Each a mean over the fed tokens."""

    def interval(self, figure: str) -> Interval:
        """Return the mean of a figure over the texts, with its bootstrap interval."""
        return Interval(*mean_interval(self.figures[figure]))

    def difference_from(self, other: "OutputChange", figure: str) -> Interval:
        """Return a figure less another method's, text by text."""
        return Interval(*paired_difference(other.figures[figure], self.figures[figure]))


def read_changes(stored: Mapping[str, Any]) -> list[OutputChange]:
    """Return the rows of a stored measurement."""
    return [OutputChange(**row) for row in stored["rows"]]


def stored(name: str, model: str) -> dict[str, Any]:
    """Return what was measured on a model: ``observations`` or ``output_errors``."""
    return json.loads((RESULTS / f"{name}_{model}.json").read_text(encoding="utf-8"))


def stored_observations(model: str) -> list[Observed]:
    """Return the texts on which the papers' observations were repeated."""
    return read_observed(stored("observations", model))


def stored_errors(model: str) -> list[OutputChange]:
    """Return how far every method moves outputs and predictions."""
    return read_changes(stored("output_errors", model))


def with_interval(interval: Interval) -> str:
    """Write a mean and its interval with three digits."""
    return f"{interval.mean:.3g} ({interval.low:.3g} to {interval.high:.3g})"


def observations_table() -> Table:
    """Lay the papers' observations out: embedded model, and the real one's two kinds of text."""
    real = stored_observations(REAL)
    found = {
        EMBEDDED: intervals(stored_observations(EMBEDDED), "written"),
        f"{REAL}, written": intervals(real, "written"),
        f"{REAL}, novel": intervals(real, "novel"),
    }
    columns = [
        Column("paper", "source"),
        Column("figure"),
        Column("printed"),
        *(Column(name, figure_of(each), with_interval) for name, each in found.items()),
    ]
    return tabulate(OBSERVED, columns, words=3)


def figure_of(found: Mapping[str, Interval]) -> Callable[[Shown], Interval]:
    """Return what picks a row's interval."""
    return lambda row: found[row.figure]


def errors_table() -> Table:
    """Lay output errors and divergences out, method by method, at each model's budget."""
    rows = {model: stored_errors(model) for model in (EMBEDDED, REAL)}
    columns = [Column("method", "method")]
    for model, figure in ((m, f) for m in rows for f in ("entries", "output_error", "kl")):
        columns.append(Column(f"{model}: {HEADINGS[figure]}", cell_of(rows[model], figure)))
    return tabulate(rows[REAL], columns)


ByEntries = Mapping[int, Mapping[str, Any]]
"""The perplexities of a method, by the entries that may stay."""


def stored_losses() -> dict[str, ByEntries]:
    """Return the real model's perplexities by method; those that were refused are left out."""
    rows: dict[str, dict[int, Mapping[str, Any]]] = {}
    for row in stored("perplexity", REAL)["rows"]:
        if row["budget"] is not None and row["refusal"] is None:
            rows.setdefault(row["method"], {})[row["budget"]] = row
    return {**rows}


def losses_table() -> Table:
    """Lay the real model's perplexities out: the gap to the full cache's, and the loss in nats."""
    found, rows = stored("perplexity", REAL), stored_losses()
    length = round(found["mean_length"])
    budgets = {text: budget_entries(text, length) for text in found["reading"]["budgets"]}
    columns = [Column("method", lambda method: method)]
    for text, entries in budgets.items():
        columns += [
            Column(f"{text}, {entries} entries: gap", at(rows, entries), gap_text),
            Column("nats", at(rows, entries), nats_text),
        ]
    first = min(budgets.values())
    return tabulate(sorted(rows, key=lambda method: rows[method][first]["gap"]), columns)


def at(rows: Mapping[str, ByEntries], entries: int) -> Callable[[str], Mapping[str, Any]]:
    """Return what picks a method's row at a budget."""
    return lambda method: rows[method][entries]


def gap_text(row: Mapping[str, Any]) -> str:
    """Write the perplexity less the full cache's."""
    return f"{row['gap']:+.2f}"


def nats_text(row: Mapping[str, Any], sign: str = "+") -> str:
    """Write the loss over the full cache's, with its interval."""
    mean, low, high = (f"{row[name]:{sign}.3f}" for name in ("nats", "nats_low", "nats_high"))
    return f"{mean} ({low} to {high})"


HEADINGS = {"entries": "entries", "output_error": "output error", "kl": "KL, nats"}


def cell_of(rows: Sequence[OutputChange], figure: str) -> Callable[[OutputChange], str | None]:
    """Return what writes a figure of the row whose method has the same name, options aside."""
    named = {row.method.partition("@")[0]: row for row in rows}

    def cell(row: OutputChange) -> str | None:
        found = named.get(row.method.partition("@")[0])
        if found is None:
            return None
        interval = found.interval(figure)
        return f"{interval.mean:.0f}" if figure == "entries" else with_interval(interval)

    return cell


def main() -> None:
    """Print the tables."""
    for table in (losses_table(), observations_table(), errors_table()):
        print_line(table.markdown())
        print_line("")


if __name__ == "__main__":
    typer.run(main)
