"""An 8B model, whole generations: LazyEviction's Table 8, and DesireKV under a memory cap.

    python -m kvlab.fast.lab.benchmarks.end_to_end --out end-to-end-gpu.json

The model has the shape of Llama-3-8B and random weights. Speed does not depend on the weights where
the number of kept entries does not; DesireKV's does, so the bytes of its cache are reported, too.
``latency`` writes 4k, 8k and 16k tokens with the budgets of the paper. ``capacity`` finds the
largest batch that fits under a memory cap, and notes what it writes.
``--small`` runs both on a tiny model on any device: its times mean nothing.
"""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import torch
import typer

from kvlab.fast import compress
from kvlab.fast.lab.benchmarks.machine import gpu_or_small
from kvlab.fast.lab.benchmarks.results import Out, result_of, write
from kvlab.fast.lab.benchmarks.workload import (
    Run,
    full_cache,
    random_llama,
    timed,
    tiny_llama,
)
from kvlab.fast.lab.terminal import progress

SCHEMA = 1
FULL = "transformers full cache"
OURS = "kvlab full"
"""The full cache once more, held by kvlab: what its step costs where nothing is evicted."""
COMPARED = (FULL, OURS, "tova", "lazy_eviction")
"""Contenders whose latency is measured."""
PROMPT = 64
WARM_UP = 512
"""Tokens written before anything is timed, so that kernels are compiled and tuned."""
CAP = 96e9
"""Bytes: the GPU of DesireKV's figure 5 b."""


@dataclass(frozen=True)
class Latency:
    """One generation of one sequence."""

    method: str
    tokens: int
    budget: int | None
    ms_per_token: float
    over_full: float
    """Time per token over the full cache's, less 1."""


@dataclass(frozen=True)
class Capacity:
    """The largest batch that fitted."""

    method: str
    tokens: int
    batch: int
    tokens_per_second: float
    """Tokens per second of all sequences together."""
    cache_bytes: int | None
    """Bytes of the cache at the end; None for the full cache."""


def llama_8b(device: str) -> Any:
    """Return a random model in the shape of Llama-3-8B, in bfloat16."""
    return random_llama(
        device,
        torch.bfloat16,
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=131072,
    )


def speed(model: Any, method: str, budget: int | None, run: Run) -> tuple[float, int | None]:
    """Return tokens per second of one sequence, prompt included, and the bytes of the cache."""
    if method == FULL:
        return timed(model, run, full_cache(model)).speed(with_prompt=True), None
    with compress(model, "full" if method == OURS else method, budget) as cache:
        rate = timed(model, run, cache).speed(with_prompt=True)
        return rate, cache.memory().total


def latencies(model: Any, lengths: list[int], step: Callable[[], None]) -> Iterator[Latency]:
    """Yield the latency of every method at every length; one generation before is not counted."""
    for tokens in lengths:
        full = 0.0
        for method in COMPARED:
            budget = None if method in (FULL, OURS) else tokens // 2
            warm_up = Run(min(PROMPT, tokens), min(tokens, tokens // 2 + 160))
            speed(model, method, budget, warm_up)
            rate, _ = speed(model, method, budget, Run(PROMPT, tokens))
            full = full or 1 / rate
            yield Latency(method, tokens, budget, 1e3 / rate, 1 / rate / full - 1)
            step()


def capacities(model: Any, methods: list[str], tokens: int, most: int) -> Iterator[Capacity]:
    """Yield the largest batch of each method, at most ``most``, exact to an eighth."""
    for method in methods:
        speed(model, method, None, Run(PROMPT, min(tokens, WARM_UP)))
        best: Capacity | None = None
        batch, too_many = 1, most + 1
        while batch < too_many:
            try:
                rate, held = speed(model, method, None, Run(PROMPT, tokens, batch))
                best = Capacity(method, tokens, batch, batch * rate, held)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                too_many = batch
            batch = next_batch(best.batch if best else 0, too_many, most)
        if best is not None:
            yield best


def next_batch(fits: int, too_many: int, most: int) -> int:
    """Double the batch until it does not fit, then halve the gap, down to an eighth of it."""
    if too_many > most:
        return min(2 * fits, most) if fits < most else too_many
    gap = too_many - fits
    return fits + gap // 2 if gap > max(1, fits // 8) else too_many


def memory_of(device: str) -> float:
    """Bytes of the GPU; infinity elsewhere."""
    if device != "cuda":
        return math.inf
    return torch.cuda.get_device_properties(0).total_memory


@contextmanager
def at_most(memory: float, device: str) -> Iterator[None]:
    """Let this process allocate no more than so many bytes of the GPU."""
    if device != "cuda":
        yield
        return
    torch.cuda.set_per_process_memory_fraction(min(1.0, memory / memory_of(device)))
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def main(
    tokens: Annotated[list[int] | None, typer.Option(help="Lengths; may be repeated.")] = None,
    capacity_tokens: Annotated[int, typer.Option(help="Tokens written under the cap.")] = 8192,
    cap: Annotated[float, typer.Option(help="Bytes that may be allocated.")] = CAP,
    most: Annotated[int, typer.Option(help="Largest batch to try.")] = 256,
    small: Annotated[bool, typer.Option("--small", help="A tiny model, on any device.")] = False,
    out: Out = None,
) -> None:
    """Measure whole generations of an 8B model."""
    device = gpu_or_small("end_to_end", small)
    lengths = tokens or [4096, 8192, 16384]
    methods = [FULL, OURS, "kivi@key_bits=8,value_bits=4", "rpc", "desirekv"]
    if small:
        lengths, capacity_tokens, most = [96], 48, 2
        methods = [FULL, OURS, "desirekv@interval=16,selector=4,group=32"]
    model = tiny_llama(device) if small else llama_8b(device)
    with progress() as bar:
        task = bar.add_task("latency", total=len(COMPARED) * len(lengths))
        slow = list(latencies(model, lengths, lambda: bar.advance(task)))
    with at_most(cap, device):
        fitted = list(capacities(model, methods, capacity_tokens, most))
    found = {
        "cap_bytes": min(cap, memory_of(device)),
        "latency": [asdict(each) for each in slow],
        "capacity": [asdict(each) for each in fitted],
    }
    result = result_of(SCHEMA, device, found)
    write(result, out)


if __name__ == "__main__":
    sys.exit(typer.run(main))
