"""Drawn cases: of any target, of the sizes of kernels, from a seed or with hypothesis."""

from dataclasses import fields
from itertools import combinations, islice, product
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from kvlab.reference import methods
from kvlab.reference.conformance import draws, plan, strategies
from kvlab.reference.conformance.checker import fuzz
from kvlab.reference.conformance.implementation import Functions, exact_in_16_bits
from kvlab.reference.conformance.made import cases_of_stream
from kvlab.reference.conformance.operation import OPERATIONS
from kvlab.reference.conformance.planned import PUBLISHED, STREAMS, any_case, sized_cases
from kvlab.reference.conformance.report import Status
from kvlab.reference.conformance.serving import STATES
from kvlab.reference.conformance.targets import STEPS, answer
from kvlab.reference.conformance.whole_cache import whole_cache
from kvlab.reference.method import CommonOptions, Example
from kvlab.reference.selection import keep_set
from kvlab.reference.streams import Source, Stream
from support.sampling import examples, sampled

quickly = settings(
    max_examples=examples(20),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TABLES = (draws.ATTENTION, draws.SCORES, draws.CHANGES, draws.ENCODED, draws.RETENTION, STATES)


def test_every_building_block_is_drawn_and_every_variant_is_chosen():
    assert draws.BLOCKS.keys() == plan.SMALL.keys() == OPERATIONS.keys() - {*STEPS}
    chosen = {name for choices in plan.SMALL.values() for name in choices.get("variant", ())}
    for size in ("small", "kernel", "kernel_options"):
        chosen |= {told.get("variant", "plain") for told in STREAMS[size].values()}
    assert chosen == {name for table in TABLES for name in table}


ENTRIES = [(size, x) for size in plan.GROUPS for x in plan.TABLES[size] if "axes" not in x]


@pytest.mark.parametrize(("size", "entry"), ENTRIES, ids=lambda x: str(x)[:60])
def test_every_two_values_of_every_two_dimensions_meet(size, entry):
    values, rows = plan.dimensions(entry), [*plan.rows(size, entry)]
    assert all(plan.fits(entry, row) for row in rows)
    for one, two in combinations(values, 2):
        met = {(row[one], row[two]) for row in rows}
        due = {*product(values[one], values[two])}
        assert all(not allowed(entry, {one: a, two: b}) for a, b in due - met), (one, two)
    for name, choices in values.items():
        assert {row[name] for row in rows} == {*choices}, name


def allowed(entry, chosen):
    """Whether some values of the dimensions that are limited go with the chosen ones."""
    limited = {name for names, _ in entry.get("most", ()) for name in names} - {*chosen}
    rest = product(*(plan.dimensions(entry)[name] for name in limited))
    return any(plan.fits(entry, chosen | dict(zip(limited, x, strict=True))) for x in rest)


ELSEWHERE = {"reposition", "base", "fast"}
"""Options of whole caches, and what the name of a method says."""
NOWHERE = {"fast_caote": {"joint_greedy"}, "every method": {"model"}}
"""Choices that a method refuses, or that need several layers."""


PLANNED = {entry["operations"][0]: plan.dimensions(entry) for entry in plan.TABLES["options"]}
"""Methods with published cases; those of others are made on the spot, of their examples."""


@pytest.mark.parametrize("name", PLANNED)
def test_the_plan_has_every_option_its_default_and_every_choice(name):
    """A new option or choice fails here, until drawn.toml lists it, as does a new method."""
    assert {*PUBLISHED} - {"full"} <= PLANNED.keys()
    if name == "every_method":
        has_all(CommonOptions, PLANNED[name], but=("recent",))
    else:
        has_all(methods.lookup(name), PLANNED[name])


def has_all(kind, values, but=()):
    hints = get_type_hints(kind)
    for option in (each for each in fields(kind) if each.name not in {*ELSEWHERE, *but}):
        texts = {str(x).lower() for x in values[option.name]}
        assert str(option.default).lower() in texts, option.name
        if get_origin(hints[option.name]) is Literal:
            choices = {str(x).lower() for x in get_args(hints[option.name])}
            assert texts >= choices - NOWHERE.get(kind.name, set()), option.name
        else:
            assert len(texts) > 1, option.name


@pytest.mark.parametrize("target", sorted(draws.BLOCKS))
def test_the_reference_answers_every_choice(target):
    """Each value of each size once, with the simplest values of the others."""
    simplest = {name: values[0] for name, values in plan.SMALL[target].items()}
    for name, values in plan.SMALL[target].items():
        for value in values:
            wanted = {**simplest, name: value}
            order = iter([*wanted.values(), Source, 7])
            case = any_case(target, lambda values, order=order: next(order))
            assert case is None or case.expected, (target, wanted)
            if case is not None and target == "attend":
                queries = case.inputs["queries"]
                assert exact_in_16_bits(queries) == (wanted["variant"] != "float32_inputs")
                assert np.isfinite(case.expected["output"].value).all()


SOME = ("h2o.select", "caote:tova.score", "lazy_eviction.observe", "desirekv.keep", "h2o.run")


@pytest.mark.parametrize("target", sampled(("keep_set", "encode", *SOME), ("encode", *SOME[::2])))
def test_hypothesis_draws_cases_of_every_kind_of_target(target):
    @quickly
    @given(strategies.cases(target))
    def has_an_answer(case):
        assert case.target == target and answer(case).keys() == case.expected.keys()

    has_an_answer()


@pytest.mark.slow
def test_fuzz_asks_whole_caches_and_finds_rows_that_do_not_move():
    def engine(tokens, padding, calls, continues, **given):
        stays = np.tile(np.arange(len(tokens)), (len(calls), 1))
        asked = {"tokens": tokens, "padding": padding, "calls": calls, "continues": stays}
        found = whole_cache(**asked, **{"learned_sinks": None, **given})
        return {name: each.value for name, each in found.items()}

    report = fuzz("tova.whole_cache", Functions({"tova.whole_cache": engine}), 0, 40)
    (failure,) = report.failures()
    moved = failure.case.inputs["continues"]
    assert (moved != np.arange(moved.shape[1])).any() and failure.smallest is not None


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="must be a whole cache of one of full, h2o"):
        any_case("rkv.whole_cache", lambda values: values[0])
    with pytest.raises(ValueError, match="target = 'no' must be one of"):
        strategies.cases("no")


