"""Verdicts follow from paired outcomes; every contrast names methods that can run."""

import json
from dataclasses import replace

import pytest

from kvlab.fast.lab.evaluate import reproduction, study
from kvlab.fast.lab.evaluate.compare import takes_budget
from kvlab.fast.lab.evaluate.experiments import UNTESTED, Contrast, contrasts
from kvlab.fast.lab.evaluate.reproduction import (
    Outcomes,
    Reproduction,
    Verdict,
    closeness,
    judge,
    judged,
    load,
    overall,
    points,
    wanted,
)
from kvlab.reference import methods
from kvlab.reference.proofs import PAPERS
from kvlab.reference.proofs.errata import Interval


def found(ours, other, errors=((), ())):
    outcomes = tuple(
        Outcomes(spec, "70%", tuple(mark == "1" for mark in marks), own)
        for spec, marks, own in (("h2o", ours, errors[0]), ("tova", other, errors[1]))
    )
    return Reproduction(len(ours), (0,), 210.0, "reference", len(errors[0]), outcomes)


def contrast(kind="more solved"):
    return Contrast("caote", "Table 2", "better", "2, 1", "h2o", "tova", kind)


@pytest.mark.parametrize(
    ("ours", "other", "verdict"),
    [
        ("1" * 60, "1" * 20 + "0" * 40, Verdict.HOLDS),
        ("1" * 20 + "0" * 40, "1" * 60, Verdict.FAILS),
        ("10" * 30, "01" * 30, Verdict.UNDECIDED),
        ("1" * 31 + "0" * 29, "1" * 30 + "0" * 30, Verdict.UNDECIDED),
        ("0" * 60, "0" * 60, Verdict.FLOOR),
    ],
)
def test_more_solved(ours, other, verdict):
    one = judged([found(ours, other)], contrast(), "70%", level=0.99)
    assert one.verdict is verdict
    assert one.ours.mean == pytest.approx(ours.count("1") / 60)
    assert one.difference.mean == pytest.approx((ours.count("1") - other.count("1")) / 60)


def test_the_level_decides():
    ours, other = "1" * 60, "1" * 55 + "0" * 5
    strict = judged([found(ours, other)], contrast(), "70%", level=0.9999)
    lenient = judged([found(ours, other)], contrast(), "70%", level=0.95)
    assert strict.verdict is Verdict.UNDECIDED and lenient.verdict is Verdict.HOLDS


def test_smaller_errors_are_better():
    errors = tuple(0.1 + 0.001 * i for i in range(20)), tuple(0.2 + 0.002 * i for i in range(20))
    smaller = judged([found("1", "1", errors)], contrast("smaller error"), "70%", 0.99)
    larger = judged([found("1", "1", errors[::-1])], contrast("smaller error"), "70%", 0.99)
    assert smaller.verdict is Verdict.HOLDS and larger.verdict is Verdict.FAILS
    assert smaller.difference.mean < 0 < larger.difference.mean


def test_close_is_within_ten_points():
    assert closeness(Interval(0.0, -0.05, 0.05)) is Verdict.HOLDS
    assert closeness(Interval(0.0, -0.15, 0.05)) is Verdict.UNDECIDED
    assert closeness(Interval(-0.4, -0.5, -0.3)) is Verdict.FAILS


def test_verdicts_at_several_budgets():
    assert overall([Verdict.HOLDS, Verdict.UNDECIDED]) is Verdict.HOLDS
    assert overall([Verdict.FLOOR, Verdict.FAILS]) is Verdict.FAILS
    assert overall([Verdict.HOLDS, Verdict.FAILS]) is Verdict.BOTH
    assert overall([Verdict.FLOOR, Verdict.UNDECIDED]) is Verdict.UNDECIDED
    assert overall([Verdict.FLOOR, Verdict.FLOOR]) is Verdict.FLOOR


def test_every_contrast_compares_two_methods_that_can_be_built():
    for each in contrasts():
        assert each.paper in PAPERS and each.ours != each.other
        for spec in (each.ours, each.other):
            methods.get(spec, 150 if takes_budget(spec) else None)
    assert {each.paper for each in contrasts()} == {each.paper for each in UNTESTED} == set(PAPERS)


def test_the_committed_results_hold_everything_that_is_wanted():
    stored = load()
    for spec, budget in wanted():
        assert len(stored.of(spec, budget).solved) == stored.problems
    assert all(stored.of("full", None).solved)
    judgements = judge([stored])
    assert len(judgements) == len(list(contrasts()))
    assert sum(reproduction.counts(judgements).values()) == len(judgements)
    assert [len(each) for each in judgements] == [len(list(points(c))) for c in contrasts()]


def test_the_first_source_that_knows_both_methods_decides():
    few, many = found("10" * 5, "01" * 5, ((0.1, 0.2), (0.3, 0.4))), found("1" * 60, "0" * 60)
    lacking = replace(many, outcomes=many.outcomes[:1])
    assert judged([lacking, many, few], contrast(), "70%", 0.99).problems == 60
    assert judged([lacking, few, many], contrast(), "70%", 0.99).problems == 10
    errors = judged([many, few], contrast("smaller error"), "70%", 0.99)
    assert errors.problems == 2 and errors.ours.mean == pytest.approx(0.15)
    with pytest.raises(KeyError):
        judged([lacking], contrast(), "70%", 0.99)


def test_the_study_decides_what_it_knows():
    summary, stored = study.outcomes(), load()
    assert len(summary.of("full", None).solved) == summary.problems > stored.problems
    contrasted = [each for several in judge([summary, stored]) for each in several]
    from_study = [each for each in contrasted if each.problems == summary.problems]
    assert len(from_study) >= len(contrasted) / 4
    assert {each.contrast.paper for each in from_study} == set(PAPERS)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.json does not exist"):
        load(tmp_path / "nothing.json")


def test_measuring_resumes_and_refuses_another_run(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduction, "wanted", lambda: [("full", None), ("h2o", "70%")])
    out = tmp_path / "found.json"
    reproduction.measure(problems=2, seed=0, measured=2, out=out)
    first = out.read_text()
    reproduction.measure(problems=2, seed=0, measured=2, out=out)
    assert out.read_text() == first
    stored = json.loads(first)
    assert stored["outcomes"][0]["solved"] == "11"
    assert len(stored["outcomes"][1]["errors"]) == 2 and stored["outcomes"][0]["errors"] == []
    with pytest.raises(ValueError, match="holds another run"):
        reproduction.measure(problems=3, seed=0, measured=2, out=out)
