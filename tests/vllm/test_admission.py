"""A request is admitted by the blocks that it and all others can hold at most."""

from dataclasses import replace

import pytest

from kvlab.fast.vllm.settings import Settings, completed, most_blocks
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


def walked(settings: Settings, prompt: int, last: int) -> list[int]:
    """Return the blocks held at most from the prompt's last token on, from the next one on, ..."""
    due, held, evicted = settings.specification.schedule.due, [], [0] * (1 + settings.in_flight)
    for seen in range(prompt, last + 1):
        blocks = -(-seen // settings.block)
        held.append(blocks - evicted[-1 - settings.in_flight])
        decides = due(Clock(seen, prompt if seen == prompt else 1, prompt))
        evicted.append(max(evicted[-1], decides * (blocks - settings.blocks)))
    return [max(held[later:]) for later in range(len(held))]


@pytest.mark.parametrize("in_flight", [0, 1])
@pytest.mark.parametrize("method", SCHEDULES)
def test_the_bound_is_that_of_a_walk_over_all_tokens(method, in_flight):
    """Or larger: by one, as it does not look where in a block a decision is, and at the end."""
    settings = Settings(completed(method, 32), 96, 32, 2048, in_flight)
    for prompt, last in ((1, 400), (50, 700), (97, 98), (300, 900), (310, 311), (64, 64)):
        until, before, after = most_blocks(settings, prompt, last)
        walk = walked(settings, prompt, last)
        bounds = [max(before, after)] * len(walk[: until - prompt + 1])
        bounds += [after] * (len(walk) - len(bounds))
        assert all(most <= bound for most, bound in zip(walk, bounds, strict=True))
        assert bounds[0] <= walk[0] + 1


def test_a_schedule_of_ones_own_may_hold_every_block():
    settings = Settings(completed("tova", 32), 96, 32, 2048, 0)
    own = type("Own", (type(settings.specification.schedule),), {"__module__": "elsewhere"})
    vars(settings)["specification"] = replace(settings.specification, schedule=own())
    assert most_blocks(settings, 300, 900) == (900, 29, 29)


@pytest.mark.slow
def test_a_request_is_admitted_beside_a_thousand_within_a_millisecond(driver):
    """Texts of 131,072 tokens; the least of several times, of the thread alone."""
    found = driver.run(asked("h2o"), [["time_admission", {"running": 1000}]])
    assert found["milliseconds"] <= 1
