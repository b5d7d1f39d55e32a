"""Verdicts follow from paired outcomes; every contrast names methods that can run."""

from dataclasses import asdict, replace

import pytest

from kvlab.fast.lab.evaluate.statistics import Interval, wilson
from kvlab.fast.lab.sweep.plan import make_plan, read_sweep
from kvlab.fast.lab.sweep.run import read_stored
from kvlab.fast.lab.sweep.summary import Point, TaskSummary
from kvlab.reference import methods
from kvlab.reference.methods import takes_budget
from kvlab.reference.proofs import PAPERS
from study import contrasts as module
from study import readings
from study.contrasts import (
    FIGURES,
    RESULTS,
    Contrast,
    Verdict,
    closeness,
    contrasts,
    counts,
    judge,
    judge_one,
    overall,
    stored_summary,
    untested,
)


def point(spec, marks, errors):
    solved = tuple(mark == "1" for mark in marks)
    share = sum(solved) / len(solved)
    interval = Interval(share, *wilson(sum(solved), len(solved)))
    figures = {"output_error": errors} if errors else {}
    facts = {"solved": share, "interval": interval, "outcomes": solved, "figures": figures}
    return Point(method=spec, budget=9, problems=len(solved), wanted=len(solved), **facts)


def found(ours, other, errors=((), ())):
    points = (point("h2o", ours, errors[0]), point("tova", other, errors[1]))
    return TaskSummary("reasoner", "reasoning", {"70%": 9}, 210.0, (0,), points, (), {})


def contrast(kind="more solved"):
    return Contrast("caote", "Table 2", "better", "2, 1", "h2o", "tova", kind, "study")


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
    one = judge_one(found(ours, other), contrast(), "70%", level=0.99)
    assert one.verdict is verdict
    assert one.ours.mean == pytest.approx(ours.count("1") / 60)
    assert one.difference.mean == pytest.approx((ours.count("1") - other.count("1")) / 60)


def test_the_level_decides():
    ours, other = "1" * 60, "1" * 55 + "0" * 5
    strict = judge_one(found(ours, other), contrast(), "70%", level=0.9999)
    lenient = judge_one(found(ours, other), contrast(), "70%", level=0.95)
    assert strict.verdict is Verdict.UNDECIDED and lenient.verdict is Verdict.HOLDS


def test_smaller_errors_are_better():
    errors = tuple(0.1 + 0.001 * i for i in range(20)), tuple(0.2 + 0.002 * i for i in range(20))
    smaller = judge_one(found("1", "1", errors), contrast("smaller error"), "70%", 0.99)
    larger = judge_one(found("1", "1", errors[::-1]), contrast("smaller error"), "70%", 0.99)
    assert smaller.verdict is Verdict.HOLDS and larger.verdict is Verdict.FAILS
    assert smaller.difference.mean < 0 < larger.difference.mean


def test_a_contrast_may_name_its_budgets():
    assert tuple(contrast().budgets) == ("70%", "85%")
    assert replace(contrast(), budgets=["50%"]).budgets == ["50%"]
    assert tuple(replace(contrast(), task="jumps", budgets=()).budgets) == ("30%", "50%")
    assert replace(contrast(), ours="full", other="kivi", budgets=()).budgets == (None,)


@pytest.mark.parametrize(
    "name", sorted({each.results for each in contrasts() if each.kind in FIGURES} - {"ablations"})
)
def test_likelihoods_and_needles_are_paired(name):
    summary = stored_summary(name)
    assert len({point.problems for point in summary.points if point.refusal is None}) == 1
    used = [each for each in contrasts() if each.results == name]
    for each in used:
        for budget in each.budgets:
            judged = judge_one(summary, each, budget, 0.95)
            assert judged.problems == summary.points[0].problems
            assert judged.difference.mean == pytest.approx(judged.ours.mean - judged.other.mean)
    assert len(used) >= 3


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


@pytest.fixture(scope="module")
def ablations():
    return stored_summary("ablations")


