"""What a text must be when blocks were evicted: dense attention over the kept positions."""

import random
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import pytest
import torch

from kvlab.fast import compress
from kvlab.fast.vllm.settings import completed
from kvlab.reference import methods

BLOCK = 32
Evicted = Sequence[tuple[int, int, int]]
"""Tokens seen, and the number of a block that later tokens do not see, and its table."""


def dense(
    model, prompt, tokens, evicted: Evicted, tables=1, block=BLOCK
) -> tuple[list[int], list[float]]:
    """Return the tokens that dense attention writes, and log-probabilities of ``tokens``."""
    ids = [*prompt, *tokens]
    sees = torch.ones(tables, len(ids), len(ids), dtype=torch.bool).tril()
    for seen, number, table in evicted:
        sees[table, seen:, number * block : (number + 1) * block] = False
    masks = torch.zeros(sees.shape).masked_fill(~sees, torch.finfo(torch.float32).min)
    with ExitStack() as hooks, torch.inference_mode():
        for number, layer in enumerate(model.model.layers):
            mask = {"attention_mask": masks[number % tables][None, None]}
            given = partial(lambda mask, _, args, kwargs: (args, kwargs | mask), mask)
            hook = layer.register_forward_pre_hook(given, with_kwargs=True)
            hooks.callback(hook.remove)
        found = model(torch.tensor([ids])).logits[0]
    return _written(found[len(prompt) - 1 : -1], tokens)


def specified(
    model, spec, budget, prompt, tokens, evicted: Evicted, tables=1, block=BLOCK, size=None
) -> tuple[list, list]:
    """Return the same of kvlab in transformers, which must keep the same blocks at every step.

    ``size``: prompts are read in blocks of so many tokens.
    """
    logits, policy = [], methods.get(spec, budget)
    with compress(model, policy, block_size=size) as cache, torch.inference_mode():
        for given in ([*prompt], *[[token] for token in tokens[:-1]]):
            logits.append(model(torch.tensor([given]), past_key_values=cache).logits[0, -1])
            seen = cache.clocks[0].seen
            for layer, positions in enumerate(cache.positions()):
                table = layer % tables
                gone = {
                    number for when, number, where in evicted if when <= seen and where == table
                }
                kept = [n for n in range(-(-seen // block)) if n not in gone]
                assert sorted({int(p) // block for p in positions.flatten()}) == kept, seen
    return _written(torch.stack(logits), tokens)


def _written(logits, tokens) -> tuple[list[int], list[float]]:
    rows = logits.float().log_softmax(-1)
    return rows.argmax(-1).tolist(), [float(row[t]) for row, t in zip(rows, tokens, strict=True)]


BUDGET, WRITTEN = 96, 70
METHODS = (
    "streaming_llm@protected=first4",
    "random",
    "knorm",
    "value_norm",
    "tova",
    "h2o",
    "caote:h2o@recent=16",
    "fast_caote:tova",
    "snapkv@window=16,schedule=every_block",
    "rkv@window=8,every=8",
    "lazy_eviction@window=16,threshold=0.02",
    "ahakv@recent=16",
)
"""Those of the proof with SmolLM2, for short texts."""
LOG_PROBABILITY = 1e-4
"""float32: the engine's kernels and PyTorch's add up in another order."""


def texts(*lengths: int, seed: int = 0) -> dict[str, list[int]]:
    """Return random prompts by name."""
    draw = random.Random(seed)
    return {f"r{i}": [draw.randrange(3, 97) for _ in range(m)] for i, m in enumerate(lengths)}


def arriving(prompts, tokens: int = WRITTEN, **given) -> list:
    return [
        ["arrive", {"name": n, "prompt": p, "tokens": tokens, **given}] for n, p in prompts.items()
    ]


def asked(method: str, budget: int = BUDGET, **given) -> dict:
    return {"method": method, "budget": budget, **given}


def of(found: dict, name: str) -> list[tuple[int, int, int]]:
    evicted = found["evicted"]
    return [(seen, number, table) for who, seen, number, table in evicted if who == name]


def assert_as_specified(
    model, found: dict, prompts, method: str, budget: int = BUDGET, block: int = BLOCK, size=None
) -> int:
    """Compare every text with both oracles; return how many blocks were evicted."""
    assert "error" not in found, found["trace"]
    for name, prompt in prompts.items():
        text, evicted = found["texts"][f"{name}/0"], of(found, name)
        spec, given = completed(method, block), (prompt, text["tokens"], evicted)
        for tokens, logp in (
            dense(model, *given, found["tables"], block),
            specified(model, spec, budget, *given, found["tables"], block, size),
        ):
            assert tokens == text["tokens"]
            assert (
                max(abs(a - b) for a, b in zip(logp, text["logp"], strict=True)) < LOG_PROBABILITY
            )
    assert found["free"] == found["blocks"]
    return len(found["evicted"])


def assert_ranks_agree(driver, method: dict, events: list, **engine) -> None:
    """Two processes, of which each has one of the KV heads, write and evict what one does."""
    ranks = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    one, two = (driver.run(method, events, **engine, **more) for more in ({}, ranks))
    assert "error" not in two, two["trace"]
    summaries = [sorted(line.rpartition(":")[2] for line in each["log"]) for each in (one, two)]
    assert summaries[0] == summaries[1] and "evicted" in summaries[0][0]
    for name, text in one["texts"].items():
        assert two["texts"][name]["tokens"] == text["tokens"]
        assert two["texts"][name]["logp"] == pytest.approx(text["logp"], abs=LOG_PROBABILITY)
