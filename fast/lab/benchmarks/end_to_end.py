"""An 8B model, whole generations: LazyEviction's Table 8, and DesireKV under a memory cap.

    python -m kvlab.fast.lab.benchmarks.end_to_end --out end-to-end-gpu.json

The model has the shape of Llama-3-8B and random weights. Speed does not depend on the weights where
the number of kept entries does not; DesireKV's does, so the bytes of its cache are reported, too.
``latency`` writes 4k, 8k and 16k tokens with the budgets of the paper. ``capacity`` finds the
largest batch that fits under a memory cap, and notes what it writes.
``--small`` runs both on a tiny model on any device: its times mean nothing.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import torch
import typer

from kvlab.fast.lab.benchmarks.contenders import Contender, Setting, kvlab, stock
from kvlab.fast.lab.benchmarks.results import Once, Out, gpu_or_small, measuring, write
from kvlab.fast.lab.benchmarks.workload import Run, random_llama, tiny_llama

SCHEMA = 1
COMPARED = ("full", "tova", "lazy_eviction")
"""``full`` is what kvlab's step costs where nothing is evicted."""
PROMPT = 64
WARM_UP = 512
"""Tokens written before anything is timed, so that kernels are compiled and tuned."""
CAP = 96e9
"""Bytes: the GPU of DesireKV's figure 5 b."""


def _llama_8b(device: str) -> Any:
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


def _latencies(model: Any, lengths: list[int], once: Once) -> Iterator[dict[str, Any]]:
    """Yield the latency of every method at every length; one generation before is not counted."""

    def seconds_per_token(contender: Contender, tokens: int) -> float:
        contender.measured(Run(min(PROMPT, tokens), min(tokens, tokens // 2 + 160)), False)
        return 1 / contender.measured(Run(PROMPT, tokens), False).speed(with_prompt=True)

    for tokens in lengths:
        full = 0.0
        for contender in _several(model, COMPARED, tokens // 2):
            name = f"latency of {tokens} tokens, {contender.name}"
            each = once(name, partial(seconds_per_token, contender, tokens))
            full = full or each
            budget = tokens // 2 if contender.compresses else None
            about = {"method": contender.name, "tokens": tokens, "budget": budget}
            yield {**about, "ms_per_token": 1e3 * each, "over_full": each / full - 1}


def _capacity(contender: Contender, tokens: int, most: int) -> dict[str, Any]:
    """Return what the largest batch that fits writes, exact to an eighth; {} if none fits."""
    contender.measured(Run(PROMPT, min(tokens, WARM_UP)), False)
    best: dict[str, Any] = {}
    batch, too_many = 1, most + 1
    while batch < too_many:
        try:
            timing = contender.measured(Run(PROMPT, tokens, batch), False)
            best = {"method": contender.name, "tokens": tokens, "batch": batch}
            best["tokens_per_second"] = batch * timing.speed(with_prompt=True)
            best["cache_bytes"] = timing.bytes
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            too_many = batch
        batch = next_batch(best.get("batch", 0), too_many, most)
    return best


def _several(model: Any, methods: Sequence[str], budget: int | None) -> Iterator[Contender]:
    setting = Setting(model, budget)
    yield stock(setting)
    for method in methods:
        name = "kvlab full" if method == "full" else method
        yield replace(kvlab(setting, method), name=name)


def next_batch(fits: int, too_many: int, most: int) -> int:
    """Double the batch until it does not fit, then halve the gap, down to an eighth of it."""
    if too_many > most:
        return min(2 * fits, most) if fits < most else too_many
    gap = too_many - fits
    return fits + gap // 2 if gap > max(1, fits // 8) else too_many


@contextmanager
def _at_most(memory: float, device: str) -> Iterator[float]:
    if device != "cuda":
        yield memory
        return
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, memory / total))
    try:
        yield min(memory, total)
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
    methods = ["full", "kivi@key_bits=8,value_bits=4", "rpc", "desirekv"]
    if small:
        lengths, capacity_tokens, most = [64], 24, 2
        methods = ["full", "desirekv@interval=16,selector=4,group=32"]
    model = tiny_llama(device) if small else _llama_8b(device)
    asked = {"tokens": lengths, "capacity_tokens": capacity_tokens, "cap": cap, "most": most}
    total = (1 + len(COMPARED)) * len(lengths) + 1 + len(methods)
    with measuring(out, asked, device, total) as once:
        slow = list(_latencies(model, lengths, once))
        with _at_most(cap, device) as cap_bytes:
            fitted = [
                once(
                    f"largest batch of {each.name}", partial(_capacity, each, capacity_tokens, most)
                )
                for each in _several(model, methods, None)
            ]
        found = {"cap_bytes": cap_bytes, "latency": slow, "capacity": [*filter(None, fitted)]}
        write(SCHEMA, device, found, out)


if __name__ == "__main__":
    sys.exit(typer.run(main))