@pytest.fixture(scope="module")
def judgements():
    """Judge every contrast once: some hundred bootstraps, of few samples each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RESAMPLES", 400)
        return judge()


def test_every_contrast_compares_two_methods_that_can_be_built():
    for each in contrasts():
        assert each.paper in PAPERS and each.ours != each.other
        for spec in (each.ours, each.other):
            methods.get(spec, 150 if takes_budget(spec) else None)
    assert (
        {each.paper for each in contrasts()} == {each.paper for each in untested()} == set(PAPERS)
    )


@pytest.mark.parametrize("name", ["ablations", "jump_ablations"])
def test_the_ablations_are_of_methods_that_a_contrast_names(name):
    sweep = read_sweep(RESULTS / name / "sweep.toml")
    assert set(sweep.methods) <= {spec for each in contrasts() for spec in (each.ours, each.other)}
    stored = read_stored(RESULTS / name)
    assert stored.plan == make_plan(sweep)
    assert stored.missing() == []


def test_the_committed_results_hold_everything_that_is_wanted(ablations, judgements):
    (problems,) = {len(each.outcomes) for each in ablations.points}
    assert problems == 200
    assert all(ablations.point_at("full", None).outcomes)
    assert len(judgements) == len(contrasts())
    assert sum(counts(judgements).values()) == len(judgements)
    assert [len(each) for each in judgements] == [len(c.budgets) for c in contrasts()]


def test_a_contrast_is_judged_by_the_results_that_it_names(ablations):
    each = next(each for each in contrasts() if each.results == "ablations")
    (judged,) = (judged for judged in judge(each.paper) if judged[0].contrast == each)
    assert judged[0].problems == len(ablations.points[0].outcomes)
    lacking = replace(ablations, points=ablations.points[:0])
    with pytest.raises(KeyError):
        judge_one(lacking, each, each.budgets[0], 0.99)


def test_a_contrast_on_a_model_is_measured_on_that_model():
    for each in contrasts():
        summary = stored_summary(each.results)
        assert (summary.model == "smollm2") == (each.task == "smollm2")
        if not (RESULTS / f"{each.results}.json").exists() and each.task != "smollm2":
            assert summary.task.partition("@")[0] == each.task


def test_without_protection_neither_h2o_nor_caote_solves_a_program():
    """README and docs/index.md say so, beside what CAOTE gains where the newest half is safe."""
    points = [
        each for each in stored_summary("study").points if each.method.endswith("h2o@recent=0")
    ]
    assert {each.method for each in points} == {"h2o@recent=0", "caote:h2o@recent=0"}
    assert not any(any(each.outcomes) for each in points)


def test_both_studies_decide_what_they_know(ablations, judgements):
    first = stored_summary("arithmetic")
    problems = len(first.point_at("full", None).outcomes)
    assert problems > len(ablations.point_at("full", None).outcomes)
    judged = [each for several in judgements for each in several]
    contrasted = [each for each in judged if each.contrast.task != "smollm2"]
    from_first = [each for each in contrasted if each.problems == problems]
    assert len(from_first) >= len(contrasted) / 6
    assert {each.contrast.paper for each in from_first} == set(PAPERS)
    on_jumps = [each for each in contrasted if each.contrast.task == "jumps"]
    study = stored_summary("study").point_at("full", None)
    assert {each.problems for each in on_jumps} == {len(study.outcomes), 200}
    assert {each.contrast.paper for each in on_jumps} >= {"lazy_eviction", "caote", "ahakv"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"paper": "h2o"}, "paper = 'h2o' must be one of"),
        ({"task": "needle"}, "task = 'needle' must be one of 'reasoning', 'jumps'"),
        ({"kind": "more"}, "kind = 'more' must be one of 'more solved'"),
        ({"other": "h2o"}, "ours = 'h2o' must differ from other"),
    ],
)
def test_a_wrong_contrast_is_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        replace(contrast(), **changed)


@pytest.mark.parametrize("written", [{}, {"paper": "caote", "plan": "x"}])
def test_a_wrong_key_is_named(written, monkeypatch):
    complete = asdict(contrast())
    monkeypatch.setattr(module.tomllib, "loads", lambda text: {"contrasts": [complete, written]})
    read = module.read_tables(Contrast, "contrasts")
    assert next(read) == contrast()
    with pytest.raises(ValueError, match=r"contrasts number 2: missing or unknown: .*kind"):
        next(read)


# --- readings ------------------------------------------------------------------------------------


def test_readings_are_compared_problem_by_problem():
    """The other reading solves one problem more of four; its errors are 0.1 larger on each."""
    default, other = point("h2o", "1100", (0.1, 0.2, 0.3, 0.4)), point("tova", "1110", ())
    kl = (1.0, 1.0, 2.0, 2.0)
    default = replace(default, figures={**default.figures, "kl": kl})
    other = replace(other, figures={"output_error": (0.2, 0.3, 0.4, 0.5), "kl": kl})
    summary = replace(found("1", "1"), points=(default, other))
    pair = readings.Pair("tova", "h2o", "tova")
    (row,) = readings.differences(summary, [pair])
    assert (row.budget, row.solved_default, row.solved.mean) == (9, 0.5, 0.25)
    assert (row.output_error.mean, row.output_error.low) == pytest.approx((0.1, 0.1))
    assert (row.kl.low, row.kl.high) == (0.0, 0.0)
    refused = replace(summary, points=(default, replace(other, refusal="too small")))
    with pytest.raises(ValueError, match="tova did not run on every problem: too small"):
        list(readings.differences(refused, [pair]))
