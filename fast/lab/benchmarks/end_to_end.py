"""Decoding with a model of 8B shape: tokens per second and memory, with CUDA graphs and without.

    python -m kvlab.fast.lab.benchmarks.end_to_end --out end-to-end-gpu.json

The model has the shape of Llama-3.1-8B and random weights in bfloat16. Speed does not depend on the
weights where the number of kept entries does not; DesireKV's does, so what its cache holds is
reported, too. ``one_text``: after prompts of several lengths, of which methods keep a quarter.
``equal_memory``: as many texts of the first length as fit into the same memory.

``graphed`` methods replay tokens (`compress(graphs=True)`); the stock model's graph is a
transformers StaticCache whose token is captured here, under a mask, so that keys and values are
repeated for the query heads: it is no control for the methods. ``--small`` runs a tiny model on any
device: its times mean nothing.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

from kvlab.fast import compress
from kvlab.fast.lab.benchmarks.results import Measure, gpu_or_small, run, run_benchmark
from kvlab.fast.lab.benchmarks.workload import DATA, held_by, random_llama, tiny_llama
from kvlab.fast.lab.loop import Step
from kvlab.reference.methods import takes_budget

STOCK = "stock"
EACH_TOKEN, OTHERS, PRESSES = map(DATA["end_to_end"].get, ("each_token", "others", "presses"))
"""Methods that evict at every token, whose tokens can be captured; other methods; and presses,
measured where kvpress is installed, which evict once, after the prompt."""
WARM_UP, TIMED, ROUNDS = 10, 12, 3
"""Tokens before any is timed, tokens of a round, and rounds, of which the median counts."""
SHARE = 4
"""A method keeps one of so many tokens of a prompt."""
CAP = 2**33
"""Bytes that caches may hold in ``equal_memory``: as many as 16 full caches of 4,096 tokens."""
MOST = 64
"""Most texts at once."""

Token = Callable[[Tensor], Tensor]


def _next(model: Any, cache: Any, tokens: Tensor) -> Tensor:
    logits = model(tokens, past_key_values=cache, logits_to_keep=1).logits
    return logits[:, -1:].argmax(dim=-1)


def captured_stock(model: Any, prompt: Tensor, more: int) -> tuple[Token, Tensor, StaticCache]:
    """Read a prompt into a StaticCache with room for more; return a captured token, and the first.

    The graph reads all slots, under a mask, as transformers does where it compiles.
    """
    length = prompt.shape[1]
    read = DynamicCache(config=model.config)
    token = _next(model, read, prompt)
    cache = StaticCache(config=model.config, max_cache_len=length + more)
    pairs: Any = zip(read.layers, cache.layers, strict=True)
    for of_prompt, layer in pairs:
        layer.lazy_initialization(of_prompt.keys, of_prompt.values)
        layer.keys[:, :, :length] = of_prompt.keys
        layer.values[:, :, :length] = of_prompt.values
        layer.cumulative_length.fill_(length)
        of_prompt.keys = of_prompt.values = None
    ids, at = token.clone(), torch.full_like(token, length)
    slots = torch.arange(length + more, device=prompt.device)

    def run() -> None:
        mask = (slots <= at[:, :, None])[:, None]
        options = {"past_key_values": cache, "attention_mask": mask, "position_ids": at}
        ids.copy_(model(ids, **options).logits[:, -1:].argmax(dim=-1))
        at.add_(1)

    if not prompt.is_cuda:
        return lambda _: (run(), ids)[1], token, cache
    run()  # libraries choose their algorithms now
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    # Naming `run` keeps what the graph reads: else its memory would be given to others.
    return lambda _: (graph.replay(), ids, run)[1], token, cache


def _timed(token: Token, tokens: Tensor) -> list[float]:
    """Return the seconds per token of every round."""
    seconds = []
    for number in range(1 + ROUNDS):
        _wait(tokens)
        began, count = time.perf_counter(), TIMED if number else WARM_UP
        for _ in range(count):
            tokens = token(tokens)
        _wait(tokens)
        seconds.append((time.perf_counter() - began) / count)
    return seconds[1:]


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def _allocated(model: Any) -> int:
    return torch.cuda.memory_allocated() if model.device.type == "cuda" else 0


@torch.no_grad()
def measure(model: Any, method: str, length: int, batch: int, graphed: bool) -> dict[str, Any]:
    """Read a prompt, write tokens, and say how fast that was and what was allocated for it."""
    generator = torch.Generator().manual_seed(1)
    vocabulary = model.config.vocab_size
    prompt = torch.randint(1, vocabulary, (batch, length), generator=generator).to(model.device)
    about = {"method": method, "prompt": length, "batch": batch, "graphed": graphed}
    more, before = WARM_UP + TIMED * ROUNDS + 8, _allocated(model)
    if before:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    if method == STOCK and graphed:
        token, first, cache = captured_stock(model, prompt, more)
        return about | _found(token, first, partial(held_by, cache), before, began)
    if method == STOCK or method in PRESSES:
        cache = DynamicCache(config=model.config)
        with nullcontext() if method == STOCK else _press(method)(model):
            first = _next(model, cache, prompt)
        token, held = partial(_next, model, cache), partial(held_by, cache)
        return about | _found(token, first, held, before, began)
    budget = length // SHARE if takes_budget(method) else None
    about["budget"] = budget
    with compress(model, method, budget, graphs=graphed) as cache:
        first = _next(model, cache, prompt)

        def held() -> tuple[int, int]:
            return max(max(counts) for counts in cache.kept()), cache.memory().total

        return about | _found(partial(_next, model, cache), first, held, before, began)


def _press(name: str) -> Any:
    """Return a press of kvpress that keeps what methods keep."""
    import kvpress  # type: ignore[import-not-found]

    return getattr(kvpress, name.partition(":")[2])(compression_ratio=1 - 1 / SHARE)


def _found(
    token: Token,
    first: Tensor,
    held: Callable[[], tuple[int, int]],
    before: int,
    began: float,
) -> dict[str, Any]:
    _wait(first)
    read = time.perf_counter() - began
    rounds = _timed(token, first)
    each, (entries, cache_bytes) = statistics.median(rounds), held()
    found = {"read_seconds": read, "ms_per_token": [1e3 * x for x in rounds]}
    found |= {"tokens_per_second": len(first) / each, "entries": entries}
    found |= {"cache_bytes": cache_bytes, "allocated_bytes": None, "peak_bytes": None}
    if before:
        found["allocated_bytes"] = torch.cuda.memory_allocated() - before
        found["peak_bytes"] = torch.cuda.max_memory_allocated() - before
    return found


def several(lengths: Sequence[int]) -> Iterator[tuple[str, int, bool]]:
    """Yield what is measured with one text: method, length of the prompt, and whether by graphs."""
    for length in lengths:
        yield from ((method, length, True) for method in (STOCK, *EACH_TOKEN))
        yield STOCK, length, False
        presses = PRESSES if find_spec("kvpress") else ()
        yield from ((method, length, False) for method in (*EACH_TOKEN, *OTHERS, *presses))


def texts_in(cap: int, bytes_of_one: int, most: int) -> int:
    """Return how many texts of so many bytes fit."""
    return max(1, min(most, cap // bytes_of_one))


def main(
    lengths: str = "4096,16384,32768", cap: int = CAP, small: bool = False, out: Path | None = None
) -> None:
    """Measure how fast a model of 8B shape decodes."""
    device = gpu_or_small("end_to_end", small)
    prompts = [64] if small else [int(length) for length in lengths.split(",")]
    most = 2 if small else MOST
    model = (
        tiny_llama(device) if small else random_llama(device, torch.bfloat16, **DATA["llama"]["8b"])
    )
    single = list(several(prompts))
    if small:
        single = [(STOCK, 64, True), ("full", 64, False), ("h2o", 64, device == "cuda")]
    methods = ["h2o"] if small else [*EACH_TOKEN, *OTHERS]

    def parts(run: Measure) -> dict[str, list[dict[str, Any]]]:
        alone = run([_step(model, method, n, 1, graphed) for method, n, graphed in single])
        one_text, together = list(alone.values()), []
        bytes_of = {x["method"]: x["cache_bytes"] for x in one_text if x["prompt"] == prompts[0]}
        for method in (STOCK, *methods):
            batch = texts_in(cap, bytes_of[method], most)
            graphed = device == "cuda" and method in (STOCK, *EACH_TOKEN)
            together.append(_step(model, method, prompts[0], batch, graphed))
        return {"one_text": one_text, "equal_memory": list(run(together).values())}

    asked = {"lengths": prompts, "cap": cap, "most": most, "small": small}
    run_benchmark("end_to_end", device, asked, {"cap_bytes": cap}, out, parts)


def _step(model: Any, method: str, length: int, batch: int, graphed: bool) -> Step:
    graph = ", graphed" if graphed else ""
    name = f"{method}, {batch} texts of {length:,} tokens{graph}"
    return Step(name, partial(measure, model, method, length, batch, graphed))


if __name__ == "__main__":
    run(main, "end_to_end")
