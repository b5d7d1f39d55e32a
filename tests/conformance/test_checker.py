"""The checker: what it takes, what it refuses, and what it says."""

import json
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from kvlab.reference.conformance import Status, check, published
from kvlab.reference.conformance.case import Expected, Tolerance
from kvlab.reference.conformance.expecting import difference, keep, near_threshold, numbers
from kvlab.reference.conformance.minimise import minimised, reductions
from kvlab.reference.conformance.report import to_junit, to_plain
from kvlab.reference.conformance.targets import OPERATIONS
from kvlab.reference.selection import keep_set


def right(scores, safe, room):
    return keep_set(scores.astype(float), safe, room)


def wrong_side(scores, safe, room):
    n = scores.shape[1]
    return np.sort(n - 1 - keep_set(scores[:, ::-1].astype(float), safe[:, ::-1], room), axis=-1)


def test_a_right_function_passes():
    report = check("keep_set", right)
    assert report.passed
    assert report.count(Status.FAILED) == report.count(Status.NOT_TESTED) == 0
    report.raise_for_failures()


def test_a_wrong_one_fails_where_it_is_wrong_and_is_made_small():
    report = check("keep_set", wrong_side)
    failed = {group.group for group in report.groups if group.count(Status.FAILED)}
    assert failed == {"ties", "signed_zero"}
    smallest = report.failures()[0].smallest
    assert smallest is not None
    assert smallest.case.inputs["scores"].shape == (1, 2)
    with pytest.raises(AssertionError, match=r"(?s)5 cases failed.*smallest: keep"):
        report.raise_for_failures()


def test_only_what_is_offered_is_tested():
    report = check(None, {"keep_set": right})
    assert "h2o.run" in report.not_offered
    assert {group.target for group in report.groups} == {"keep_set"}


def test_steps_of_a_method_are_given_by_name_and_patterns_stand_for_all():
    def score(accumulated):
        return accumulated

    assert check("h2o", {"score": score}).passed
    assert check("h2o.score", score).passed
    report = check(None, {"*.score": score}, groups=["plain"], minimise=False)
    assert len(report.groups) > 8
    assert not report.passed


def test_what_is_not_implemented_is_not_tested():
    def score(accumulated, reduce):
        if reduce != "mean":
            raise NotImplementedError("mean alone")
        return accumulated

    report = check("h2o.score", score)
    assert report.passed
    assert report.count(Status.NOT_TESTED) > 0


def test_nothing_tested_is_no_success():
    def score(accumulated):
        raise NotImplementedError

    report = check("h2o.score", score)
    assert not report.passed
    with pytest.raises(AssertionError, match="nothing was tested"):
        report.raise_for_failures()


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda scores: None, "an array was expected, got NoneType"),
        (lambda scores: scores[:, :6] + 0.3, "no whole numbers"),
        (lambda scores: scores, "has the shape"),
        (lambda scores: {"kept": scores}, "'kept' is no output"),
        (lambda scores: 1 / 0, "ZeroDivisionError"),
        (lambda scores: {}, "keep was not returned"),
        (lambda scores: sys.exit(0), "SystemExit: 0"),
        (lambda scores: scores[:, :6] * np.inf, "no whole numbers"),
    ],
)
def test_whatever_a_kernel_does_is_reported(returned, said):
    def function(scores, safe, room):
        return returned(scores)

    report = check("keep_set", function, groups=["no_room"], minimise=False)
    assert said in report.failures()[0].reason


