"""The playground's JavaScript computes what the reference computes, case by case of the kit."""

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvlab.reference.conformance import Case, NotTestedError, Status, cases, check, published
from kvlab.reference.conformance.checker import run_case
from kvlab.reference.conformance.program import SKIPPED, Program, read_outputs, request
from kvlab.reference.conformance.report import shown
from support.node import NODE, node
from support.tables import cases as rows

PROGRAM = Path("docs/playground/conformance.mjs").resolve()
MIRRORS = re.compile(r"as\s(?:\*\s)?(reference/[\w/]+\.py)")
OTHER_METHODS = (
    *("value_norm", "nacl", "rpc", "ddks", "openvino"),
    *("keydiff", "longflow", "vase", "random_attention"),
)
"""Methods of the reference that the playground does not have."""


@dataclass
class Answered:
    """Answers that one process gave to many cases: Node.js takes longer to start than to answer."""

    folder: Path
    program: Path = PROGRAM
    precision: str = "float32"
    codes: dict[str, tuple[int, str]] = field(default_factory=dict)

    def ask(self, cases: list[Case]) -> "Answered":
        requests = []
        for number, case in enumerate(cases):
            given, made = (self.folder / f"{number}.{way}" for way in ("input", "output"))
            given.write_bytes(request(case))
            requests.append([case.target, str(given), str(made)])
        (self.folder / "requests.json").write_text(json.dumps(requests))
        script = Path(__file__).with_name("answer_all.mjs")
        node(script, self.program, self.folder)
        codes = json.loads((self.folder / "codes.json").read_text())
        self.codes = {case.name: found for case, found in zip(cases, codes, strict=True)}
        self.made = {
            case.name: Path(made) for case, (*_, made) in zip(cases, requests, strict=True)
        }
        return self

    def offers(self, target: str) -> bool:
        return True

    def answer(self, case: Case):
        code, said = self.codes[case.name]
        if code == SKIPPED:
            raise NotTestedError(said)
        if code:
            raise RuntimeError(said)
        return read_outputs(self.made[case.name].read_bytes())


@pytest.mark.slow
def test_every_case_of_the_kit_passes(tmp_path):
    given = [case for case in cases() if case.operation != "whole_cache"]  # there is no model
    answered = Answered(tmp_path).ask(given)
    outcomes = [run_case(answered, case) for case in given]
    failed = [each for each in outcomes if each.status == Status.FAILED]
    assert not failed, shown(failed)
    tested = [each.case for each in outcomes if each.status == Status.PASSED]
    assert bases_of(given) - bases_of(tested) == set(OTHER_METHODS)
    assert len(tested) > 2800


def bases_of(asked: list[Case]) -> set[str]:
    names = {case.method.partition("@")[0] for case in asked if case.method is not None}
    return {name.rpartition(":")[2] for name in names}


@rows(__file__, "a_wrong_answer_is_noticed", "file right wrong target")
def test_a_wrong_answer_is_noticed(tmp_path, file, right, wrong, target):
    folder = tmp_path / "playground"
    for path in [*PROGRAM.parent.glob("*.mjs"), *PROGRAM.parent.glob("methods/*.mjs")]:
        copy = folder / path.relative_to(PROGRAM.parent)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    source = (folder / file).read_text()
    assert source.count(right) == 1
    (folder / file).write_text(source.replace(right, wrong))
    cases = [case for case in published() if case.target == target]
    answered = Answered(tmp_path, folder / PROGRAM.name).ask(cases)
    assert check(target, answered, minimise=False).failures()


def test_the_command_of_the_documentation_works():
    program = Program(f"{shlex.quote(str(NODE))} {shlex.quote(str(PROGRAM))}")
    report = check("desirekv.run", program, groups=["plain"])
    report.raise_for_failures()
    assert report.count(Status.PASSED)
    skipped = check("nacl.run", program, groups=["plain"])
    assert skipped.count(Status.NOT_TESTED) and not skipped.count(Status.PASSED)


def test_every_file_mirrors_a_file_of_the_reference_that_exists():
    mirrored = {}
    for path in PROGRAM.parent.rglob("*.mjs"):
        for named in MIRRORS.findall(path.read_text(encoding="utf-8")):
            mirrored[path.relative_to(PROGRAM.parent)] = Path(named)
    assert len(mirrored) > 25
    for path, named in mirrored.items():
        assert (PROGRAM.parents[2] / named).is_file(), path
        same = path.with_suffix(".py") == named.relative_to("reference")
        assert same or named.name == "__init__.py", path
