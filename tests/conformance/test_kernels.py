"""Kernels in this process, in another one and in other languages: what goes wrong is named."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from kvlab.reference.conformance import Status, check, published
from kvlab.reference.conformance.program import Program, read_outputs, request
from support.kernels import TABLE, opened, write
from support.running import invoke
from support.sampling import sampled
from support.tables import cases

CPLUSPLUS = Path("docs/examples/conformance/keep_set.cpp")
WRONG = {f"{x['by']}, {x['said']}, {[*x['instead']]}": x for x in TABLE["wrong"]}
MEMORY = [x for x, row in WRONG.items() if row["by"] == "memory" and "sizes" not in row]
FIRST_OF_EACH = {row["by"]: name for name, row in reversed(WRONG.items())}.values()
QUICK = {*FIRST_OF_EACH, *(name for name in WRONG if name.startswith("function"))}
"""What starts no process, and one of each kind that does."""


@pytest.mark.parametrize("name", sampled(WRONG, QUICK))
def test_whatever_goes_wrong_is_reported(name, tmp_path):
    """A crash, an endless loop or a wrong answer costs one case, and is named."""
    row = WRONG[name]
    options = {key: row[key] for key in ("groups", "calls", "sizes") if key in row}
    file = write(tmp_path, row["by"], **row["instead"])
    with opened(file, row["by"], row.get("timeout", 300.0)) as under_test:
        report = check(row["target"], under_test, minimise=row.get("minimise", False), **options)
    assert any(row["said"] in each.reason for each in report.outcomes)
    assert all(each.smallest is None for each in report.outcomes)
    assert row.get("groups") != ["plain", "no_room"] or report.count(Status.PASSED) == 2


@cases(__file__, "a_right_one_passes", "by target groups instead")
def test_a_right_one_passes_and_says_what_it_does_not_do(by, target, groups, instead, tmp_path):
    """State that stays from call to call shows only where a case is asked again: see the table."""
    with opened(write(tmp_path, by, **instead), by) as under_test:
        report = check(target, under_test, groups=groups, minimise=False)
    report.raise_for_failures()
    said = {each.reason for each in report.outcomes if each.status != Status.PASSED}
    assert said == ({"h2o.score alone"} if by == "program" else set())


@pytest.mark.slow
@pytest.mark.parametrize("name", MEMORY)
def test_command_and_fixture_notice(name, tmp_path, tested):
    target, said = WRONG[name]["target"], WRONG[name]["said"]
    file = write(tmp_path, "memory", **WRONG[name]["instead"])
    done = invoke("conformance", "run", file, "--target", target, "--no-minimise")
    assert done.exit_code == 1 and said in " ".join(done.output.split())
    test = f"import kernel\ndef test_it(kvlab_conformance):\n    kvlab_conformance({target!r}, "
    (tmp_path / "test_it.py").write_text(
        f"{test}kernel.IMPLEMENTATIONS[{target!r}], minimise=False)\n"
    )
    code, shown = tested(tmp_path)
    assert code == 1 and said in " ".join(shown.split())


# --- programs ------------------------------------------------------------------------------------


def test_a_program_that_stays_is_started_once(tmp_path):
    body = "open(target, 'a').write('x') if number == 0 else None"
    with opened(write(tmp_path, "staying", BODY=body), "staying", 20.0) as program:
        program.command = f"env -C {tmp_path} {program.command}"
        check("h2o.score", program, groups=["plain", "softcap"]).raise_for_failures()
        assert (tmp_path / "h2o.score").read_text() == "x" and program.another() is not program


def test_a_command_that_cannot_be_run_is_refused():
    for command in ("", "no-such-program"):
        with pytest.raises(ValueError, match=r"exec = .* must be a program"):
            Program(command)


def test_requests_hold_inputs_and_parameters(tmp_path):
    case = next(case for case in published() if case.target == "caote:h2o.select")
    file = tmp_path / "request.safetensors"
    file.write_bytes(request(case))
    with safe_open(file, "np") as opened_file:
        metadata = opened_file.metadata()
        assert set(opened_file.keys()) == set(case.inputs)
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


@pytest.mark.slow
@pytest.mark.parametrize("method", ["h2o", "full", "streaming_llm"])
def test_a_whole_cache_in_cplusplus(compiled, method):
    program = compiled(CPLUSPLUS.with_name("whole_cache.cpp").read_text())
    report = check(f"{method}.whole_cache", program, minimise=False)
    report.raise_for_failures()
    left = {each.group for each in report.groups if each.count(Status.NOT_TESTED)}
    assert left <= {"cache_pages", "cache_shared_heads", "cache_codes", "cache_pairs"}


@pytest.mark.slow
def test_the_example_in_cplusplus(compiled):
    source = CPLUSPLUS.read_text()
    report = check("keep_set", compiled(source))
    report.raise_for_failures()
    assert report.count(Status.NOT_TESTED) == 0
    wrong, changes = re.subn("a > b", "a < b", source)
    assert changes == 1
    failed = check("keep_set", compiled(wrong), minimise=False)
    assert [o.case.group for o in failed.failures()] == ["ties", "signed_zero", "pairs"]
