"""Strategies draw valid inputs, and a wrong function is found with them."""

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kvlab.reference import Stream, methods
from kvlab.reference.attention import attend, visible
from kvlab.reference.conformance import strategies
from kvlab.reference.conformance.blocks import OPERATIONS as BLOCKS
from kvlab.reference.conformance.implementation import exact_in_16_bits
from kvlab.reference.conformance.targets import OPERATIONS
from kvlab.reference.selection import keep_set

quickly = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
SPECS = (
    ("h2o@recent=4", 12),
    ("caote:tova", 12),
    ("lazy_eviction@window=4,threshold=0.05", 12),
    ("desirekv@interval=6,selector=3,group=4", None),
)


@quickly
@given(strategies.attention_inputs())
def test_every_query_sees_an_entry(inputs):
    mask = visible(inputs["query_positions"], inputs["positions"])
    output, _ = attend(inputs["queries"], inputs["keys"], inputs["values"], mask)
    assert np.isfinite(output).all()
    assert all(exact_in_16_bits(inputs[name]) for name in ("queries", "keys", "values"))


@quickly
@given(strategies.selections())
def test_selections_protect_equally_many(selection):
    kept = keep_set(**selection)
    assert (selection["safe"].sum(axis=-1) == selection["safe"][0].sum()).all()
    assert kept.shape[0] == len(selection["scores"])


def test_a_wrong_tie_rule_is_found():
    @settings(max_examples=200, deadline=None, database=None, phases=[Phase.generate])
    @given(strategies.selections())
    def earlier_stays(selection):
        n = selection["scores"].shape[1]
        turned = {k: v[:, ::-1] if k != "room" else v for k, v in selection.items()}
        np.testing.assert_array_equal(
            np.sort(n - 1 - keep_set(**turned), axis=-1), keep_set(**selection)
        )

    with pytest.raises(AssertionError):
        earlier_stays()


@quickly
@given(strategies.streams())
def test_streams_are_whole(stream):
    assert isinstance(stream, Stream)
    assert sum(stream.blocks) == stream.tokens
    assert np.isnan(stream.confidence[: stream.prompt]).all()


@quickly
@given(st.sampled_from(sorted(BLOCKS)).flatmap(strategies.cases))
def test_building_blocks(case):
    again = OPERATIONS[case.operation].compute(case.inputs, case.parameters, None)
    assert set(again) == set(case.expected)


@pytest.mark.parametrize(("spec", "budget"), SPECS)
def test_steps_of_methods(spec, budget):
    @quickly
    @given(strategies.observations(spec, budget, "select"))
    def expects(case):
        kept = case.expected["keep"].value
        assert (np.diff(kept, axis=-1) > 0).all()
        assert case.method == spec and methods.parse(case.method)

    expects()


@quickly
@given(strategies.runs("h2o@recent=4", 12))
def test_whole_streams(case):
    assert case.expected["present"].value.shape[0] == len(case.inputs["blocks"])


def test_a_step_is_no_building_block():
    with pytest.raises(ValueError, match="must be a building block"):
        strategies.cases("h2o.score")
