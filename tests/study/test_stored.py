"""What is stored is what README and ledger say; interpretations are compared by problem."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mkdocs.exceptions import PluginError

from kvlab.fast.lab.evaluate.statistics import Interval, mean_interval
from kvlab.fast.lab.sweep.summary import TaskSummary
from kvlab.reference.proofs.ledger import ledger
from study import after_eviction, readings
from study.stored import REAL, stored_file, stored_summary
from support.site import module
from support.sweeping import made

stored_tables = module("stored_tables")


def observed(place, figures):
    kind, _, figure = figures.partition(": ")
    texts = stored_file(f"observations_{REAL}")["texts"]
    own = [each["figures"][figure] for each in texts if each["kind"] == kind]
    return vars(mean_interval(own)).values()


def output_error(place, name):
    asked = re.search(r"--model (\w+)", place.command)
    rounded = "_q4_1" if "--weights Q4_1 " in place.command else ""
    assert asked and place.where.endswith("Q4_1 stores them") == bool(rounded)
    found = stored_file(f"output_errors_{asked[1]}{rounded}")
    rows = {row["method"]: row["figures"] for row in found["rows"]}
    first, *second = (np.array(rows[each]["output_error"]) for each in name.split(" less "))
    return vars(mean_interval(list(first - sum(second)))).values()


def of_sweep(place, name):
    """Return an interval of a sweep: of a method, or of two methods' difference, text by text."""
    found = stored_summary(place.command.rpartition(" ")[2])
    written = re.search(r"([\d,]+) entries", place.where)
    budget = int(written[1].replace(",", "")) if written else None
    points = [found.point(x, budget) for x in name.split(" less ")]
    assert name == "full" or "own rule" in place.where or points[0].budget == budget, name
    if "error" in place.what or points[1:]:
        first, *second = (np.array(x.losses or x.figures["output_error"]) for x in points)
        return vars(mean_interval(list(first - sum(second)))).values()
    (point,) = points
    solved = point.interval
    shown = point.nats or Interval(solved.mean, max(0, solved.low), min(1, solved.high))
    return vars(shown).values()


@pytest.mark.parametrize(
    ("command", "rows", "figures_of"),
    [
        (f"study.observations --model {REAL}", 8, observed),
        ("study.output_errors --model", 11, output_error),
        ("kvlab sweep docs/study/results", 46, of_sweep),
    ],
)
def test_the_ledger_has_what_is_stored(command, rows, figures_of):
    found = [each for row in ledger() for each in row.measured if command in each.command]
    assert len(found) == rows
    for each in found:
        for name, figures in each.figures.items():
            stored = [float(f"{x:.3g}") for x in figures_of(each, name)]
            assert list(figures) == stored, (each.where, name)


def test_marks_of_a_page_become_tables_of_stored_results():
    page = stored_tables.on_page_markdown(Path("docs/results.md").read_text("utf-8"))
    assert "| `h2o` | **+5.7 (+3.6 to +8.9)** |" in page and not stored_tables.MARK.search(page)
    assert "| `tova@per_head=true` | 10.0 (2.8–30.1) | 0.0 (0.0–16.1) | 30.0 (10.8–" in page
    with pytest.raises(PluginError, match="must name one of inblocks, agreement, gains"):
        stored_tables.on_page_markdown("<!-- losses: study -->")


def test_lengths_give_what_was_counted():
    counted = {
        x.budget: x.after_eviction for x in stored_summary("loss_smollm2").points if x.budget
    }
    for row in after_eviction.rated("loss_smollm2"):
        assert row["after"].written() == counted[row["budget"]].written()


def test_readings_are_compared_problem_by_problem():
    """The other interpretation solves one problem more of four; its errors are each 0.1 larger."""

    def point(spec, marks, errors):
        outcomes = [mark == "1" for mark in marks]
        return made(spec, 9, solved=outcomes, kl=(1.0, 1.0, 2.0, 2.0), output_error=errors)

    default = point("h2o", "1100", (0.1, 0.2, 0.3, 0.4))
    other = point("tova", "1110", (0.2, 0.3, 0.4, 0.5))
    summary = TaskSummary("jumps", "jumps", {"70%": 9}, 210.0, (0,), (default, other), (), {})
    pair = readings.Pair("tova", "h2o", "tova")
    (row,) = readings.differences(summary, [pair])
    assert (row.budget, row.solved_default, row.solved.mean) == (9, 0.5, 0.25)
    np.testing.assert_allclose((row.output_error.mean, row.output_error.low), 0.1)
    assert (row.kl.low, row.kl.high) == (0.0, 0.0)
    refused = replace(summary, points=(default, replace(other, refusal="too small")))
    with pytest.raises(ValueError, match="tova did not run on every problem: too small"):
        list(readings.differences(refused, [pair]))
