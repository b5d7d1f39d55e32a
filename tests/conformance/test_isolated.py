"""A kernel that crashes, hangs or is wrong now and then is named as such, and costs one case."""

from dataclasses import dataclass

import pytest

from kvlab.reference.conformance import Isolated, Status, check

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
        under_test = Impatient(file, hanging=hanging)
        try:
            report = check("keep_set", under_test, groups=["plain", "no_room"], **options)
        finally:
            under_test.close()
        return {each.case.name: each for group in report.groups for each in group.outcomes}

    return run


@pytest.mark.parametrize(
    ("body", "hanging", "said"),
    [
        ("ctypes.string_at(0)", (), "the process crashed: SIGSEGV"),
        ("os._exit(3)", (), "the process ended with exit code 3 in the middle of the case"),
        ("time.sleep(900)", ("keep_set/no_room/0",), "took longer than 1 s, and was ended"),
        ("1 / 0", (), "ZeroDivisionError: division by zero"),
    ],
)
def test_a_lost_process_costs_one_case_and_is_named(outcomes, body, hanging, said):
    found = outcomes(f"if room == 0: {body}", hanging, minimise=False)
    lost = found["keep_set/no_room/0"]
    assert lost.status == Status.FAILED and lost.reason == said and lost.smallest is None
    assert [each.status for each in found.values()].count(Status.PASSED) == 2


def test_an_error_that_comes_and_goes_is_called_intermittent(outcomes):
    failed = outcomes("room += len(calls) % 2")["keep_set/plain/0"]
    assert failed.reason.startswith("intermittent, wrong in 6 of 11 calls: keep has the shape")
    assert failed.smallest is None


def test_state_that_stays_from_call_to_call_is_found_by_asking_again(outcomes):
    assert outcomes("room += len(calls) > 3")["keep_set/plain/0"].status == Status.PASSED
    reason = outcomes("room += len(calls) > 3", calls=11)["keep_set/plain/0"].reason
    assert "in call 4 of the same case" in reason
