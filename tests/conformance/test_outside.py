"""A method without published vectors is tested on cases that are made of its examples."""

import json

import jsonschema
import numpy as np
import pytest

from kvlab.reference.conformance import cases, check, published, publishing, vectors
from kvlab.reference.conformance.checker import made_on_the_spot
from kvlab.reference.conformance.planned import OPTIONS, PUBLISHED, STREAMS
from kvlab.reference.conformance.targets import answer, operation_of
from support.kernels import Answering
from support.outside import SOURCE, methods_named


def right(case):
    """Answer as the reference does, as precisely as a kernel in float32."""
    found = {name: each.value for name, each in answer(case).items()}
    return {name: x.astype(np.float32) if x.dtype == np.float64 else x for name, x in found.items()}


def forgetful(case):
    """Count one look too few."""
    return {name: np.maximum(x - 1, 0) if name == "looks" else x for name, x in right(case).items()}


@pytest.fixture(scope="module")
def looks(tmp_path_factory):
    path = tmp_path_factory.mktemp("outside") / "looks_vectors.py"
    path.write_text(SOURCE)
    made_on_the_spot.cache_clear()
    operation_of.cache_clear()
    with methods_named(path):
        yield [case for case in cases("looks") if case.target.startswith("looks.")]
    made_on_the_spot.cache_clear()
    operation_of.cache_clear()


def test_there_are_cases_of_every_step_and_the_published_ones_do_not_depend_on_it(looks):
    assert {case.operation for case in looks} == {"observe", "score", "select", "keep", "run"}
    assert {case.group for case in looks} <= {*STREAMS["small"], OPTIONS}
    assert {case.group for case in looks} >= {"plain", "gqa", "block_not_dividing"}
    assert len(cases("looks")) == len(published()) + len(looks)
    assert len(cases("h2o")) == len(published())
    assert "looks" not in PUBLISHED


def test_its_own_state_is_described_and_given_to_functions(looks):
    state = operation_of("looks.observe").inputs["looks"]
    assert state.axes == ("G", "n") and state.kind == "int"
    assert state.meaning == "queries that looked at the entry; a new entry comes with 0"

    def score(looks, remembered_asked, positions, seen):
        return (looks + 1) / (remembered_asked + seen - positions)

    check("looks.score", score).raise_for_failures()
    assert not check("looks.score", lambda looks: looks.astype(float), minimise=False).passed


def test_the_reference_passes_and_a_mistake_fails(looks):
    report = check("looks", Answering(right))
    report.raise_for_failures()
    assert not report.untested
    wrong = check("looks", Answering(forgetful), groups=["plain"])
    assert {outcome.case.operation for outcome in wrong.failures()} == {"observe", "run"}
    assert all(each.smallest is not None for each in wrong.failures())


def test_its_cases_are_written_and_read(looks, tmp_path):
    publishing.write(looks, tmp_path)
    index = json.loads((tmp_path / vectors.INDEX).read_text())
    jsonschema.validate(index, json.loads((tmp_path / vectors.SCHEMA).read_text()))
    for written, read in zip(looks, vectors.read(directory=tmp_path), strict=True):
        assert read.name == written.name
        for name, x in written.inputs.items():
            np.testing.assert_array_equal(read.inputs[name], x)
            assert read.inputs[name].dtype.kind == x.dtype.kind, name
