"""What only a GPU can show: the allocator's view of the memory, and that nothing waits for it."""

import copy

import pytest
import torch

from kvlab.fast import compress
from support.models import prompts, tiny, written

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

SPECS = ("h2o", "tova", "caote:h2o", "lazy_eviction@window=4,threshold=0.05")


@pytest.fixture
def model():
    return copy.deepcopy(tiny("llama", torch.bfloat16)).cuda()


@pytest.mark.parametrize("spec", SPECS)
def test_the_allocator_holds_what_the_cache_reports(model, spec):
    ids, held = prompts([400])["input_ids"].cuda(), 0
    with compress(model, spec, budget=128) as cache, torch.no_grad():
        for _ in range(2):
            cache.reset()
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            model(ids, past_key_values=cache)
            for _ in range(12):
                model(ids[:, :1], past_key_values=cache)
            torch.cuda.synchronize()
            held = torch.cuda.memory_allocated() - before
    blocks = 512 * 64
    assert cache.memory().total <= held <= cache.memory().total + blocks


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("spec", SPECS)
def test_decoding_synchronises_nothing(model, spec):
    ids = prompts([40])["input_ids"].cuda()
    with compress(model, spec, budget=16) as cache, torch.no_grad():
        model(ids, past_key_values=cache)
        model(ids[:, :1], past_key_values=cache)
        try:
            torch.cuda.set_sync_debug_mode("error")
            for _ in range(20):
                model(ids[:, :1], past_key_values=cache)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("spec", SPECS)
def test_a_gpu_writes_what_the_cpu_writes(spec):
    on_cpu = copy.deepcopy(tiny("llama"))
    on_gpu = copy.deepcopy(on_cpu).cuda()
    found = []
    for model in (on_cpu, on_gpu):
        inputs = {name: x.to(model.device) for name, x in prompts([21, 13]).items()}
        with compress(model, spec, budget=12) as cache:
            tokens, _ = written(model, cache, inputs, 30)
            found.append((tokens.cpu(), [positions.cpu() for positions in cache.positions()]))
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("spec", [*SPECS[:3], "random", "streaming_llm", "fast_caote:tova"])
def test_captured_tokens_are_those_of_steps(model, spec):
    ids = prompts([40, 40])["input_ids"].cuda()
    tokens = torch.randint(1, 60, (2, 80), device="cuda").split(1, dim=1)
    found = []
    for graphed in (False, True):
        with compress(model, spec, budget=16, graphs=graphed) as cache, torch.no_grad():
            model(ids, past_key_values=cache)
            logits = [model(token, past_key_values=cache).logits for token in tokens]
            found.append((torch.cat(logits, dim=1), cache.positions()))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