# --- sizes ---------------------------------------------------------------------------------------


def test_a_seed_draws_the_same_numbers_again():
    first, again, other = (sized_cases("kernel", n, "h2o.select".__eq__) for n in (0, 0, 1))
    first = [*islice(first, 12)]
    for one, two, three in zip(first, again, other, strict=False):
        assert one.name == two.name == three.name
        np.testing.assert_array_equal(one.inputs["keys"], two.inputs["keys"])
        assert not np.array_equal(one.inputs["keys"], three.inputs["keys"])
    blocks = {case.parameters["block"] for case in first if case.parameters["generated"]}
    assert {1} < blocks, "a second turn of several tokens"


# --- fuzzing -------------------------------------------------------------------------------------


def test_fuzzing_finds_what_comes_from_earlier_calls_and_draws_the_same_again():
    calls = []

    def kept(scores, safe, room):
        calls.append(1)
        return keep_set(scores.astype(float), safe, room + (len(calls) > 25 and room > 1))

    assert fuzz("keep_set", Functions({"keep_set": kept}), 3, 30).count(Status.FAILED) == 1
    right = Functions({"keep_set": lambda scores, safe, room: keep_set(scores, safe, room)})
    assert fuzz("keep_set", right, 3, 10).passed
    always = Functions({"keep_set": lambda scores, safe, room: keep_set(-scores, safe, room)})
    (failure,), (same,) = (fuzz("keep_set", always, 1, 40).failures() for _ in range(2))
    np.testing.assert_array_equal(failure.case.inputs["scores"], same.case.inputs["scores"])
    assert failure.smallest is not None and failure.smallest.case.inputs["scores"].size <= 4


@pytest.mark.parametrize(("size", "made"), [(30, 1), (300, 0)])
def test_a_stream_that_is_decided_by_scores_too_small_for_float32_is_no_case(size, made):
    """Scores of exp(-24) and exp(-27) decide; exp(-240) and exp(-270) are 0 in float32."""
    keys = np.array([1, 1, 0.1, 0.2, 0, 1]).reshape(1, 6, 1)
    stream = Stream(np.full((1, 1, 6, 1), size), keys, keys, np.ones(6), 6, (6,))
    assert len(cases_of_stream(Example("tova", 4), stream, "plain", ["run"])) == made
