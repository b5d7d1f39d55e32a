"""What a cache held is freed when its last name goes, without Python's collector of cycles."""

import gc
from itertools import cycle, product
from weakref import ref

import pytest
import torch

from kvlab.fast import compress
from support.cases import CODED, GRANULAR, KINDS, ONE_EACH, budget_of
from support.models import prompts, tiny, written
from support.sampling import sampled


@pytest.fixture(autouse=True)
def _cycles_stay():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def parts_of(cache) -> list[ref]:
    """Everything that holds tensors of a cache, and the tensors of its entries."""
    layers = cache.text.layers.caches
    buffers = [buffer for layer in layers for buffer in layer.columns.buffers.values()]
    found = (cache, *cache.layers, cache.text.clock, *cache.text.layers.groups, *layers, *buffers)
    return [ref(each) for each in found]


def generates(model, cache, folder):
    written(model, cache, prompts([21, 13]), 9)
    return [cache]


def searches_beams(model, cache, folder):
    written(model, cache, prompts([21, 13]), 5, num_beams=2)
    return [cache]


def forks(model, cache, folder):
    written(model, cache, prompts([21, 13]), 3)
    copies = [cache.copy(), cache.copy()]
    model(torch.full((2, 1), 5), past_key_values=copies[0])
    cache.reset()
    return [cache, *copies, copies[1].copy()]


def saves_and_loads(model, cache, folder):
    written(model, cache, prompts([21, 13]), 3)
    cache.save(folder / "context")
    held = parts_of(cache)[3:]
    cache.load(folder / "context")
    assert not [each for each in held if each() is not None and each() not in cache.layers]
    return [cache]


def is_refused(model, cache, folder):
    written(model, cache, prompts([21, 13]), 3)
    with pytest.raises(ValueError, match="evicted entries again"):
        cache.crop(1)
    with pytest.raises(ValueError, match="output_attentions"):
        model(torch.full((2, 1), 5), past_key_values=cache, output_attentions=True)
    return [cache]


def fails_in_a_step(model, cache, folder):
    written(model, cache, prompts([21, 13]), 3)

    def fail(*_):
        raise ZeroDivisionError

    layer = model.model.layers[1].self_attn
    hook = layer.o_proj.register_forward_pre_hook(fail)
    with pytest.raises(ZeroDivisionError):
        model(torch.full((2, 1), 5), past_key_values=cache)
    hook.remove()
    return [cache]


USES = (generates, searches_beams, forks, saves_and_loads, is_refused, fails_in_a_step)


HELD = (*ONE_EACH, CODED[3], GRANULAR[0])


@pytest.mark.parametrize(("spec", "use"), sampled(product(HELD, USES), [*zip(KINDS, cycle(USES))]))
def test_what_a_context_held_is_freed_with_its_last_name(spec, use, tmp_path):
    model = tiny("llama", torch.float32)
    with compress(model, spec, budget_of(spec)) as cache:
        parts = [part for each in use(model, cache, tmp_path) for part in parts_of(each)]
    assert parts[0]() is cache
    del cache
    assert [part() for part in parts if part() is not None] == []
