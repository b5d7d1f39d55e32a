"""What other projects put into their CI: known failures, badges, the package of vectors."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from kvlab.fast.lab.cli import app
from kvlab.reference.conformance import Status, check, published, vectors
from kvlab.reference.conformance.checker import run_case
from kvlab.reference.conformance.groups import composition
from kvlab.reference.conformance.implementation import Functions
from kvlab.reference.conformance.report import to_junit
from kvlab.reference.conformance.targets import described
from kvlab.reference.conformance.xfails import judged, read_xfails
from kvlab.reference.selection import keep_set


def right(scores, safe, room):
    return keep_set(scores.astype(float), safe, room)


def too_many(scores, safe, room):
    return keep_set(scores.astype(float), safe, room + (room == 0))


def statuses(report):
    return {each.case.group: each.status for group in report.groups for each in group.outcomes}


def test_a_known_failure_is_expected_and_an_unexpected_pass_fails(tmp_path):
    listed = tmp_path / "kvlab-xfails.txt"
    listed.write_text("# comment\n\nkeep_set/no_room/*  # one too many\nplain # wrong\n")
    known = read_xfails(listed)
    report = judged(check("keep_set", too_many, minimise=False), known)
    found = statuses(report)
    assert found["no_room"] == Status.EXPECTED and found["ties"] == Status.PASSED
    assert found["plain"] == Status.FAILED and not report.passed
    assert "remove it from the list" in report.failures()[0].reason
    assert judged(check("keep_set", too_many, minimise=False), known[:1]).passed
    assert 'failures="0"' in to_junit(judged(check("keep_set", right), ()))
    listed.write_text("plain\n")
    with pytest.raises(ValueError, match="must end in a reason"):
        read_xfails(listed)


READER = """
import sys
sys.modules["kvlab"] = None
import kvlab_vectors
from pathlib import Path
cases = list(kvlab_vectors.read())
assert not any(name.startswith(("kvlab.", "torch")) for name in sys.modules)
for case in cases:
    for expected in case["expected"].values():
        assert kvlab_vectors.wrong(expected, expected["value"]) is None, case["name"]
        if expected["kind"] != "keep" and expected.get("where", expected["value"] == 0).all():
            assert kvlab_vectors.wrong(expected, 2 * expected["value"] + 1), case["name"]
whole = next(kvlab_vectors.read("h2o.whole_cache"))
assert (Path(whole["parameters"]["model"]) / "model.safetensors").exists()
print(len(cases), len(list(kvlab_vectors.read(spec="0.9"))))
"""


def test_the_package_of_vectors_needs_no_kvlab(tmp_path):
    done = CliRunner().invoke(app, ["conformance", "export", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert 'name = "kvlab-vectors"' in (tmp_path / "pyproject.toml").read_text()
    said = subprocess.run(
        [sys.executable, "-c", READER], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
    counts = [len(published()), len(published("0.9"))]
    assert said.stdout.split() == [str(count) for count in counts]


def test_specifications_hold_each_other():
    old = {case.name for case in published("0.9")}
    assert old < {case.name for case in published("1.0")}
    with pytest.raises(ValueError, match=r"spec = '2.0' must be one of"):
        vectors.directories("2.0")


def test_the_files_for_ci_are_valid(tmp_path):
    yaml = pytest.importorskip("yaml")
    folder = Path("docs/examples/conformance/ci")
    action = yaml.safe_load((folder / "action.yml").read_text())
    assert action["runs"]["using"] == "composite"
    assert yaml.safe_load((folder / "workflow.yml").read_text())["jobs"]
    assert len(read_xfails(folder / "kvlab-xfails.txt")) == 2
    assert json.dumps(action)


# --- adapters that compute nothing ---------------------------------------------------------------


class Empty:
    """Answers every case with arrays of the right shape that nothing has computed."""

    precision = "float32"

    def __init__(self, made):
        self.made, self.last = made, {}

    def offers(self, target):
        return True

    def answer(self, case):
        found = {name: self.made(self, case, name) for name in case.expected}
        self.last[case.target] = {name: each.value for name, each in case.expected.items()}
        return found


def zeros(self, case, name):
    return np.zeros(case.expected[name].value.shape)


def constants(self, case, name):
    return np.full(case.expected[name].value.shape, 0.5)


def given(self, case, name):
    shape = case.expected[name].value.shape
    fitting = [x for x in case.inputs.values() if x.shape == shape]
    return fitting[0] if fitting else np.resize(next(iter(case.inputs.values())), shape)


def yesterdays(self, case, name):
    return self.last.get(case.target, {}).get(name, np.zeros(1))


IS_AN_INPUT = {"streaming_llm.score"}
"""Targets whose right answer is an input: the position of an entry."""


@pytest.mark.parametrize("made", [zeros, constants, given, yesterdays])
def test_an_adapter_that_computes_nothing_fails_every_target(made):
    by_target = {}
    for case in published():
        by_target.setdefault(case.target, []).append(case)
    under_test, passed = Empty(made), set()
    with np.errstate(all="ignore"):
        for target, own in by_target.items():
            outcomes = (run_case(under_test, case).status for case in own)
            if Status.FAILED not in outcomes:
                passed.add(target)
    assert passed == (IS_AN_INPUT if made is given else set())


def test_a_function_without_an_answer_is_no_pass():
    case = next(case for case in published() if case.target == "h2o.whole_cache")
    assert composition(case.method) == "h2o" and described(case).outputs["bytes"].optional
    silent = Functions({"h2o.whole_cache": lambda tokens: {}})
    report = check("h2o.whole_cache", silent, minimise=False)
    assert not report.passed
