"""A kernel that crashes, hangs, changes its inputs or is wrong now and then is named as such."""

from dataclasses import dataclass

import numpy as np
import pytest

from kvlab.reference.conformance import Isolated, Loading, Status, check
from kvlab.reference.conformance.implementation import Functions
from kvlab.reference.selection import keep_set

SOURCE = """
import ctypes, os, time
import numpy as np
from kvlab.reference.selection import keep_set
calls = []
def kept(scores, safe, room):
    calls.append(1)
    BODY
    return keep_set(scores.astype(float), safe, room)
IMPLEMENTATIONS = {"keep_set": kept}
"""


@dataclass
class Impatient(Isolated):
    """Waits a second for cases that hang, and as long as it takes for others."""

    hanging: tuple[str, ...] = ()

    def answer(self, case):
        self.timeout = 1.0 if case.name in self.hanging else 300.0
        return super().answer(case)


@pytest.fixture
def outcomes(tmp_path):
    def run(body, hanging=(), **options):
        file = tmp_path / "kernel.py"
        file.write_text(SOURCE.replace("BODY", body))
        under_test = Impatient(Loading(file), hanging=hanging)
        try:
            report = check("keep_set", under_test, groups=["plain", "no_room"], **options)
        finally:
            under_test.close()
        return {each.case.name: each for group in report.groups for each in group.outcomes}

    return run


def test_a_crash_costs_one_case_and_is_named(outcomes):
    found = outcomes("if room == 0: ctypes.string_at(0)")
    crashed = found["keep_set/no_room/0"]
    assert crashed.status == Status.FAILED and crashed.smallest is None
    assert crashed.reason == "the process crashed: SIGSEGV"
    assert [each.status for each in found.values()].count(Status.PASSED) == 2


def test_an_exit_in_the_middle_is_named(outcomes):
    reason = outcomes("if room == 0: os._exit(3)")["keep_set/no_room/0"].reason
    assert reason == "the process ended with exit code 3 in the middle of the case"


def test_a_hang_costs_one_case(outcomes):
    found = outcomes("if room == 0: time.sleep(900)", hanging=("keep_set/no_room/0",))
    assert found["keep_set/no_room/0"].reason == "took longer than 1 s, and was ended"
    assert [each.status for each in found.values()].count(Status.PASSED) == 2


def test_an_error_that_comes_and_goes_is_called_intermittent(outcomes):
    found = outcomes("room += len(calls) % 2")
    reason = found["keep_set/plain/0"].reason
    assert reason.startswith("intermittent, wrong in 6 of 11 calls: keep has the shape")
    assert found["keep_set/plain/0"].smallest is None


def test_state_that_stays_from_call_to_call_is_found_by_asking_again(outcomes):
    assert outcomes("room += len(calls) > 3")["keep_set/plain/0"].status == Status.PASSED
    reason = outcomes("room += len(calls) > 3", calls=11)["keep_set/plain/0"].reason
    assert "in call 4 of the same case" in reason


def test_exceptions_keep_their_name(outcomes):
    assert outcomes("1 / 0")["keep_set/plain/0"].reason.startswith("ZeroDivisionError")
    assert outcomes("raise NotImplementedError")["keep_set/plain/0"].status == Status.NOT_TESTED


def test_inputs_must_not_be_changed_in_a_process_of_its_own_or_without(outcomes):
    def changes(scores, safe, room):
        scores += 1
        return keep_set(scores.astype(float), safe, room)

    here = check("keep_set", changes, groups=["plain"], minimise=False).failures()[0].reason
    reason = outcomes("scores += 1")["keep_set/plain/0"].reason
    assert reason == here == "SideEffectError: the input scores was changed by the call"


def test_what_has_the_name_of_an_output_may_be_changed_in_place():
    def observe(attention, accumulated, reduce):
        if reduce != "mean":
            raise NotImplementedError
        accumulated += attention.mean(axis=1).sum(axis=1)
        return accumulated

    under_test = Functions({"h2o.observe": observe})
    check("h2o.observe", under_test).raise_for_failures()


def test_an_answer_that_is_remembered_by_the_address_of_its_input_is_wrong():
    remembered = {}

    def kept(scores, safe, room):
        where = scores.ctypes.data
        if where not in remembered:
            remembered[where] = keep_set(scores.astype(float), safe, room)
        return remembered[where]

    report = check("keep_set", Functions({"keep_set": kept}), minimise=False)
    assert not report.passed
    assert isinstance(next(iter(remembered.values())), np.ndarray)