@pytest.mark.parametrize(
    ("method", "implementation", "options", "said"),
    [
        ("keepset", right, {}, "target = 'keepset' must be one of attend"),
        ("attend", {"keep_set": right}, {}, "offers none of attend"),
        ("h2o", right, {}, "a function alone needs a target"),
        (None, {"score": right}, {}, "target = 'score' needs a method"),
        ("h2o", {"score": 3}, {}, "must be a function, got 3"),
        ("h3o", {"score": right}, {}, "unknown method 'h3o'"),
        ("keep_set", lambda scores, values: 0, {}, "asks for 'values'; keep_set offers"),
        ("keep_set", lambda *inputs: 0, {}, "implementation of 'keep_set' must .* got .inputs"),
        ("keep_set", max, {}, "implementation of 'keep_set' must have a signature"),
        (None, {"*.score": max}, {}, "implementation of '.*score' must have a signature"),
        ("keep_set", lambda scores, /: 0, {}, "got the positional 'scores'"),
        ("keep_set", 3, {}, "must be a function or functions by target"),
        ("keep_set", right, {"groups": ["tie"]}, "group = 'tie' must be one of"),
        ("keep_set", right, {"precision": "fp8"}, "precision = 'fp8' must be one of"),
        ("keep_set", right, {"arrays": "no_such_library"}, "cannot be imported"),
        ("keep_set", right, {"arrays": "json"}, "must be a module with asarray"),
    ],
)
def test_bad_input_is_refused(method, implementation, options, said):
    with pytest.raises((ValueError, TypeError), match=said.replace("(", r"\(")):
        check(method, implementation, **options)


def test_a_method_asks_for_what_it_is_not_given():
    report = check("h2o.score", lambda gradients: gradients, groups=["plain"], minimise=False)
    assert "asks for 'gradients'; h2o.score offers" in report.failures()[0].reason


# --- other arrays --------------------------------------------------------------------------------


def attend_with(library):
    """Return attention in operations that NumPy and PyTorch share."""

    def attend(queries, keys, values, positions, query_positions, softcap):
        logits = queries @ keys[:, None].swapaxes(-1, -2) / queries.shape[-1] ** 0.5
        if softcap is not None:
            logits = softcap * library.tanh(logits / softcap)
        visible = positions[:, None, None, :] <= query_positions[None, None, :, None]
        logits = library.where(visible, logits, -1e30)
        weights = library.exp(logits - library.amax(logits, -1)[..., None])
        return (weights / weights.sum(-1)[..., None]) @ values[:, None]

    return attend


def test_numpy_and_torch_arrays():
    torch = pytest.importorskip("torch")
    assert check("attend", attend_with(np)).passed
    assert check("attend", attend_with(torch), arrays="torch", device="cpu").passed


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_half_precision_has_its_own_tolerance_and_leaves_out_what_is_not_exact(precision):
    torch = pytest.importorskip("torch")
    half = getattr(torch, precision)

    def attend(queries, keys, values, positions, query_positions, softcap):
        narrow = (x.to(half) for x in (queries, keys, values))
        wide = (x.float() for x in narrow)
        return attend_with(torch)(*wide, positions, query_positions, softcap).to(half)

    report = check("attend", attend, arrays="torch", precision=precision)
    report.raise_for_failures()
    untested = {group.group for group in report.groups if group.count(Status.NOT_TESTED)}
    assert untested == {"float32_inputs"}
    assert not check("attend", attend, arrays="torch", minimise=False).passed


# --- comparing -----------------------------------------------------------------------------------


TWO = numbers(np.array([1.0, 2.0]))
ALLOWED = TWO.tolerance["float32"].relative * 2
FIRST = numbers(np.array([1.0, 2.0]), where=np.array([True, False]))
INFINITE = numbers(np.array([np.inf, 1.0]))
FAR = Expected("exact", np.array([70001, 70003]))


@pytest.mark.parametrize(
    ("expected", "found", "precision", "fine"),
    [
        (TWO, [1.0, 2.0 + 0.9 * ALLOWED], "float32", True),
        (TWO, [1.0, 2.0 + 1.2 * ALLOWED], "float32", False),
        (TWO, [1.0, 2.0 + 1.2 * ALLOWED], "bfloat16", True),
        (TWO, [1.0, np.nan], "bfloat16", False),
        (TWO, [1.0], "float32", False),
        (INFINITE, [3.4e38, 1.0], "float32", True),
        (INFINITE, [1e20, 1.0], "float32", False),
        (INFINITE, [np.inf, np.inf], "float32", False),
        (FIRST, [1.0, np.nan], "float32", True),
        (FIRST, [1.5, np.nan], "float32", False),
        (FAR, np.array([70001, 70003], np.float32), "float32", True),
        (FAR, [70001, 70004], "float32", False),
        (FAR, [np.inf, np.inf], "float16", False),  # what float16 makes of them
    ],
)
def test_what_counts_as_equal(expected, found, precision, fine):
    assert (difference(expected, np.array(found), precision) is None) == fine


