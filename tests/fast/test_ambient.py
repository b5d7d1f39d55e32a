"""No state that PyTorch keeps for a whole thread or process changes a score or breaks a step."""

from contextlib import ExitStack, contextmanager
from itertools import product

import pytest
import torch

from kvlab.fast import compress, methods
from kvlab.fast.engine.cache import BatchClock
from kvlab.fast.engine.layers import Layers
from kvlab.fast.engine.step import Block, attend, begin, finish
from kvlab.fast.huggingface import agreement
from support.cases import ALL, CODED, GRANULAR, ONE_EACH, budget_of
from support.models import prompts, tiny
from support.sampling import sampled
from support.tolerances import FLOAT32_SCORES


@contextmanager
def set_to(change, value, before):
    change(value)
    try:
        yield
    finally:
        change(before)


@pytest.fixture(autouse=True)
def _models_are_compared_anew(monkeypatch):
    monkeypatch.setattr(agreement, "_differences", {})


STATES = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast to float16": lambda: torch.autocast("cpu", dtype=torch.float16),
    "float64 by default": lambda: set_to(torch.set_default_dtype, torch.float64, torch.float32),
    "bfloat16 by default": lambda: set_to(torch.set_default_dtype, torch.bfloat16, torch.float32),
    "another device": lambda: torch.device("meta"),
    "inference": torch.inference_mode,
    "gradients": torch.enable_grad,
    "deterministic": lambda: set_to(torch.use_deterministic_algorithms, True, False),
    "two threads": lambda: set_to(torch.set_num_threads, 2, torch.get_num_threads()),
}


def budget_for(spec):
    """Return a budget: of four pages where a method protects whole ones."""
    return budget_of(spec, 16 if spec in GRANULAR else 12)


def read(model, spec, state, rest):
    """Read a padded prompt and a second text in one state, and single tokens between in another.

    Return what each layer was given, and what came of it.
    """
    steps, inputs = [], prompts([21, 13])
    text, mask = inputs["input_ids"], inputs["attention_mask"]
    tokens = torch.full((2, 1), 5)

    def watch(block, result):
        given = (block.queries, block.keys, block.values, block.confidence.clone())
        steps.append((block, given, (result.output, result.scores, result.cache.positions)))

    with ExitStack() as context:
        with state():
            cache = context.enter_context(compress(model, spec, budget_for(spec), watch=watch))
            model(text, attention_mask=mask, past_key_values=cache)
        for _ in range(9):
            with rest():
                model(tokens, past_key_values=cache)
        with state():
            model(text[:, -3:], past_key_values=cache)
            cache.copy().reorder_cache(torch.tensor([1, 0], device="cpu"))
            cache.check()
    return steps


@torch.inference_mode()
def replayed(spec, steps, layers):
    """Give the same blocks to the engine alone; return what comes of them."""
    found = []
    watch = lambda _, result: found.append(  # noqa: E731
        (result.output, result.scores, result.cache.positions)
    )
    engine = Layers(methods.get(spec, budget_for(spec)), layers, watch)
    for first in range(0, len(steps), layers):
        clock = steps[first][0].clock
        clock = BatchClock(clock.rows, clock.positions, clock.prompt)
        begin(engine, clock)
        for place in range(layers):
            block, (*vectors, confidence), _ = steps[first + place]
            attend(
                engine,
                place,
                Block(clock, block.layer, *vectors, confidence, block.rotate, layers=layers),
            )
        finish(engine)
    return found


SPECS = (*ONE_EACH, *CODED[:1], "h2o@precision=q8_0,recent=4")
EVERY = (*ALL, *CODED, *GRANULAR)
"""A whole number that meets a fraction becomes a number of the default format."""
QUICK = (
    "snapkv@window=4",
    "kivi@group=4,residual=8",
    "tova",
    "ahakv@recent=3",
    "caote:h2o@recent=4",
)
QUICK += (
    "rkv@every=6,window=3",
    SPECS[-1],
    "lazy_eviction@window=4,threshold=0.05",
    "h2o@recent=4",
)


@pytest.mark.parametrize(
    ("spec", "state"),
    sampled(
        dict.fromkeys((*product(SPECS, STATES), *product(EVERY, ["float64 by default"]))),
        list(zip(QUICK, STATES, strict=True)),
    ),
)
def test_a_state_of_pytorch_changes_no_score(spec, state):
    """In the state, before it and after it: as without it from the same queries and keys."""
    model = tiny("llama", torch.float32)
    layers = model.config.num_hidden_layers
    for pair in ((STATES[state], torch.no_grad), (torch.no_grad, STATES[state])):
        steps = read(model, spec, *pair)
        expected = replayed(spec, steps, layers)
        assert len(expected) == len(steps) > 0
        for (_, _, found), wanted in zip(steps, expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=FLOAT32_SCORES, atol=FLOAT32_SCORES)
            assert found[1] is None or found[1].dtype in (torch.float32, torch.float64)


@pytest.mark.parametrize("spec", ["h2o@recent=4", "snapkv@window=4", "kivi@group=4,residual=8"])
def test_keys_may_change_their_number_format(spec):
    """After bfloat16 in the prompt nothing of a float32 key is lost, as in transformers' cache."""
    model = tiny("llama", torch.float32)
    layers, runs = model.config.num_hidden_layers, []
    for last in (torch.bfloat16, torch.float32):
        steps = read(model, spec, torch.no_grad, torch.no_grad)
        for number, (block, (*vectors, confidence), result) in enumerate(steps[:layers]):
            vectors = [x.bfloat16().to(last) for x in vectors]
            steps[number] = block, (*vectors, confidence), result
        runs.append(replayed(spec, steps, layers)[layers:])
    torch.testing.assert_close(*runs, rtol=FLOAT32_SCORES, atol=FLOAT32_SCORES)


def test_a_model_is_compared_in_its_own_number_format():
    """Also where autocast is on: bfloat16 differs by more than float32 may."""
    model = tiny("llama", torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16), compress(model, "full"):
        assert list(agreement._differences.values()) == [""]
