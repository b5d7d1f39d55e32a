"""The checker: what it takes, what it refuses, what counts as equal, and what it says."""

import json
import tomllib
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from kvlab.reference.conformance import Expected, Status, check, difference, published
from kvlab.reference.conformance.expecting import keep, near_threshold, numbers
from kvlab.reference.conformance.implementation import Functions
from kvlab.reference.conformance.report import FLAGS, judged, read_xfails, to_plain
from kvlab.reference.conformance.vectors import compared
from kvlab.reference.selection import keep_set
from support.kernels import Answering
from support.refused import refused


def right(scores, safe, room):
    return keep_set(scores.astype(float), safe, room)


def wrong_side(scores, safe, room):
    n = scores.shape[1]
    return np.sort(n - 1 - keep_set(scores[:, ::-1].astype(float), safe[:, ::-1], room), axis=-1)


def test_only_what_is_offered_is_tested_and_a_right_function_passes():
    report = check(None, {"keep_set": right})
    report.raise_for_failures()
    assert report.passed and "h2o.run" in report.not_offered
    assert report.count(Status.FAILED) == report.count(Status.NOT_TESTED) == 0
    assert {group.target for group in report.groups} == {"keep_set"}


def test_a_wrong_one_fails_where_it_is_wrong_and_a_small_case_shows_it():
    report = check("keep_set", wrong_side, exclude=["pairs"])
    failed = {group.group for group in report.groups if group.count(Status.FAILED)}
    assert failed == {"ties", "signed_zero"}
    smallest = report.failures()[0].smallest
    assert smallest is not None and smallest.case.inputs["scores"].shape == (1, 2)
    assert smallest.case.parameters["room"] == 1
    with pytest.raises(AssertionError, match=r"(?s)5 cases failed.*stresses equal.*smallest: keep"):
        report.raise_for_failures()


def test_steps_of_a_method_are_given_by_name_and_patterns_stand_for_all():
    def score(accumulated):
        return accumulated

    listed = {"exclude": ["options", "option_pairs"]}
    assert check("h2o", {"score": score}, **listed).passed
    assert check("h2o.score", score, **listed).passed
    report = check(None, {"*.score": score}, groups=["plain"], minimise=False)
    assert len(report.groups) > 8
    assert not report.passed


def test_what_is_not_implemented_is_not_tested_and_nothing_tested_is_no_success():
    def score(accumulated, reduce, window, mine=None):
        if window or reduce != mine:  # H2O has no window
            raise NotImplementedError("mean alone")
        return accumulated

    report = check("h2o.score", partial(score, mine="mean"), exclude=["option_pairs"])
    assert report.passed
    assert report.count(Status.NOT_TESTED)
    report = check("h2o.score", score)
    assert not report.passed
    with pytest.raises(AssertionError, match="nothing was tested"):
        report.raise_for_failures()


@refused(__file__)
def test_bad_input_is_refused(bad, message):
    with pytest.raises((ValueError, TypeError), match=message):
        eval(f"check({bad})")


def test_a_method_asks_for_what_it_is_not_given():
    report = check("h2o.score", lambda gradients: gradients, groups=["plain"], minimise=False)
    assert "asks for 'gradients'; h2o.score offers" in report.failures()[0].reason


def test_what_has_the_name_of_an_output_may_be_changed_in_place():
    def observe(attention, accumulated, reduce):
        if reduce != "mean":
            raise NotImplementedError
        accumulated += attention.mean(axis=1).sum(axis=1)
        return accumulated

    check("h2o.observe", observe).raise_for_failures()


def test_an_answer_that_is_remembered_by_the_address_of_its_input_is_wrong():
    remembered = {}

    def kept(scores, safe, room):
        return remembered.setdefault(scores.ctypes.data, right(scores, safe, room))

    assert not check("keep_set", kept, minimise=False).passed


# --- comparing -----------------------------------------------------------------------------------


TWO = np.array([1.0, 2.0])
EITHER = numbers(np.array([[0.1, 0.5, 0.5 + 1e-12, 0.9]]))
EXPECTED = {
    "two": numbers(TWO),
    "first": numbers(TWO, where=np.array([True, False])),
    "infinite": numbers(np.array([np.inf, 1.0])),
    "zero": numbers(np.zeros(2)),
    "far": Expected("exact", np.array([70001, 70003])),
    "either": keep(np.array([[1, 3]]), EITHER, np.ones((1, 4), dtype=bool)),
    "keep": Expected("keep", np.array([[1, 3, 120]])),
    "most": Expected("at_most", np.array([1000, 1000])),
}
ROWS = tomllib.loads(Path(__file__).with_name("equal.toml").read_text(encoding="utf-8"))["row"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['expected']} {row['found']}")
def test_what_counts_as_equal_and_the_margin_that_is_left(row):
    expected, found = EXPECTED[row["expected"]], np.array(row["found"], row.get("dtype"))
    if "off" in row:
        found[-1] += row["off"] * expected.tolerance["float32"][1] * found[-1]
    reason, margin = compared(expected, found, row.get("precision", "float32"))
    assert reason is None if "said" not in row else row["said"] in str(reason)
    if "precision" not in row:
        assert margin == pytest.approx(row.get("left"), abs=1e-3)


def test_scores_that_differ_leave_no_choice_and_of_near_ties_the_later_is_expected():
    scores = np.array([[0.1, 0.5, 0.6, 0.9]])
    kept = scores > 0.5
    assert not near_threshold(scores, np.ones_like(kept), kept, (0.0, 1e-6)).any()
    assert near_threshold(scores, np.ones_like(kept), kept, (0.1, 0.0))[0, 1:3].all()
    np.testing.assert_array_equal(EXPECTED["either"].value, [[2, 3]])


