"""Scripts of events: another engine agrees, and a block reused under a token in flight is found."""

from pathlib import Path

import numpy as np
import pytest

from kvlab.reference.conformance import check, load, published
from kvlab.reference.conformance.checker import fuzz
from kvlab.reference.conformance.events import script_of, text_of
from kvlab.reference.conformance.made import made_case
from support.kernels import TABLE
from support.running import invoke

EXAMPLE = Path("docs/examples/conformance/block_pool.py")


@pytest.fixture
def late(tmp_path):
    text = EXAMPLE.read_text()
    for each in TABLE["late"]:
        assert text.count(each["right"]) == 1
        text = text.replace(each["right"], each["wrong"])
    file = tmp_path / "late.py"
    file.write_text(text)
    return file


def test_another_engine_agrees():
    under_test = load(EXAMPLE)
    check("events", under_test).raise_for_failures()
    assert fuzz("events", under_test, 0, 20).passed


def test_the_command_names_the_block_that_was_reused_and_the_events_that_matter(late):
    done = invoke("conformance", "run", late, "--target", "events", "--group", "in_flight")
    assert done.exit_code == 1 and "events/in_flight/0: output is wrong" in done.output
    assert "while its token is in flight, and whose block is used again" in done.output
    script = next(line.strip() for line in done.output.splitlines() if "arrive 0;" in line)
    kinds = [event.split()[0] for event in script.split("; ")]
    assert kinds == ["arrive", "schedule", "free", "arrive", "read", "land", "read"]


def test_check_and_the_fixture_find_it(late, tmp_path, tested):
    report = check("events", load(late), minimise=False)
    assert "events/in_flight/0" in {each.case.name for each in report.failures()}
    (tmp_path / "test_it.py").write_text(
        "import late\ndef test_it(kvlab_conformance):\n"
        "    kvlab_conformance('events', late.events, arrays='torch')\n"
    )
    code, said = tested(tmp_path)
    assert code == 1 and "events/in_flight/0" in said


def test_the_answer_worked_out_by_hand():
    """Pages of two: request 1 shares the first page of 0; 0 evicts it, and loses it alone."""
    script = script_of("arrive 0; read 0 3; arrive 1 0 1; evict 0 0; read 1 1; free 0")
    assert text_of(script) == "arrive 0; read 0 3; arrive 1 0 1; evict 0 0; read 1 1; free 0"
    keys, values = np.zeros((1, 4, 1)), np.array([[[1.0], [2.0], [4.0], [9.0]]])
    inputs = {"script": script, "queries": np.zeros((1, 1, 4, 1)), "keys": keys, "values": values}
    sizes = {"page": 2, "pages": 4, "requests": 2}
    expected = made_case("events/hand/0", "hand", None, (inputs, sizes)).expected
    assert expected["free"].value.tolist() == [4, 2, 2, 2, 1, 2]
    held = [[*map(np.flatnonzero, event)] for event in expected["held"].value]
    assert [x.tolist() for x in held[3]] == [[2], [0, 1]]
    assert expected["users"].value[:, :, :2].tolist()[2:5] == [
        *([[2, 1], [2, 0]], [[0, 1], [1, 0]], [[0, 1], [1, 1]]),
    ]
    np.testing.assert_allclose(expected["output"].value.ravel(), [1, 1.5, 7 / 3, 4])


def test_every_kind_of_event_is_published():
    scripts = (case.inputs["script"] for case in published() if case.target == "events")
    assert {*np.concatenate([*scripts])[:, 0].tolist()} == {*range(10)}
