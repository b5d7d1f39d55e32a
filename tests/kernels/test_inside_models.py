"""Whole generations with Triton's kernels keep what PyTorch keeps."""

from functools import cache

import pytest
import torch
from transformers import LlamaConfig

from kvlab.fast import compress
from kvlab.fast.kernels.choice import VARIABLE, uses_triton
from support.kernel_inputs import DEVICE
from support.models import SHAPE, built, prompts
from support.sampling import sampled
from support.tolerances import FLOAT32_LOGITS

SPECS = (
    "h2o",
    "h2o@reduce=max",
    "tova",
    "raas@pin_prompt=false,threshold=0.05",
    "snapkv@window=3,schedule=every_block",
    "rpc@interval=6,selector=3",
    "ahakv@recent=3",
    "lazy_eviction@window=4,threshold=0.05,stamp_start=first_activation",
    "caote:tova",
    "caote:tova@heads=attention",
    "fast_caote:h2o",
    "lazy_eviction@window=4,threshold=0.05",
    "kivi@group=4,residual=8",
    "desirekv@interval=6,selector=3,group=8",
    "ddks@interval=6,selector=3,group=8",
)
SELF_SIZED = ("kivi", "desirekv", "ddks", "rpc")


@cache
def small():
    """Return a model of few programs: a kernel's time in the interpreter is their number."""
    shape = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    return built(LlamaConfig(**{**SHAPE, **shape}), torch.float32).to(DEVICE)


def generation(spec, model, inputs, steps):
    budget = None if spec.startswith(SELF_SIZED) else 12
    logits = []
    with compress(model, spec, budget) as cache, torch.no_grad():
        out = model(**inputs, past_key_values=cache)
        for _ in range(steps):
            token = out.logits[:, -1:].argmax(-1)
            out = model(token, past_key_values=cache)
            logits.append(out.logits[:, -1])
        return torch.stack(logits), cache.positions()


PADDED, ALONE = (16, 9), (16,)
EVERY = [(spec, lengths) for spec in SPECS for lengths in (PADDED, ALONE)]


@pytest.mark.parametrize(("spec", "lengths"), sampled(EVERY, [("ahakv@recent=3", PADDED)]))
def test_generations_are_the_same(spec, lengths, monkeypatch):
    model = small()
    inputs = {name: x.to(DEVICE) for name, x in prompts(lengths).items()}
    assert uses_triton(torch.zeros(1, device=DEVICE))
    late = spec.startswith((*SELF_SIZED, "lazy"))  # DesireKV stores its first codes at the tenth
    steps = 10 if late else 3
    found, kept = generation(spec, model, inputs, steps)
    monkeypatch.setenv(VARIABLE, "torch")
    wanted, keeps = generation(spec, model, inputs, steps)
    torch.testing.assert_close(found, wanted, atol=FLOAT32_LOGITS, rtol=0)
    for ours, theirs in zip(kept, keeps, strict=True):
        assert (ours == theirs).all()
