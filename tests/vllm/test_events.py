"""Requests come, share prefixes, are chunked, wait for a full pool and are taken back: any history.

Events are data, as `driver.Engine` takes them. Whatever happened around a request, its text is the
one that kvlab writes for it alone, and its blocks are evicted at the same tokens.
"""

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

from kvlab.fast.vllm import SCHEDULER
from support.block_oracle import METHODS, arriving, asked, assert_as_specified, of, texts

SMALL = {
    "num_gpu_blocks_override": 18,  # one is vLLM's own; a text of 512 tokens fills 16
    "max_num_seqs": 4,
    "max_num_batched_tokens": 48,  # prompts come in chunks
    "enable_prefix_caching": True,
}
TEXT = texts(*[160] * 3, seed=5)
SIZE = 64
IN_BLOCKS = SMALL | {"scheduler_cls": SCHEDULER}
"""Prompts are read in blocks of 64 tokens, of which blocks are evicted."""


@st.composite
def histories(draw) -> tuple[list, dict[str, list[int]]]:
    """Return events, and the prompts of the requests that end by themselves, by name."""
    events, prompts = [], {}
    for number in range(draw(st.integers(2, 6))):
        name = f"r{number}"
        shared = TEXT[f"r{draw(st.integers(0, 2))}"][: 32 * draw(st.integers(0, 4))]
        prompt = [*shared, *texts(draw(st.integers(1, 70)), seed=number)["r0"]]
        tokens, several = draw(st.integers(1, 60)), draw(st.sampled_from([1, 1, 2, 3]))
        arrival = {"name": name, "prompt": prompt, "tokens": tokens, "n": several}
        if several > 1:  # vLLM has no greedy texts of one prompt
            arrival |= {"temperature": 1.0, "top_k": 1}
        events += [["arrive", arrival], ["step", {"times": draw(st.integers(0, 15))}]]
        prompts[name] = (prompt, several)
        if draw(st.integers(0, 3)) == 0:
            gone = draw(st.sampled_from(sorted(prompts)))
            events.append(["abort", {"name": gone}])
            prompts.pop(gone)
    return [*events, ["drain"]], prompts


def single(found: dict, prompts) -> tuple[dict, dict]:
    """Return the texts as if each had been a request of its own."""
    alone, texts_alone, evicted = {}, {}, []
    for name, (prompt, several) in prompts.items():
        for index in range(several):
            who = f"{index}_{name}" if several > 1 else name
            alone[who] = prompt
            texts_alone[f"{who}/0"] = found["texts"][f"{name}/{index}"]
            evicted += [[who, *each] for each in of(found, who)]
    return found | {"texts": texts_alone, "evicted": evicted}, alone


@pytest.mark.parametrize(
    ("within", "engine"),
    [({}, SMALL), ({"block_size": SIZE}, IN_BLOCKS)],
    ids=["prompts whole", "in blocks"],
)
@pytest.mark.parametrize("method", ["tova", "caote:h2o@recent=16"])
@settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],  # an example takes seconds
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(history=histories())
def test_a_text_is_what_it_would_be_alone_whatever_happens_around_it(
    driver, model, method, within, engine, history
):
    events, prompts = history
    found = driver.run(asked(method, **within), events, **engine)
    assert "error" not in found, found["trace"]
    assert_as_specified(model[0], *single(found, prompts), method, size=within.get("block_size"))
    assert found["preempted"] == 0


WITHIN = [x for x in METHODS if "lazy" not in x and "rkv" not in x]
"""Those that evict within prompts; the others read a prompt whole."""


@pytest.mark.parametrize("method", [*WITHIN, "looks@recent=16"])
def test_a_text_is_what_compress_writes_in_blocks(driver, model, method):
    """Four prompts of up to ten blocks, the longest last, and vLLM has 17: all run at once."""
    prompts, given = texts(50, 129, 200, 300, seed=11), asked(method, block_size=SIZE)
    chunks = IN_BLOCKS | {"max_num_batched_tokens": 150}  # some end within blocks
    found = driver.run(given, [*arriving(prompts, 40), ["drain"]], **chunks)
    assert assert_as_specified(model[0], found, prompts, method, size=SIZE) >= 12
    assert {seen for seen, *_ in of(found, "r3")} >= {128, 192, 256, 300}
    assert found["preempted"] == 0 and found["at_once"] == 4


