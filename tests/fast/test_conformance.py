"""PyTorch and Triton pass the conformance kit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kvlab.fast.kernels.choice import VARIABLE
from kvlab.fast.lab import conformance
from kvlab.reference import methods
from kvlab.reference.conformance.checker import cases, check, run_case
from kvlab.reference.conformance.implementation import load
from kvlab.reference.conformance.made import cases_of_stream, made_case
from kvlab.reference.conformance.report import Status
from kvlab.reference.conformance.targets import has_vectors
from kvlab.reference.conformance.whole_cache import whole_cache
from kvlab.reference.method import Example
from kvlab.reference.methods import base_name
from kvlab.reference.models import reasoner_directory
from kvlab.reference.streams import Source, random_stream
from support import interpreter
from support.mutants import planted_engine

FILE = Path(conformance.__file__)
KERNELS = (
    *("attend", "attention", "received_attention", "keep_set", "compact", "quantize"),
    *("quantize_dequantize", "attend_coded", "eviction_error", "outlier_score"),
)
"""Building blocks that Triton kernels compute."""

PAGES = {
    *("attend_pages", "compact_pages", "events"),
    *("attend_requests", "merge_states", "write_pages"),
}
"""A cache of slots has no block tables."""


@pytest.mark.slow
def test_pytorch_passes():
    under_test, everything = load(FILE), cases()
    outcomes = [run_case(under_test, case) for case in everything]
    failed = [(each.case.name, each.reason) for each in outcomes if each.status == Status.FAILED]
    assert not failed
    assert {case.target for case in everything if not under_test.offers(case.target)} == PAGES
    untested = {each.case.target for each in outcomes if each.status == Status.NOT_TESTED}
    alone = {each.case.target for each in outcomes} - {
        each.case.target for each in outcomes if each.status == Status.PASSED
    }
    known = {"eviction_error", "full.whole_cache", *PAGES}
    capped = {target for target in untested if target.endswith(".whole_cache")} - known
    assert untested - capped == known, "the kernel knows one norm, and attention no learned sinks"
    assert not capped & alone, "windows and softcaps"


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("target", ["attend", "attention", "attend_coded"])
def test_pytorch_passes_in_half_precision(target, precision):
    report = check(target, load(FILE, precision=precision), minimise=False)
    report.raise_for_failures()
    untested = {group.group for group in report.groups if group.count(Status.NOT_TESTED)}
    drawn = {"float32_inputs", "pairs"} if target != "attend_coded" else {"float32_inputs"}
    assert untested == drawn & {group.group for group in report.groups}


def test_a_few_entries_may_have_as_many_free_slots():
    """Seven are most of a head; its buffer has eight slots more, which are over twice as many."""
    case = next(x for x in cases() if x.name == "tova.whole_cache/cache_second_turn/tova/5")
    case = made_case(case.name, "", "tova", (case.inputs, {**case.parameters, "budget": 3}))
    assert run_case(load(FILE), case).status == Status.PASSED


@pytest.mark.parametrize("scope", ["window", "all"])
def test_desirekv_answers_where_the_window_of_an_event_has_left(scope):
    """Only tokens from 29 on are there; the events of P = 4, R = 2 decide about earlier ones."""
    late = replace(random_stream(Source("late", 0), 2, 1, 8, 1, 7), blocks=(1, 1, 3), first=29)
    example = Example(f"desirekv@interval=4,selector=2,scope={scope}", None)
    asked = cases_of_stream(example, late, "late", ("select", "keep"))
    assert {case.operation for case in asked} == {"select", "keep"}
    outcomes = [run_case(load(FILE), case) for case in asked]
    assert {each.status for each in outcomes} == {Status.PASSED}, outcomes[0].reason


@pytest.mark.parametrize("seed", range(4))
def test_a_block_of_several_tokens_is_stamped_as_in_the_reference(seed):
    """A page's bound is that of the keys that a token has seen."""
    given = random_stream(Source("stamps", seed), 2, 2, 4, 10, 14)
    given = replace(given, blocks=(10, 1, 7, 1, 4, 1))
    asked = cases_of_stream(Example("raas@page=4,pin_prompt=false", 16), given, "", ("observe",))
    assert 4 in {case.parameters["block"] for case in asked}
    outcomes = [run_case(load(FILE), case) for case in asked]
    assert {each.status for each in outcomes} == {Status.PASSED}, outcomes


@pytest.fixture
def launched(monkeypatch):
    """Let Triton's interpreter run the kernels; the modules of those that are launched."""
    if torch.cuda.is_available():
        pytest.skip("Triton compiles for the GPU in this process")
    monkeypatch.setenv(VARIABLE, "interpret")
    interpreter.hurry()
    interpreter.launched.clear()
    return interpreter.launched


def assert_pass(targets, every=True):
    """Run all cases of each target, or one of those with grouped heads."""
    under_test, everything = load(FILE), cases()
    for target in targets:
        asked = [case for case in everything if case.target == target]
        if not every:
            group = min({case.group for case in asked} & {"gqa", "plain"})
            low = [case for case in asked if case.group == "below_the_mask"]
            asked = [case for case in asked if case.group == group][:1] + low
        outcomes = [run_case(under_test, case) for case in asked]
        failed = [(x.case.name, x.reason) for x in outcomes if x.status == Status.FAILED]
        assert not failed
        assert Status.PASSED in {each.status for each in outcomes}, target


@pytest.mark.slow
def test_triton_passes_on_its_building_blocks_and_some_streams(launched):
    assert_pass([*KERNELS, "caote:tova.run", "kivi.run"], every=False)
    assert launched >= {"decode", "caote", "prefill", "keep", "move", "quantise", "mixed_precision"}


@pytest.mark.slow
@pytest.mark.parametrize("method", [None, *filter(has_vectors, methods.names())])
def test_triton_passes_everything(method, launched):
    targets = {c.target for c in cases(method) if c.method and base_name(c.method) == method}
    assert_pass(sorted(targets) if method else KERNELS)


def test_rows_of_unequal_padding_are_moved_with_it():
    """By PyTorch and by the kit's right engine: no published case moves such rows."""
    rng, variants = np.random.default_rng(0), ("softcap", "sliding_window", "learned_sinks")
    given = {
        **{"model": str(reasoner_directory()), "method": "full", "budget": None},
        **{"tokens": rng.integers(3, 40, (2, 14)), "padding": np.array([0, 5])},
        **{"calls": np.array([10, 1, 1, 1, 1]), "block_size": None, **dict.fromkeys(variants)},
        "continues": np.array([[0, 1], [0, 1], [1, 0], [0, 1], [1, 1]]),
    }
    tensors = {k: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for k, x in given.items()}
    found = conformance.IMPLEMENTATIONS["*.whole_cache"](**tensors)["logits"].numpy()
    expected = whole_cache(**given)["logits"].value
    for each in (found, planted_engine(None).whole_cache(**given)["logits"]):
        np.testing.assert_allclose(each, expected, rtol=0, atol=1e-3)
