"""What lies in the package is what the documentation and the ledger say."""

import re
from pathlib import Path

import pytest

from kvlab.fast.lab.evaluate.statistics import Interval, mean_interval
from kvlab.reference.proofs.ledger import ledger
from study.contrasts import REAL, stored_summary
from study.side_by_side import (
    EMBEDDED,
    errors_table,
    intervals,
    losses_table,
    nats,
    observations_table,
    spread,
    stored,
    stored_errors,
    stored_observations,
)

PAGE = (Path(__file__).parents[2] / "docs" / "evaluate.md").read_text(encoding="utf-8")
MEASURED = [(row.place, each) for row in ledger() for each in row.measured]


def entries_of(where):
    (number,) = re.findall(r"([\d,]+) entries", where)
    return int(number.replace(",", ""))


def rounded(interval):
    return [float(f"{x:.3g}") for x in (interval.mean, interval.low, interval.high)]


def mean_of(point, figure):
    return Interval(*mean_interval(point.figures[figure]))


@pytest.mark.parametrize("table", [losses_table, observations_table, errors_table])
def test_the_page_has_the_table(table):
    assert table().markdown() in PAGE


def test_cells_are_means_of_what_is_stored():
    table = observations_table()
    row = next(row for row in table.rows if row[1] == "MRI > 1, α = 0.0005")
    shares = [text.figures["MRI > 1, α = 0.0005"] for text in stored_observations(EMBEDDED)]
    assert str(row[3]).startswith(f"{sum(shares) / len(shares):.3g} (")
    kl = {each.method: mean_of(each, "kl") for each in stored_errors(REAL)}
    shown = {row[0]: row[-1] for row in errors_table().rows}
    assert shown == {method: spread(interval) for method, interval in kl.items()}
    assert spread(Interval(0.12345, 0.1, 1234.5)) == "0.123 (0.1 to 1.23e+03)"


def test_the_ledger_has_the_stored_observations():
    rows = [each for _, each in MEASURED if "study.observations" in each.command]
    found = stored_observations(REAL)
    for each in rows:
        assert f"--model {REAL}" in each.command and REAL in each.where
        for name, figures in each.figures.items():
            kind, _, figure = name.partition(": ")
            assert list(figures) == rounded(intervals(found, kind)[figure])
    assert len(rows) >= 4


def test_the_ledger_has_the_stored_errors():
    rows = [each for _, each in MEASURED if "study.output_errors" in each.command]
    found = {row.method: row for row in stored_errors(REAL)}
    for each in rows:
        for method, figures in each.figures.items():
            assert list(figures) == rounded(mean_of(found[method], "output_error"))
    assert rows


def test_the_ledger_has_the_stored_losses():
    rows = [each for _, each in MEASURED if f"perplexity --model {REAL}" in each.command]
    stored_rows = stored(f"perplexity_{REAL}")["rows"]
    for each in rows:
        budget = entries_of(each.where)
        found = {row["method"]: row for row in stored_rows if row["budget"] == budget}
        for method, figures in each.figures.items():
            row = found[method]
            assert list(figures) == rounded(nats(row))
    assert len(rows) == 2


def test_the_ledger_has_the_stored_needles():
    rows = [each for _, each in MEASURED if "results/needle" in each.command]
    for each in rows:
        found = stored_summary(each.command.rpartition(" ")[2])
        budget = entries_of(each.where)
        for method, figures in each.figures.items():
            assert list(figures) == rounded(found.point(method, budget).interval)
    assert len(rows) == 4
