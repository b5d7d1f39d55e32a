"""A request is admitted by the blocks that it and all others can hold at most."""

from dataclasses import replace
from itertools import pairwise

import pytest

from kvlab.fast.vllm.settings import Settings, completed
from kvlab.reference.observation import Clock
from support.block_oracle import asked

SCHEDULES = (
    "h2o",
    "h2o@every=25",
    "snapkv",
    "snapkv@schedule=every_block",
    "rkv@window=8,every=40",
    "lazy_eviction@window=16",
    "streaming_llm@protected=first4",
    "triattention",
    "longflow",
)


def walked(settings: Settings, prompt: int, last: int, steps: list[int]) -> list[int]:
    """Return the blocks held at most from each of these steps on, of which each ends at a token."""
    due, held, evicted = settings.specification.schedule.due, [], [0] * (1 + settings.in_flight)
    size = settings.prompt_block
    for before, seen in pairwise([0, *steps]):
        blocks = -(-seen // settings.block)
        held.append(blocks - evicted[-1 - settings.in_flight])
        read = (seen - 1) % size + 1 if seen <= prompt else seen - before
        decides = due(Clock(seen, read, prompt)) and (seen % size == 0 or seen >= prompt)
        evicted.append(max(evicted[-1], decides * (blocks - settings.blocks)))
    return [max(held[later:]) for later in range(len(held))]


@pytest.mark.parametrize("size", [None, 32, 128])
@pytest.mark.parametrize("in_flight", [0, 1])
@pytest.mark.parametrize("method", SCHEDULES)
def test_the_bound_is_that_of_a_walk_over_all_tokens(method, in_flight, size):
    """Or larger: by one, as it does not look where in a block a decision is, and at the end."""
    settings = Settings(completed(method, 32), 96, 32, 2048, in_flight, size or 2048)
    for prompt, last in ((1, 400), (50, 700), (97, 98), (300, 900), (310, 311), (64, 64)):
        ends = [*range(size or prompt, prompt, size or prompt), *range(prompt, last + 1)]
        bounds, walk = settings.holding.most(prompt, last), walked(settings, prompt, last, ends)
        assert bounds[-1][0] == last and bounds == sorted(bounds, key=lambda each: -each[1])
        for seen, most in zip(ends, walk, strict=True):
            assert most <= next(bound for until, bound in bounds if seen <= until)
        assert bounds[0][1] <= walk[0] + 1 + in_flight


def test_a_schedule_of_ones_own_may_hold_every_block():
    settings = Settings(completed("tova", 32), 96, 32, 2048, 0, 2048)
    own = type("Own", (type(settings.specification.schedule),), {"__module__": "elsewhere"})
    vars(settings)["specification"] = replace(settings.specification, schedule=own())
    assert settings.holding.most(300, 900) == [(900, 29)]


@pytest.mark.slow
def test_a_request_is_admitted_beside_a_thousand_within_a_millisecond(driver):
    """Texts of 131,072 tokens; the least of several times, of the thread alone."""
    found = driver.run(asked("h2o"), [["time_admission", {"running": 1000}]])
    assert found["milliseconds"] <= 1
