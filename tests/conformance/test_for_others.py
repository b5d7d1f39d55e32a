"""What other projects use: the package of vectors, the example project, adapters, files for CI."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from kvlab.reference.conformance import Status, published
from kvlab.reference.conformance.checker import run_case
from kvlab.reference.conformance.report import read_xfails
from kvlab.reference.conformance.targets import operation_of
from support.kernels import TABLE, Answering
from support.running import printed, python

PROJECT = Path("docs/examples/conformance")


def test_the_package_of_vectors_needs_no_kvlab(tmp_path):
    printed("conformance", "export", "--out", tmp_path)
    assert 'name = "kvlab-vectors"' in (tmp_path / "pyproject.toml").read_text()
    said = python("-c", TABLE["texts"]["reader"], cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert said.stdout.split() == [str(len(published()))]


@pytest.mark.slow
def test_the_plugin_finds_the_bug(tmp_path, tested):
    for name in ("flash_decode.py", "test_flash_decode.py", "pytest.ini"):
        shutil.copy(PROJECT / name, tmp_path)
    code, said = tested(tmp_path)
    assert code == 1 and "1 failed, 2 passed" in said, said
    assert "FAILED test_flash_decode.py::test_the_broken_kernel" in said
    assert "keys [1, 9," in said, "one entry more than a tile is enough"


def test_the_kernel_file_passes():
    assert "0 failed" in printed("conformance", "run", PROJECT / "kernel_file.py")


OTHERS = ("kvpress", "transformers", "vllm")
"""Packages whose adapters are read, not imported."""


def test_adapters_name_targets_that_exist():
    adapters = [file for file in PROJECT.glob("*_*.py") if file.name.split("_")[0] in OTHERS]
    tables = [file.read_text().partition("IMPLEMENTATIONS = {")[2] for file in adapters]
    assert len(tables) == 7 and all(tables)
    for target in (target for table in tables for target in table.split('"')[1::2]):
        operation_of(target)


KERNEL = """
from kvlab.reference.selection import keep_set
def kept(scores, safe, room):
    return keep_set(scores.astype(float), safe, room + MORE)
IMPLEMENTATIONS = {"keep_set": kept}"""


@pytest.mark.slow
def test_the_action_does_what_its_steps_say(tmp_path):
    """Installed from a folder, as a CI would; pip takes nothing from an index here."""
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load((PROJECT / "ci" / "workflow.yml").read_text())["jobs"]
    assert len(read_xfails(PROJECT / "ci" / "kvlab-xfails.txt")) == 2
    action = yaml.safe_load((PROJECT / "ci" / "action.yml").read_text())
    assert action["runs"]["using"] == "composite"
    clone, kernel = tmp_path / "clone", tmp_path / "my_kernel.py"
    for each in ("reference", "fast", "package"):
        shutil.copytree(each, clone / each, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(file, clone)
    told = {name: each.get("default", "") for name, each in action["inputs"].items()}
    told |= {"kvlab": clone, "file": kernel, "target": "keep_set", "within": "8"}
    site = tmp_path / "site"
    pip = {"TARGET": site, "NO_DEPS": 1, "NO_INDEX": 1, "NO_BUILD_ISOLATION": 0}
    here = os.environ | {f"PIP_{name}": str(x) for name, x in pip.items()}
    here["PATH"] = f"{site / 'bin'}:{Path(sys.executable).parent}:{here['PATH']}"
    here["PYTHONPATH"] = str(site)

    def run(step, code):
        asked = {name: str(told[text.split()[1][7:]]) for name, text in step["env"].items()}
        command = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"])
        done = subprocess.run(command, cwd=tmp_path, env=here | asked, capture_output=True)
        assert done.returncode == code, done.stderr

    install, check = action["runs"]["steps"]
    run(install, 0)
    for more, color in enumerate(("brightgreen", "red")):
        kernel.write_text(KERNEL.replace("MORE", str(more)))
        run(check, more)
        badge = json.loads((tmp_path / "kvlab-conformance.json").read_text())
        suites = ElementTree.parse(tmp_path / "kvlab-conformance.xml").getroot()
        drawn = suites.findall(".//testcase[@name='keep_set/drawn']")
        assert drawn and badge["color"] == color and more == bool(suites.findall(".//failure"))
    (script, *_) = (tmp_path / "kvlab-failures").glob("*.py")
    assert "expected:" in python(script, env=here).stdout


# --- adapters that compute nothing ---------------------------------------------------------------


def an_input(case, value, last):
    fitting = [x for x in case.inputs.values() if x.shape == value.shape]
    return fitting[0] if fitting else np.resize(next(iter(case.inputs.values())), value.shape)


MADE = {
    "zeros": lambda case, value, last: np.zeros(value.shape),
    "halves": lambda case, value, last: np.full(value.shape, 0.5),
    "an input": an_input,
    "the last answer": lambda case, value, last: last,
    "nothing": None,
}
"""Arrays that nothing has computed, of a case, the expected array and the one before."""


IS_AN_INPUT = {"streaming_llm.score"}
"""Targets whose right answer is an input: the position of an entry."""


@pytest.mark.parametrize("made", MADE)
def test_an_adapter_that_computes_nothing_fails_every_target(made):
    targets, failed, before = {case.target for case in published()}, set(), {}

    def answer(case):
        found = {}
        for name, each in case.expected.items():
            last = before.get((case.target, name), np.zeros(1))
            if MADE[made] is not None:
                found[name] = MADE[made](case, each.value, last)
            before[case.target, name] = each.value
        return found

    under_test = Answering(answer)
    with np.errstate(all="ignore"):
        for case in published():
            if run_case(under_test, case).status == Status.FAILED:
                failed.add(case.target)
    assert targets - failed == (IS_AN_INPUT if made == "an input" else set())