@pytest.mark.parametrize("length", [220, 128])
@pytest.mark.parametrize(
    ("method", "cached"), [("snapkv@window=40,schedule=every_block", 64), ("tova", 96)]
)
def test_a_prefix_is_handed_on_up_to_the_first_eviction(driver, model, method, cached, length):
    """That is after 128 tokens, of which the second request reads those that its score needs."""
    prefix = texts(200, seed=3)["r0"]
    prompts = {name: [*prefix, *texts(20, seed=n)["r0"]] for n, name in enumerate("ab")}
    prompts["a"] = prompts["a"][:length]
    first, second = arriving(prompts, 30)
    events = [first, ["step", {"times": 12}], second, ["drain"]]
    found = driver.run(asked(method, block_size=SIZE), events, **IN_BLOCKS)
    assert assert_as_specified(model[0], found, prompts, method, size=SIZE) >= 4
    assert found["cached"] == cached


def test_texts_of_one_prompt_share_what_was_read_of_it(driver, model):
    prompts, method = texts(150, seed=6), "caote:h2o@recent=16"
    events = [*arriving(prompts, 40, n=3, temperature=1.0, top_k=1), ["drain"]]
    found = driver.run(asked(method), events, **SMALL)
    alone = single(found, {"r0": (prompts["r0"], 3)})
    assert assert_as_specified(model[0], *alone, method) >= 9
    assert found["cached"] == 128


def test_a_pool_that_is_full_lets_requests_wait(driver, model):
    """Five requests that hold at most five blocks each, and seventeen blocks."""
    prompts = texts(*[150] * 5, seed=9)
    found = driver.run(asked("tova"), [*arriving(prompts, 50), ["drain"]], **SMALL)
    assert assert_as_specified(model[0], found, prompts, "tova") >= 15
    assert found["preempted"] == 0 and found["least_free"] <= 8  # when a step has ended


def test_what_a_prompt_held_is_free_for_others_when_it_was_read(driver, model):
    """Prompts of eight blocks, of which three stay: a third comes beside two that hold four."""
    prompts = texts(*[250] * 5, seed=9)
    found = driver.run(asked("tova"), [*arriving(prompts, 60), ["drain"]], **SMALL)
    assert assert_as_specified(model[0], found, prompts, "tova") >= 25
    assert found["at_once"] >= 3 and found["preempted"] == 0


CACHED = {"tova": 96, "caote:h2o@recent=16": 0, "longflow@window=32": 64}
CACHED |= {"snapkv@window=24,schedule=every_block": 64}
"""Tokens of 96 that a request finds, which has 20 more: its score has to see the last ones."""


@pytest.mark.parametrize(("method", "cached"), CACHED.items())
def test_a_prefix_is_handed_on_as_it_was_read_or_not_at_all(driver, model, method, cached):
    """The second request comes when blocks of the first one's prompt are evicted."""
    prefix = texts(128, seed=3)["r0"]
    prompts = {name: [*prefix[:last], *range(3, 23)] for name, last in (("a", 128), ("b", 96))}
    first, second = arriving(prompts, 60)
    events = [first, ["step", {"times": 40}], second, ["drain"]]
    found = driver.run(asked(method), events, **SMALL)
    assert len(of(found, "a")) >= 3
    assert_as_specified(model[0], found, prompts, method)
    assert found["cached"] == cached


def test_blocks_that_were_computed_under_eviction_are_not_handed_on(driver, model):
    """A second turn: the first one's prompt comes from the cache, what was written does not."""
    prompts = texts(70, seed=4)
    once = driver.run(asked("tova"), [*arriving(prompts, 100), ["drain"]], **SMALL)
    turn = [*prompts["r0"], *once["texts"]["r0/0"]["tokens"]]
    found = driver.run(asked("tova"), [*arriving({"r1": turn}, 20), ["drain"]], **SMALL)
    assert_as_specified(model[0], found, {"r1": turn}, "tova")
    assert found["cached"] == 64