def test_wrong_marks_are_told_by_call_row_layer_and_head():
    value = np.zeros((3, 1, 2, 2, 5), bool)
    value[..., 1:3] = True
    found = value.copy()
    found[1, 0, 1, 0] = [True, False, True, False, True]
    axes = ("calls", "N", "layers", "G", "t")
    assert difference(Expected("exact", value), found, "float32", axes) == (
        "differs first in call 1, row 0, layer 1, KV head 0 (counted from 0), "
        "which holds [0, 4] wrongly, and lacks [1]; 1 of 12 such sets are wrong"
    )
    assert difference(Expected("exact", value, where=value), found | value, "float32", axes) is None


# --- small cases ---------------------------------------------------------------------------------


def error(h, values, fast, norm):
    mean = h @ values
    distance = np.linalg.norm(mean[:, :, None] - values[:, None], axis=-1)
    return h / (1.01 - h) * distance


@pytest.mark.parametrize(
    ("target", "function", "name", "most"),
    [
        ("eviction_error", error, "h", 16),
        ("dequantize", lambda codes: 0.0 * codes, "codes", 4),
        ("quantize_dequantize", lambda x: np.round(x), "x", 8),
        ("h2o.score", lambda accumulated: 2 * accumulated, "keys", 40),
        ("tova.select", lambda positions: np.zeros((1, 1), int), "keys", 60),
    ],
)
def test_small_cases_of_every_kind_are_found(target, function, name, most):
    group = next(case.group for case in published() if case.target == target)
    smallest = check(target, function, groups=[group]).failures()[0].smallest
    assert smallest is not None and smallest.case.target == target
    assert smallest.case.inputs[name].size <= most


def test_the_smallest_failure_has_the_calls_up_to_the_first_wrong_one():
    def wrong_from_the_third_call_on(case):
        kept = case.expected["kept"].value.copy()
        kept[2:] = ~kept[2:]
        return {"kept": kept, "logits": case.expected["logits"].value}

    late = Answering(wrong_from_the_third_call_on)
    failure = check("h2o.whole_cache", late, groups=["cache_budgets"]).failures()[0]
    assert failure.smallest is not None
    calls, tokens = (failure.smallest.case.inputs[name] for name in ("calls", "tokens"))
    assert len(calls) == 3 and tokens.shape[1] == calls.sum()
    assert failure.smallest.reason.startswith("kept differs first in call 2")


# --- reports -------------------------------------------------------------------------------------


def test_survivors_are_compared_before_numbers():
    case = next(case for case in published() if case.target == "tova.run")
    answer = {name: each.value for name, each in case.expected.items()}
    wrong = {**answer, "output": answer["output"] + 1, "present": ~answer["present"]}
    report = check("tova.run", lambda **given: wrong, groups=[case.group], minimise=False)
    assert report.failures()[0].reason.startswith("present differs first in block 0, KV head 0")


def test_reports_as_json():
    report = check("keep_set", wrong_side, exclude=["pairs"])
    plain = json.loads(json.dumps(to_plain(report), allow_nan=False))
    assert plain["cases"]["failed"] == 5 and not plain["passed"]
    groups = {group["group"]: group for group in plain["groups"]}
    assert groups["plain"]["first_failure"] is None
    assert set(groups["ties"]["first_failure"]["smallest"]["inputs"]) == {"scores", "safe"}
    assert groups["ties"]["about"]["thread"].startswith("https://")
    told = groups["ties"]["first_failure"]
    assert told["flag"] == "may" and told["why"] == FLAGS["equal_scores"]["why"]
    assert groups["plain"]["margin"] is None
    assert judged(report, {}, ["equal_scores"]).passed and judged(report, {}) == report


def test_a_group_reports_its_least_margin():
    """A tenth of the tolerance is left of all cases of pooling, less of one."""

    def near(case):
        (expected,) = case.expected.values()
        absolute, relative = expected.tolerance["float32"]
        used = 0.95 if case.name == "pool/plain/1" else 0.9
        value = expected.value.astype(np.float64)
        return {"pooled": value + used * (absolute + relative * np.abs(value))}

    report = to_plain(check("pool", Answering(near, "pool")))
    told = {each["group"]: each["margin"] for each in report["groups"]}
    assert told.pop("plain") == pytest.approx(0.05, abs=1e-3)
    assert all(each == pytest.approx(0.1, abs=1e-3) for each in told.values())


def test_a_known_failure_is_expected_and_an_unexpected_pass_fails(tmp_path):
    def too_many(scores, safe, room):
        return keep_set(scores.astype(float), safe, room + (room == 0))

    listed = tmp_path / "kvlab-xfails.txt"
    listed.write_text("# comment\n\nkeep_set/no_room/*  # one too many\nplain # wrong\n")
    checked = check(
        "keep_set", Functions({"keep_set": too_many}), minimise=False, exclude=["pairs"]
    )
    report = judged(checked, read_xfails(listed))
    found = {group.group: group.outcomes[0].status for group in report.groups}
    assert found["no_room"] == Status.EXPECTED and found["ties"] == Status.PASSED
    assert found["plain"] == Status.FAILED and not report.passed
    told = {each["group"]: each["first_failure"] for each in to_plain(checked)["groups"]}
    assert told["no_room"]["flag"] == "must" and told["no_room"]["why"] is None
    assert "remove it from the list" in report.failures()[0].reason
    report = judged(checked, {"keep_set/no_room/*": "one too many"})
    assert report.passed
    listed.write_text("plain\n")
    with pytest.raises(ValueError, match="must end in a reason"):
        read_xfails(listed)
