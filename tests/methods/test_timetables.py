"""When methods evict, how many entries are kept, and which where only age counts; by hand."""

import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.observation import Clock
from kvlab.reference.policy import EveryGeneratedBeyond, EveryMultipleBeyond
from support.build import run, stream
from support.tables import cases


@cases(__file__, "entries_after_every_step", "spec budget prompt block tokens left")
def test_entries_after_every_step(spec, budget, prompt, block, tokens, left):
    """After so many tokens so many entries are left; in between the cache grows."""
    data = stream(np.random.default_rng(3), 2, 2, 4, tokens)
    entries = 0
    for result in run(methods.get(spec, budget), *data, prompt, block):
        seen = result.seen.clock.seen
        entries = left.get(str(seen), entries + result.seen.clock.block)
        assert len(result.cache) == entries
        assert (result.keep is not None) == (str(seen) in left)


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


@cases(__file__, "who_is_left_where_age_decides", "spec budget prompt tokens stay")
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
