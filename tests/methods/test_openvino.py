import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.cache import State
from kvlab.reference.methods import openvino
from kvlab.reference.observation import Clock
from support.build import kept, nothing_yet, observation, observe_rows
from support.tables import cases
from support.tolerances import FLOAT64

ROWS = ([1], [0.1, 0.9], [0.2, 0.3, 0.5], [0.1, 0.1, 0.6, 0.2], [0.1, 0.2, 0.1, 0.4, 0.2])
"""Attention of a prompt of four tokens, and of one generated token."""


@cases(__file__, "five_entries_by_hand", "options worth")
def test_five_entries_by_hand(options, worth):
    score = methods.get(f"openvino@page=1,start=1,recent=1,{options}", 4).score
    state, seen = observe_rows(score, ROWS, prompt=4)
    found = score.score(state, seen, seen.positions >= 0, 0)
    np.testing.assert_allclose(found, [worth], rtol=FLOAT64)


@pytest.mark.parametrize("options", ["window=2", "window=0,chunk=2"])
def test_a_prompt_in_parts_counts_as_one_step(options):
    """With chunks, the first two of which are complete."""
    score = methods.get(f"openvino@page=1,start=1,recent=1,pool=2,{options}", 4).score
    whole = observation(np.array([row + (5 - len(row)) * [0] for row in ROWS]), prompt=5)
    parts, _ = observe_rows(score, ROWS, prompt=5)
    at_once = score.observe(nothing_yet(score, whole), whole)
    for name in score.columns:
        np.testing.assert_allclose(at_once.entries[name], parts.entries[name], rtol=FLOAT64)


def test_the_prompt_counts_once_by_hand():
    """Nothing pooled: .4 1.1 .2 of the prompt's last two rows, and both generated tokens' rows."""
    score = methods.get("openvino@page=1,start=1,recent=1,aggregation=sum,pool=1,window=2", 4).score
    state, _ = observe_rows(score, (*ROWS, [0.1, 0.1, 0.2, 0.2, 0.2, 0.2]), prompt=4)
    expected = [0, 0.4 + 0.2 + 0.1, 1.1 + 0.1 + 0.2, 0.2 + 0.4 + 0.2, 0.2 + 0.2, 0.2]
    np.testing.assert_allclose(state.entries["accumulated"], [expected], rtol=FLOAT64)


@cases(__file__, "one_block_leaves_by_hand", "row stay")
def test_one_block_leaves_by_hand(row, stay):
    policy = methods.get("openvino@start=2,recent=2,page=2,pool=1,aggregation=sum", 6)
    seen = observation([row], prompt=8)
    state = State({name: np.zeros((1, 9)) for name in policy.score.columns})
    assert kept(policy, policy.score.observe(state, seen), seen) == stay


@cases(__file__, "kvcrush_keeps_another_block_by_hand", "options also")
def test_kvcrush_keeps_another_block_by_hand(options, also):
    policy = methods.get(f"openvino@start=2,recent=2,page=2,pool=1,aggregation=sum,{options}", 6)
    seen = observation([[0, 0, 0.3, 0.02, 0.05, 0.06, 0.1, 0.01, 0, 0, 0]], prompt=10)
    state = State({name: np.zeros((1, 11)) for name in policy.score.columns})
    assert kept(policy, policy.score.observe(state, seen), seen) == [0, 1, 2, 3, *also, 8, 9, 10]


def test_kvcrush_takes_every_so_many_th_block_by_hand():
    """Of six blocks to evict two are kept: in the order 6, 5, …, 1 the first and the fourth."""
    marked = np.arange(5) < np.array([2, 0, 1, 2, 3, 4, 5])[:, None]
    pages, score = openvino.CompletePages(5, 5, 2), openvino.PooledAttention(openvino.OpenVINO())
    stays = openvino.Crushed(score, pages, "ones").stay(np.eye(7)[0], 1.0 * marked, 15, 35)
    assert np.flatnonzero(stays).tolist() == [0, 3, 6]


def test_of_equal_scores_the_heap_decides_which_is_in_the_larger_half():
    assert openvino.upper_half(np.array([1.0, 1, 1, 2])).tolist() == [True, False, False, True]


def test_the_first_eviction_is_after_the_first_generated_token():
    due = methods.get("openvino", 672).schedule.due
    assert [due(Clock(8, 8, 8)), due(Clock(9, 1, 8)), due(Clock(10, 1, 8))] == [False, True, True]


@pytest.mark.parametrize(
    "options", ["start=-1", "recent=-32", "page=0", "pool=0", "window=-1", "crush=-1", "chunk=-1"]
)
def test_options_have_bounds(options):
    with pytest.raises(ValueError, match=options.partition("=")[0]):
        methods.get(f"openvino@{options}", 672)
