"""When methods evict, how many entries are kept, and which where only age counts; by hand."""

import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.observation import Clock
from kvlab.reference.policy import EveryGeneratedBeyond, EveryMultipleBeyond
from support.build import run, stream

DESIREKV = "desirekv@selector=2,group=4,protection=none"
TRI = "triattention@every=4,layers=apart"


@pytest.mark.parametrize(
    ("spec", "budget", "prompt", "block", "tokens", "left"),
    [
        ("tova", 1, 4, None, 9, dict.fromkeys(range(4, 10), 1)),
        ("snapkv@window=3", 8, 20, None, 30, {20: 8}),
        # at every step
        ("caote:snapkv@window=3", 8, 20, None, 30, dict.fromkeys(range(20, 31), 8)),
        ("streaming_llm@every=5,when_full=true", 8, 10, None, 20, {13: 8, 18: 8}),
        ("rkv@every=8,window=3", 12, 20, None, 40, {20: 12, 24: 12, 32: 12, 40: 12}),
        ("lazy_eviction@window=4", 8, 14, None, 34, {18: 8, 22: 8, 26: 8, 30: 8, 34: 8}),
        ("rpc@interval=8,selector=2", 12, 5, None, 40, {15: 12, 23: 12, 31: 12, 39: 12}),
        # prompt 3, P = 8, R = 2, c = 4: candidates 8, 10, 12 shrink to 2, 4, 6; + 3 + 2 stay
        ("rpc@interval=8,selector=2", None, 3, None, 29, {13: 7, 21: 9, 29: 11}),
        # ⌊10/4⌋ more at each event
        ("rpc@interval=10,selector=2", None, 3, None, 25, {15: 7, 25: 9}),
        # P = 5, half of which is 2 entries; P = 8, a quarter of which is 2; 3 + 2 stay besides
        (f"{DESIREKV},interval=5", None, 3, None, 15, {10: 7, 15: 9}),
        (f"{DESIREKV},interval=8,importance_quantile=0.75", None, 3, None, 21, {13: 7, 21: 9}),
        # where the window of 2, or of 4, is full beyond the budget, but not in prefill
        ("random_attention@recent=2", 6, 3, None, 13, {8: 6, 10: 6, 12: 6}),
        ("random_attention@recent=2", 7, 3, None, 13, {9: 7, 11: 7, 13: 7}),
        ("random_attention@recent=2", 6, 9, None, 13, {10: 6, 12: 6}),
        ("random_attention@recent=2,newest=beside", 6, 3, None, 13, {10: 8, 12: 8}),
        # 8 of a multiple of 4 are there, of which 6 stay; the prompt of 9 is cut at 12
        ("random_attention@recent=4,counted=all", 6, 3, None, 13, {8: 6, 10: 6, 12: 6}),
        ("random_attention@recent=4,counted=all", 6, 9, None, 17, {12: 6, 14: 6, 16: 6}),
        ("random_attention@recent=4", 6, 3, None, 15, {10: 6, 14: 6}),
        ("vase@recent=4,counted=all", 6, 3, None, 13, {8: 6, 10: 6, 12: 6}),
        ("vase@recent=4", 6, 3, None, 15, {10: 6, 14: 6}),
        *((TRI, 6, prompt, 5, 18, {10: 6, 14: 6, 18: 6}) for prompt in (3, 8)),
        (TRI, 6, 12, 5, 18, {13: 6, 17: 6}),
        ("expected_attention@every=3,ahead=3,sinks=1", 6, 7, 4, 14, {7: 6, 10: 6, 13: 6}),
    ],
)
def test_entries_after_every_step(spec, budget, prompt, block, tokens, left):
    """After so many tokens so many entries are left; in between the cache grows."""
    data = stream(np.random.default_rng(3), 2, 2, 4, tokens)
    entries = 0
    for result in run(methods.get(spec, budget), *data, prompt, block):
        seen = result.seen.clock.seen
        entries = left.get(seen, entries + result.seen.clock.block)
        assert len(result.cache) == entries
        assert (result.keep is not None) == (seen in left)


def evictions(schedule, prompt: int, tokens: int) -> list[int]:
    """Return the tokens seen whenever a schedule is due, and its prompt is read at once."""
    clocks = [
        Clock(prompt, prompt, prompt),
        *(Clock(t, 1, prompt) for t in range(prompt + 1, tokens)),
    ]
    return [clock.seen for clock in clocks if schedule.due(clock)]