def test_the_worst_number_is_told():
    said = difference(TWO, np.array([1.0, 2.0 + 1.2 * ALLOWED]), "float32")
    assert said is not None and "1 of 2 elements, most at [1]" in said


def test_either_of_two_near_ties_may_stay():
    scores = np.array([[0.1, 0.5, 0.5 + 1e-12, 0.9]])
    candidates = np.ones((1, 4), dtype=bool)
    expected = keep(np.array([[1, 3]]), numbers(scores), candidates)
    np.testing.assert_array_equal(expected.value, [[2, 3]])
    for fine in ([[1, 3]], [[2, 3]]):
        assert difference(expected, np.array(fine), "float32") is None
    for bad in ([[0, 3]], [[1, 2]], [[3, 2]], [[2, 2]], [[2, 9]], [[-1, 3]]):
        assert difference(expected, np.array(bad), "float32") is not None


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint32, np.uint64, np.float32])
def test_indices_of_any_number_format_have_to_ascend(dtype):
    expected = Expected("keep", np.array([[1, 3, 120]]))
    right_order = np.array([[1, 3, 120]], dtype=dtype)
    assert difference(expected, right_order, "float32") is None
    said = difference(expected, right_order[:, ::-1], "float32")
    assert said is not None and "must ascend" in said


def test_scores_that_differ_leave_no_choice():
    scores = np.array([[0.1, 0.5, 0.6, 0.9]])
    kept = np.array([[False, False, True, True]])
    near = near_threshold(scores, np.ones_like(kept), kept, Tolerance(0.0, 1e-6))
    assert not near.any()
    assert near_threshold(scores, np.ones_like(kept), kept, Tolerance(0.1, 0.0))[0, 1:3].all()


def test_wrong_marks_are_told_by_call_row_layer_and_head():
    value = np.zeros((3, 1, 2, 2, 5), dtype=bool)
    value[..., 1:3] = True
    found = value.copy()
    found[1, 0, 1, 0] = [True, False, True, False, True]
    axes = ("calls", "N", "layers", "G", "t")
    said = difference(Expected("exact", value), found, "float32", axes)
    assert said is not None and said.startswith(
        "differs first in call 1, row 0, layer 1, KV head 0"
    )
    assert "which holds [0, 4] wrongly, and lacks [1]; 1 of 12 such sets" in said
    assert difference(Expected("exact", value, where=value), found | value, "float32", axes) is None


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (1500, "is 1,500 at [1], more than the allowed 1,000"),
        (0, "is 0 at [1], must be above 0 and at most 1,000"),
        (np.nan, "is nan at [1], must be above 0 and at most 1,000"),
        (1000, None),
    ],
)
def test_a_bound_says_what_is_allowed(number, said):
    expected = Expected("at_most", np.array([1000, 1000]))
    assert difference(expected, np.array([500, number]), "float32") == said


# --- making small --------------------------------------------------------------------------------


def test_every_reduction_is_a_case_that_the_reference_passes():
    chosen = {}
    for case in published():
        chosen.setdefault(case.operation, case)
    for case in chosen.values():
        for number, smaller in zip(range(12), reductions(case), strict=False):
            operation = OPERATIONS[smaller.operation]
            again = operation.compute(smaller.inputs, smaller.parameters, smaller.method)
            for name, each in smaller.expected.items():
                np.testing.assert_array_equal(again[name].value, each.value)
            assert number < 12


