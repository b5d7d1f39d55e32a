"""``kvlab conformance``."""

import json
import os
from functools import partial

import numpy as np
import pytest

from kvlab.fast.lab.commands import conformance
from kvlab.reference import methods
from kvlab.reference.conformance import publishing, vectors
from kvlab.reference.conformance.checker import published
from kvlab.reference.conformance.planned import PUBLISHED
from kvlab.reference.conformance.targets import has_vectors
from kvlab.reference.processes import THREADS
from support import running

RIGHT = """
from kvlab.reference.selection import keep_set
def kept(scores, safe, room):
    return keep_set(scores.astype(float), safe, room)
IMPLEMENTATIONS = {"keep_set": kept}
"""
WRONG = RIGHT.replace("safe, room)\nIMPL", "safe, room + 1)\nIMPL")


@pytest.fixture
def file(tmp_path):
    def write(text):
        made = tmp_path / "kernel.py"
        made.write_text(text)
        return str(made)

    return write


invoke = partial(running.invoke, "conformance")


def test_run_prints_a_row_per_group(file):
    done = invoke("run", file(RIGHT), "--exclude", "pairs")
    assert done.exit_code == 0, done.output
    for shown in ("keep_set", "signed_zero", "23 passed, 0 failed, 0 not", "nothing tested of:"):
        assert shown in done.output


def test_a_failure_is_shown_small_and_exits_with_1(file):
    done = invoke("run", file(WRONG), "--group", "ties", "--group", "plain", "--exclude", "plain")
    assert done.exit_code == 1
    assert "smallest: keep has the shape" in done.output and " plain " not in done.output


EARLIER = """
from kvlab.reference.selection import keep_set
def kept(scores, safe, room):
    backwards = keep_set(scores[:, ::-1].astype(float), safe[:, ::-1], room)
    return (scores.shape[1] - 1 - backwards)[:, ::-1]
IMPLEMENTATIONS = {"keep_set": kept}
"""


def test_a_variant_that_a_flag_allows_does_not_fail_the_run(file):
    asked = ("run", file(EARLIER), "--group", "ties", "--group", "plain")
    refused, allowed = invoke(*asked), invoke(*asked, "--allow", "equal_scores")
    assert refused.exit_code == 1 and "--allow equal_scores)" in refused.output
    assert allowed.exit_code == 0 and "2 passed, 0 failed, 0 not tested, 4" in allowed.output


CRASHES = """
def attend(queries):
    import os
    os._exit(3)
IMPLEMENTATIONS |= {"attend": attend, "pack": lambda codes, bits: codes}
"""


@pytest.mark.slow
def test_several_processes_report_what_one_does(file):
    asked = ("run", file(WRONG + CRASHES), "--json", "--no-minimise")
    groups = [("--group", "plain"), ("--group", "ties")]
    one, two = (invoke(*asked, *sum(groups, ()), "--jobs", str(jobs)) for jobs in (1, 2))
    assert one.exit_code == two.exit_code == 1 and one.stdout == two.stdout
    report = json.loads(two.stdout)
    assert report["specification"] == "1.0" and report["of"].endswith("kernel.py")
    assert report["environment"]["numpy"] == np.__version__
    told = report["groups"]
    assert {each["target"] for each in told} == {"attend", "keep_set", "pack"}
    assert all(each["failed"] for each in told if each["target"] != "pack")


@pytest.mark.slow
def test_processes_at_once_share_the_processors_threads(file, tmp_path, monkeypatch):
    for variable in THREADS:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(conformance, "PROCESSORS", 3)
    told = tmp_path / "threads"
    counts = f"import torch; open({str(told)!r}, 'a').write(f'{{torch.get_num_threads()}} ')\n"
    two = RIGHT + "IMPLEMENTATIONS |= {'pack': lambda codes, bits: codes}\n" + counts
    invoke("run", file(two), "--group", "plain", "--no-minimise", "--jobs", "2")
    assert told.read_text() == "1 1 "
    assert not {*THREADS} & {*os.environ}


def test_what_a_kernel_prints_is_not_among_the_data(file, capfd):
    loud = WRONG.replace("    return", "    print('computing')\n    return") + "\nprint('loaded')\n"
    done = invoke("run", file(loud), "--json", "--group", "plain")
    assert done.exit_code == 1
    (group,) = json.loads(done.stdout)["groups"]
    assert (group["group"], group["failed"]) == ("plain", 2)
    said = capfd.readouterr()
    assert "computing" in said.err and "loaded" in said.err
    assert "computing" not in said.out


def test_fuzz(file):
    assert "10 passed" in invoke("fuzz", "keep_set", file(RIGHT), "--cases", "10").output
    done = invoke("fuzz", "keep_set", file(WRONG), "--seed", "3")
    assert done.exit_code == 1 and "smallest: keep" in done.output


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        ("x = 1", [], "must define IMPLEMENTATIONS"),
        ("1 / 0", [], "cannot be run: ZeroDivisionError"),
        ("import sys; sys.exit(0)", [], "cannot be run: SystemExit: 0"),
        (RIGHT, ["--exec", "true"], "either a Python file or --exec"),
        (RIGHT, ["--timeout", "0"], "timeout = 0.0 must be above 0 seconds"),
    ],
)
def test_bad_input(file, refusal, text, arguments, said):
    """Other refusals stand in ``refused.toml``."""
    assert said in refusal("conformance", "run", file(text), *arguments)


def test_list_and_show():
    assert "caote:h2o.score" in invoke("list").output
    rows = json.loads(invoke("list", "--json").stdout)
    on_the_spot = {*filter(has_vectors, methods.names())} - {*PUBLISHED}
    assert {target for target in rows if target.partition(".")[0] not in on_the_spot} == {
        target
        for target in (case.target for case in published())
        if target.partition(".")[0] not in on_the_spot
    }
    assert {f"{name}.score" for name in on_the_spot} <= rows.keys()
    shown = invoke("show", "lazy_eviction.observe").output
    assert "interval" in shown and "threshold" in shown
    plain = json.loads(invoke("show", "attend", "--json").stdout)
    assert plain["inputs"]["queries"]["axes"] == ["G", "rho", "m", "d"]


def test_generate_and_verify(tmp_path, monkeypatch):
    """`test_vectors` verifies all files."""
    done = invoke("generate", "--method", "knorm", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert {case.target.partition(".")[0] for case in vectors.read(directory=tmp_path)} == {"knorm"}
    for different, code in (([], 0), (["0123  blocks.safetensors"], 1)):
        monkeypatch.setattr(
            publishing, "check_answers", lambda found=different: (["0123  h2o.safetensors"], found)
        )
        assert invoke("verify").exit_code == code