@pytest.mark.parametrize("name", ["random_attention", "vase"])
def test_the_authors_cache_counts_all_entries(name):
    """176 = 11·16 is the first multiple above 167, 9 above it: so 9 more tokens fill it again."""
    ours, theirs = (methods.get(f"{name}@recent=16{each}", 167) for each in ("", ",counted=all"))
    assert evictions(ours.schedule, 32, 232) == [183, 199, 215, 231]
    assert evictions(theirs.schedule, 32, 204) == [176, 185, 194, 203]
    assert evictions(theirs.schedule, 180, 212) == [192, 201, 210]


def cache_of_the_authors(budget: int, every: int, prompt: int, tokens: int) -> list[int]:
    """Count entries as the authors' cache does, and return when it evicts."""
    entries, found = prompt, []
    for seen in range(prompt + 1, tokens):
        entries += 1
        if entries > budget and entries % every == 0:
            entries = budget
            found.append(seen)
    return found


@pytest.mark.parametrize(
    ("budget", "every"), [(167, 16), (160, 16), (7, 5), (8, 1), (9, 8), (31, 16)]
)
@pytest.mark.parametrize("prompt", [0, 1, 6, 9, 12, 160, 167, 176, 190])
def test_the_timetable_is_that_of_the_authors_cache(budget, every, prompt):
    expected = cache_of_the_authors(budget, every, prompt, 400)
    assert evictions(EveryMultipleBeyond(every, budget), prompt, 400) == expected
    beyond = evictions(EveryGeneratedBeyond(every, budget), prompt, 400)
    assert (beyond == expected) == (budget % every == 0)


EVERY = ("h2o@", "tova@", "caote:tova@", "random@", "knorm@", "value_norm@", "streaming_llm@")
EVERY += ("ahakv@recent=2,", "snapkv@window=2,schedule=every_block,")


@pytest.mark.parametrize("spec", EVERY)
def test_every_so_many_generated_tokens(spec):
    """After the prompt of 10, and at 15 and 20; in between the cache grows from 8 to 12."""
    results = run(
        methods.get(f"{spec}every=5", 8), *stream(np.random.default_rng(3), 1, 1, 4, 21), 10
    )
    assert [len(each.cache) for each in results] == [8, 9, 10, 11, 12, 8, 9, 10, 11, 12, 8, 9]


@pytest.mark.parametrize(
    ("spec", "budget", "prompt", "tokens", "stay"),
    [
        # s = 2, B = 5: the first 2 and the last 5 − 2 = 3
        ("streaming_llm@sinks=2", 5, 0, 8, [0, 1, 5, 6, 7]),
        ("streaming_llm@sinks=2", 5, 20, 20, [0, 1, 17, 18, 19]),
        ("streaming_llm@sinks=0", 3, 0, 8, [5, 6, 7]),
        # where all are active, or none is, the last use says nothing
        ("raas@pin_prompt=false,threshold=0.0", 6, 0, 20, [*range(14, 20)]),
        ("raas@pin_prompt=false,threshold=2.0", 6, 0, 20, [*range(14, 20)]),
        ("lazy_eviction@window=4,threshold=0.0", 8, 0, 24, [*range(16, 24)]),
        ("lazy_eviction@window=4,threshold=2.0", 8, 0, 24, [*range(16, 24)]),
        # as many entries are protected as the budget holds
        ("h2o@recent=6", 6, 5, 15, [*range(9, 15)]),
    ],
)
def test_who_is_left_where_age_decides(spec, budget, prompt, tokens, stay):
    data = stream(np.random.default_rng(5), 2, 2, 4, tokens)
    cache = run(methods.get(spec, budget), *data, prompt)[-1].cache
    assert cache.positions.tolist() == [stay, stay]


@pytest.mark.parametrize(("spec", "budget"), [("raas", 8), ("rpc@interval=8,selector=2", None)])
def test_the_prompt_is_pinned(spec, budget):
    data = stream(np.random.default_rng(6), 2, 2, 4, 30)
    for result in run(methods.get(spec, budget), *data, prompt=5):
        np.testing.assert_array_equal(result.cache.positions[:, :5], [range(5)] * 2)


@pytest.mark.parametrize(
    ("spec", "longest"),
    [("raas", 6), ("random_attention@recent=2,prompt=whole", 4), ("triattention@prompt=whole", 6)],
)
def test_a_pinned_prompt_beyond_the_budget_is_refused(spec, longest):
    policy = methods.get(spec, 6)
    policy.check(prompt=longest)
    with pytest.raises(ValueError, match="budget = 6 must be at least the 7 entries"):
        policy.check(prompt=longest + 1)
