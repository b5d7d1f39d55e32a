"""Decoding with a model of 8B shape: tokens per second and memory, with CUDA graphs and without.

    python -m kvlab.fast.lab.benchmarks.end_to_end --out end-to-end-gpu.json

The model has the shape of Llama-3.1-8B and random weights in bfloat16. Speed does not depend on the
weights where the number of kept entries does not; DesireKV's does, so what its cache holds is
reported, too. ``one_text``: after prompts of several lengths, of which methods keep a quarter.
``equal_memory``: as many texts of the first length as fit into the same memory.

``graphed`` methods replay tokens (`compress(graphs=True)`). Their control is ``full`` with graphs,
that of the others ``full`` without. The limit of a row is what must be read, weights and entries,
over the speed at which this device copies. ``--small`` runs a tiny model on any device: its times
mean nothing.
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
from transformers import DynamicCache

from kvlab.fast import compress
from kvlab.fast.lab.benchmarks.results import Measure, gpu_or_small, run, run_benchmark
from kvlab.fast.lab.benchmarks.workload import DATA, held_by, random_llama, tiny_llama
from kvlab.fast.lab.loop import Step
from kvlab.reference.methods import takes_budget

STOCK = "stock"
GRAPHED, OTHERS, PRESSES = map(DATA["end_to_end"].get, ("graphed", "others", "presses"))
"""Methods whose tokens can be captured; other methods; and presses, measured where kvpress is
installed, which evict once, after the prompt."""
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
def measure(
    model: Any, method: str, length: int, batch: int, graphed: bool, block_size: int | None = None
) -> dict[str, Any]:
    """Read a prompt, write tokens, and say how fast that was and what was allocated for it."""
    generator = torch.Generator().manual_seed(1)
    vocabulary = model.config.vocab_size
    prompt = torch.randint(1, vocabulary, (batch, length), generator=generator).to(model.device)
    about = {"method": method, "prompt": length, "batch": batch, "graphed": graphed}
    before = _allocated(model)
    if before:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    if method == STOCK or method in PRESSES:
        cache = DynamicCache(config=model.config)
        with nullcontext() if method == STOCK else _press(method)(model):
            first = _next(model, cache, prompt)
        token, held = partial(_next, model, cache), partial(held_by, cache)
        return about | _found(token, first, held, before, began)
    budget = length // SHARE if takes_budget(method) else None
    about["budget"] = budget
    with compress(model, method, budget, graphs=graphed, block_size=block_size) as cache:
        first = _next(model, cache, prompt)

        def held() -> tuple[int, int]:
            return max(max(counts) for counts in cache.kept()), cache.memory().total

        return about | _found(partial(_next, model, cache), first, held, before, began)


def _press(name: str) -> Any:
    """Return a press of kvpress that keeps what methods keep."""
    import kvpress  # type: ignore[import-not-found]

    return getattr(kvpress, name.partition(":")[2])(compression_ratio=1 - 1 / SHARE)


def must_read(model: Any, entries: int, batch: int, cache_bytes: int) -> int:
    """Return the bytes that a token reads at least: every weight used, and every entry once."""
    config, looked_up = model.config, model.get_input_embeddings().weight
    weights = sum(x.nbytes for x in model.parameters())
    if model.get_output_embeddings().weight is not looked_up:
        weights -= looked_up.nbytes
    channels = config.num_key_value_heads * config.head_dim
    whole = 2 * config.num_hidden_layers * channels * looked_up.itemsize * entries * batch
    return weights + min(whole, cache_bytes)


def copying(device: str) -> float:
    """Return the bytes that a large copy reads and writes per second, at best of ten."""
    source = torch.empty(2**26 if device == "cpu" else 2**30, dtype=torch.uint8, device=device)
    seconds = _timed(torch.clone, source)
    return 2 * source.nbytes / min(seconds)


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
        yield from ((method, length, True) for method in GRAPHED)
        presses = PRESSES if find_spec("kvpress") else ()
        yield from ((method, length, False) for method in (STOCK, *GRAPHED, *OTHERS, *presses))


def texts_in(cap: int, bytes_of_one: int, most: int) -> int:
    """Return how many texts of so many bytes fit."""
    return max(1, min(most, cap // bytes_of_one))


def main(
    lengths: str = "4096,16384,32768",
    cap: int = CAP,
    only: str = "",
    block_size: int | None = None,
    small: bool = False,
    out: Path | None = None,
) -> None:
    """Measure how fast a model of 8B shape decodes."""
    device = gpu_or_small("end_to_end", small)
    prompts = [64] if small else [int(length) for length in lengths.split(",")]
    most = 2 if small else MOST
    model = (
        tiny_llama(device) if small else random_llama(device, torch.bfloat16, **DATA["llama"]["8b"])
    )
    captured = device == "cuda"
    asked_for = only.split(",") if only else ["full", "h2o"] if small else None
    rows = [row for row in several(prompts) if asked_for is None or row[0] in asked_for]
    rows = [row for row in rows if captured or not row[2]]
    about: dict[str, Any] = {"cap_bytes": cap}  # by which a stopped run is found again

    def step(method: str, length: int, batch: int, graphed: bool) -> Step:
        name = f"{method}, {batch} texts of {length:,} tokens{', graphed' if graphed else ''}"
        return Step(name, partial(measure, model, method, length, batch, graphed, block_size))

    def limited(row: dict[str, Any]) -> dict[str, Any]:
        must = must_read(model, row["entries"], row["batch"], row["cache_bytes"])
        limit = 1e3 * must / about["copied_bytes_per_second"]
        share = limit / statistics.median(row["ms_per_token"])
        return row | {"must_bytes": must, "limit_ms": limit, "share_of_limit": share}

    def parts(run: Measure) -> dict[str, list[dict[str, Any]]]:
        about["copied_bytes_per_second"] = copying(device)
        alone = list(run([step(method, n, 1, graphed) for method, n, graphed in rows]).values())
        bytes_of = {x["method"]: x["cache_bytes"] for x in alone if x["prompt"] == prompts[0]}
        together = []
        for method, one in bytes_of.items():
            if method not in PRESSES:
                graphed = captured and method in GRAPHED
                together.append(step(method, prompts[0], texts_in(cap, one, most), graphed))
        every = {"one_text": alone, "equal_memory": list(run(together).values())}
        return {part: [limited(row) for row in found] for part, found in every.items()}

    asked = {"lengths": prompts, "cap": cap, "most": most, "small": small, "only": only}
    run_benchmark("end_to_end", device, asked | {"block_size": block_size}, about, out, parts)


if __name__ == "__main__":
    run(main, "end_to_end")