def test_small_retention_still_adds_up_to_1_and_stays_finite():
    def error(h, values, fast, norm):
        if fast or norm != 2:
            raise NotImplementedError
        mean = h @ values
        distance = np.linalg.norm(mean[:, :, None] - values[:, None], axis=-1)
        return h / (1.01 - h) * distance

    report = check("eviction_error", error, groups=["plain", "gqa"])
    assert report.failures()
    for failure in report.failures():
        assert failure.smallest is not None
        smallest = failure.smallest.case
        assert smallest.inputs["h"].size < failure.case.inputs["h"].size
        np.testing.assert_allclose(smallest.inputs["h"].sum(axis=-1), 1, rtol=1e-6)
        assert np.isfinite(smallest.expected["error"].value).all()


def double(x, bits, group):
    """Return codes twice as large."""
    found = OPERATIONS["quantize_channels"].compute(
        {"x": x.astype(float)}, {"bits": bits, "group": group}, None
    )
    return {name: 2 * each.value for name, each in found.items()}


def test_groups_do_not_shrink_to_nothing():
    for outcome in check("quantize_dequantize", lambda x: np.round(x)).failures():
        assert outcome.smallest is not None
        assert outcome.smallest.case.parameters["group"] >= 1


def test_groups_stay_whole_when_codes_are_made_small():
    report = check("quantize_channels", {"quantize_channels": double}, groups=["plain"])
    assert report.failures()[0].smallest.case.parameters["group"] >= 1

    def read(codes, scale, zero, group):
        return 0.0 * codes

    smallest = check("dequantize", read).failures()[0].smallest.case
    length, group = smallest.inputs["codes"].shape[-1], smallest.parameters["group"]
    assert smallest.inputs["scale"].shape[-1] == -(-length // group)
    assert length < 32


def test_small_blocks_are_still_the_newest_entries():
    for case in published():
        if case.target == "attend":
            for smaller in reductions(case):
                queries, entries = (smaller.inputs[k] for k in ("query_positions", "positions"))
                np.testing.assert_array_equal(
                    entries[:, -len(queries) :], np.tile(queries, (len(entries), 1))
                )


def test_a_stream_is_made_short():
    case = next(case for case in published() if case.target == "tova.run")

    def loses_the_newest(smaller):
        expected = OPERATIONS["run"].compute(smaller.inputs, smaller.parameters, smaller.method)
        found = expected["present"].value.copy()
        found[-1, :, -1] = False
        return difference(expected["present"], found, "float32")

    found = minimised(case, loses_the_newest)
    assert found.case.inputs["keys"].shape[1] < case.inputs["keys"].shape[1] / 2


# --- reports -------------------------------------------------------------------------------------


def test_survivors_are_compared_before_numbers():
    case = next(case for case in published() if case.target == "tova.run")
    right = {name: each.value for name, each in case.expected.items()}

    def answer(**given):
        return {**right, "output": right["output"] + 1, "present": ~right["present"]}

    report = check("tova.run", answer, groups=[case.group], minimise=False)
    assert report.failures()[0].reason.startswith("present differs first in block 0, KV head 0")


def test_a_known_bug_is_named_where_numbers_are_wrong():
    known = "one bug that this group is known to find: top-k picks any of equal scores"

    def told(function):
        with pytest.raises(AssertionError) as failed:
            check("keep_set", function, groups=["ties"], minimise=False).raise_for_failures()
        return str(failed.value)

    assert known in told(wrong_side)
    for broken in (lambda scores: scores[:1], lambda scores: 1 / 0, lambda scores: {}):
        assert "is known to find" not in told(broken)


def test_reports_as_json_and_junit():
    report = check("keep_set", wrong_side)
    plain = json.loads(json.dumps(to_plain(report), allow_nan=False))
    assert plain["cases"]["failed"] == 5 and not plain["passed"]
    groups = {group["group"]: group for group in plain["groups"]}
    assert groups["plain"]["first_failure"] is None
    assert groups["ties"]["first_failure"]["smallest"]["inputs"]["scores"] == [[0.0, 0.0]]
    suite = ElementTree.fromstring(to_junit(report))[0]
    assert suite.get("name") == "keep_set"
    assert suite.get("failures") == "5" == str(len(suite.findall("testcase/failure")))
    assert int(suite.get("tests", 0)) == len(suite.findall("testcase"))
