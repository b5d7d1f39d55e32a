"""Programs in other languages: files in, files out, exit code 77 for what they do not do."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from kvlab.reference.conformance import Status, check, published
from kvlab.reference.conformance.program import Program, read_outputs, request
from support.sampling import sampled

CPLUSPLUS = Path("docs/examples/conformance/keep_set.cpp")

SCRIPT = """
import sys
import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
target, given, made = sys.argv[1:]
if target != "h2o.score":
    print("h2o.score alone", file=sys.stderr)
    raise SystemExit(77)
with safe_open(given, "np") as file:
    parameters = file.metadata()
x = load_file(given)
assert x["positions"].dtype == np.int64 and x["candidates"].dtype == bool
assert parameters["budget"].isdigit() and parameters["softcap"] in ("none", "4.0")
BODY
save_file({"scores": x["accumulated"]}, made)
"""


def script(tmp_path, body=""):
    file = tmp_path / "kernel.py"
    file.write_text(SCRIPT.replace("BODY", body))
    return f"{sys.executable} {file}"


def test_a_program_passes_and_says_what_it_does_not_do(tmp_path):
    program = Program(script(tmp_path))
    report = check("h2o", program, groups=["softcap"])
    report.raise_for_failures()
    assert report.count(Status.PASSED) == 2
    reasons = {o.reason for g in report.groups for o in g.outcomes if o.status != Status.PASSED}
    assert reasons == {"h2o.score alone"}


STAYING = """
import os, sys, time
for number, line in enumerate(sys.stdin):
    target, given, made = line.split()
    x = load_file(given)
    BODY
    save_file({"scores": x["accumulated"]}, made)
    print(0, flush=True)
"""


def staying(tmp_path, body):
    head = "from safetensors.numpy import load_file, save_file\n"
    file = tmp_path / "staying.py"
    file.write_text(head + STAYING.replace("BODY", body))
    return Program(f"{sys.executable} {file}", stays=True, timeout=20)


def test_a_program_that_stays_is_started_once(tmp_path):
    program = staying(tmp_path, "open(target, 'a').write('x') if number == 0 else None")
    program.command = f"env -C {tmp_path} {program.command}"
    check("h2o.score", program, groups=["plain", "softcap"]).raise_for_failures()
    assert (tmp_path / "h2o.score").read_text() == "x" and program.another() is not program
    program.close()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("print(77, 'not now', flush=True); continue", "not now"),
        ("print(3, 'no memory', flush=True); continue", "exited with 3: no memory"),
        ("print('hello', flush=True); continue", "'hello', which is no exit code"),
        ("raise SystemExit(4)", "ended with 4 instead of an answer"),
        ("os.kill(os.getpid(), 11)", "the program crashed: SIGSEGV"),
        ("time.sleep(60)", "the program took longer than 2 s"),
    ],
)
def test_a_program_that_stays_says_how_it_failed(tmp_path, body, said):
    program = staying(tmp_path, body)
    program.timeout = 2 if "sleep" in body else 20
    report = check("h2o.score", program, groups=["softcap"], minimise=False)
    assert all(said in (x.reason or "") for each in report.groups for x in each.outcomes)
    program.close()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("x['accumulated'] *= 2", "scores is wrong in"),
        ("raise SystemExit(3)", "the program exited with 3: nothing on stderr"),
        ("1 / 0", "ZeroDivisionError"),
        ("import os; os.write(2, b'bad \\xff'); os._exit(4)", "exited with 4: bad \ufffd"),
        ("raise SystemExit(0)", "the program wrote no output.safetensors"),
        ("open(made, 'w').write('x'); raise SystemExit(0)", "is no safetensors file"),
        ("import time; time.sleep(900)", "took longer than 0.5 s"),
    ],
)
def test_whatever_goes_wrong_is_reported(tmp_path, body, said):
    program = Program(script(tmp_path, body), timeout=0.5 if "sleep" in body else 300)
    report = check("h2o.score", program, groups=["mqa"], minimise=False)
    assert said in report.failures()[0].reason


def test_a_command_that_cannot_be_run_is_refused():
    for command in ("", "no-such-program"):
        with pytest.raises(ValueError, match=r"exec = .* must be a program"):
            Program(command)


def test_requests_hold_inputs_and_parameters(tmp_path):
    case = next(case for case in published() if case.target == "caote:h2o.select")
    file = tmp_path / "request.safetensors"
    file.write_bytes(request(case))
    with safe_open(file, "np") as opened:
        metadata = opened.metadata()
        assert set(opened.keys()) == set(case.inputs)
    assert metadata["method"] == case.method
    assert set(metadata) == {"method", *case.parameters}
    assert metadata["fast"] == "false" and metadata["softcap"] == "none"
    found = read_outputs(file.read_bytes())
    np.testing.assert_array_equal(found["queries"], case.inputs["queries"])


@pytest.fixture
def compiled(tmp_path):
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler is installed")

    def compile_text(text):
        source, binary = tmp_path / "program.cpp", tmp_path / "program"
        source.write_text(text)
        options = ("-std=c++17", "-O2", "-Wall", "-Werror")
        subprocess.run(["c++", *options, str(source), "-o", str(binary)], check=True)
        return Program(str(binary))

    return compile_text


@pytest.mark.parametrize("method", sampled(("h2o", "full", "streaming_llm"), ("h2o",)))
def test_a_whole_cache_in_cplusplus(compiled, method):
    program = compiled(CPLUSPLUS.with_name("whole_cache.cpp").read_text())
    report = check(f"{method}.whole_cache", program, minimise=False)
    report.raise_for_failures()
    outcomes = [each for group in report.groups for each in group.outcomes]
    left = {each.case.group for each in outcomes if each.status == Status.NOT_TESTED}
    assert left <= {"cache_pages", "cache_shared_heads", "cache_codes", "cache_pairs"}


def test_the_example_in_cplusplus(compiled):
    source = CPLUSPLUS.read_text()
    report = check("keep_set", compiled(source))
    report.raise_for_failures()
    assert report.count(Status.NOT_TESTED) == 0
    assert source.count("a > b") == 1
    failed = check("keep_set", compiled(source.replace("a > b", "a < b")), minimise=False)
    assert [o.case.group for o in failed.failures()] == ["ties", "signed_zero", "pairs"]
