"""What is stored is what README and ledger say; readings are compared problem by problem."""

import re
from dataclasses import replace

import numpy as np
import pytest

from kvlab.fast.lab.evaluate.statistics import mean_interval
from kvlab.fast.lab.sweep.summary import Point, TaskSummary
from kvlab.reference.proofs.ledger import ledger
from study import readings
from study.stored import REAL, nats, stored_file, stored_summary


def observed(place, figures):
    kind, _, figure = figures.partition(": ")
    texts = stored_file(f"observations_{REAL}")["texts"]
    return mean_interval([each["figures"][figure] for each in texts if each["kind"] == kind])


def output_error(place, method):
    rows = {row["method"]: row for row in stored_file(f"output_errors_{REAL}")["rows"]}
    return mean_interval(rows[method]["figures"]["output_error"])


def loss(place, method):
    rows = stored_file(f"perplexity_{REAL}")["rows"]
    (row,) = (row for row in rows if (row["spec"], row["budget"]) == (method, entries(place)))
    return vars(nats(row)).values()


def needles(place, method):
    found = stored_summary(place.command.rpartition(" ")[2])
    return vars(found.point(method, entries(place)).interval).values()


def drafted(place, name):
    (point,) = (
        point
        for point in stored_summary(place.command.rpartition(" ")[2]).points
        if point.method == name.partition(": ")[2]
    )
    return vars(point.accepted).values()


def entries(place):
    (number,) = re.findall(r"([\d,]+) entries", place.where)
    return int(number.replace(",", ""))


@pytest.mark.parametrize(
    ("command", "rows", "figures_of"),
    [
        (f"study.observations --model {REAL}", 8, observed),
        (f"study.output_errors --model {REAL}", 1, output_error),
        (f"perplexity --model {REAL}", 2, loss),
        ("results/needle", 4, needles),
        ("results/papers", 8, drafted),
    ],
)
def test_the_ledger_has_what_is_stored(command, rows, figures_of):
    found = [each for row in ledger() for each in row.measured if command in each.command]
    assert len(found) == rows
    for each in found:
        for name, figures in each.figures.items():
            assert list(figures) == [float(f"{x:.3g}") for x in figures_of(each, name)]


def test_without_protection_neither_h2o_nor_caote_solves_a_program():
    """Errata and ledger say so, beside what CAOTE gains where the newest half is safe."""
    points = [p for p in stored_summary("study").points if p.method.endswith("h2o@recent=0")]
    assert {each.method for each in points} == {"h2o@recent=0", "caote:h2o@recent=0"}
    assert not any(any(each.outcomes) for each in points)


def test_readings_are_compared_problem_by_problem():
    """The other reading solves one problem more of four; its errors are 0.1 larger on each."""

    def point(spec, marks, errors):
        outcomes = tuple(mark == "1" for mark in marks)
        figures = {"kl": (1.0, 1.0, 2.0, 2.0), "output_error": errors}
        facts = {"outcomes": outcomes, "figures": figures}
        return Point(method=spec, budget=9, problems=4, **facts)

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
