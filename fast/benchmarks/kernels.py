"""Kernels against the bandwidth that this GPU reaches when it copies.

python -m kvlab.fast.benchmarks.kernels --out fast/benchmarks/results/kernels-gpu.json

Every kernel is timed with events, the cache of the processor overwritten before each run; the
figure is the median. Its bytes are those of the function's docstring. ``--small`` runs a single
small case once, on any device, to see that everything runs: its times mean nothing.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvlab.fast.benchmarks.machine import machine, versions
from kvlab.fast.commands.terminal import console, progress
from kvlab.fast.kernels.caote import eviction_errors
from kvlab.fast.kernels.coded import CodedTable, attend_to_tables, quantise
from kvlab.fast.kernels.decode import decode_attention
from kvlab.fast.kernels.keep import keep_slots
from kvlab.fast.kernels.move import move_survivors
from kvlab.fast.kernels.prefill import received_attention
from kvlab.fast.kernels.tracking import Tracking

SCHEMA = 1
KV_HEADS, GROUP, HEAD_DIM = 8, 4, 128
"""Llama-3-8B."""
QUANTISED_TOGETHER = 64
"""Channels that share a scale."""
ROWS = 128
"""Rows of a block of the prompt, for the prefill scores."""
FLUSHED = 2**28
"""Bytes written before every run: more than any processor's cache."""
HEAD_START = 2_000_000
"""Cycles, about a millisecond, that the GPU sleeps while the host starts what is timed."""


@dataclass(frozen=True)
class Case:
    """One kernel on one size."""

    kernel: str
    batch: int
    entries: int
    run: Callable[[], Any]
    bytes: int
    """That have to be moved; 0 where arithmetic is the limit."""


def cases(batch: int, n: int, device: str, dtype: torch.dtype) -> Iterator[Case]:
    """Yield every kernel, with what it is compared with."""
    heads, d, e = batch * KV_HEADS, HEAD_DIM, dtype.itemsize
    queries = torch.randn(batch, KV_HEADS, GROUP, 1, d, device=device, dtype=dtype)
    keys, values = torch.randn(2, batch, KV_HEADS, n, d, device=device, dtype=dtype)
    cache = 2 * heads * n * d * e

    def case(kernel: str, run: Callable[[], Any], bytes_: int) -> Case:
        return Case(kernel, batch, n, run, bytes_)

    def plain() -> Tensor:
        return scaled_dot_product_attention(queries.flatten(1, 2), keys, values, enable_gqa=True)

    yield case("SDPA of PyTorch", plain, cache)
    scored = cache + heads * n * GROUP * 12
    yield case(
        "decode attention, probabilities", lambda: decode_attention(queries, keys, values), scored
    )
    reduced = cache + heads * n * (8 * GROUP + 4)

    def with_sums() -> Any:
        return decode_attention(queries, keys, values, reduce="sum")

    yield case("decode attention, sums", with_sums, reduced)

    def without() -> Any:
        return decode_attention(queries, keys, values, reduce="skip")

    yield case("decode attention, no scores", without, cache)
    counters = torch.zeros(2, batch, KV_HEADS, n, dtype=torch.int32, device=device)
    tracking = Tracking(counters[0], counters[1], 1e-4)

    def tracked() -> Any:
        return decode_attention(queries, keys, values, reduce="max", tracking=tracking)

    yield case("decode attention, LazyEviction's counters", tracked, reduced + heads * n * 16)
    h = torch.softmax(torch.randn(batch, KV_HEADS, 1, n, device=device), dim=-1)
    output = torch.matmul(h, values.float())
    errors = heads * n * (d * e + 16)
    yield case("CAOTE, output given", lambda: eviction_errors(h, values, output=output), errors)
    twice = errors + heads * n * (d * e + 4)
    yield case("CAOTE", lambda: eviction_errors(h, values), twice)
    yield case("FastCAOTE", lambda: eviction_errors(h, values, fast=True), twice)
    scores = torch.rand(batch, KV_HEADS, n, device=device)
    positions = torch.arange(n, dtype=torch.int32, device=device).repeat(batch, KV_HEADS, 1)
    kept = max(1, 3 * n // 4)

    def select() -> Tensor:
        return keep_slots(scores, None, positions, [kept] * batch, ordered=True)

    yield case("keep sets", select, heads * n * 8 + heads * kept * 8)
    slots = select()
    vectors = torch.stack([keys, values])
    state = torch.zeros(3, batch, KV_HEADS, n, dtype=torch.int32, device=device)
    buffers = {"vectors": vectors, "state": state}
    moved = 2 * heads * kept * (2 * d * e + 12)
    yield case("move survivors", lambda: move_survivors(buffers, slots, True), moved)
    rows = torch.randn(batch, KV_HEADS, GROUP, min(ROWS, n), d, device=device, dtype=dtype)
    row_positions = positions[:, 0, -rows.shape[3] :].contiguous()

    def received() -> Tensor:
        return received_attention(rows, keys, row_positions, positions)

    yield case(f"prefill scores of {rows.shape[3]} rows", received, 0)


def coded_cases(batch: int, n: int, device: str, dtype: torch.dtype) -> Iterator[Case]:
    """Yield what is stored in fewer bits, beside the same entries in ``dtype``."""
    heads, d, e = batch * KV_HEADS, HEAD_DIM, dtype.itemsize
    vectors = torch.randn(batch, KV_HEADS, n, d, device=device, dtype=dtype)
    queries = torch.randn(batch, KV_HEADS, GROUP, 1, d, device=device, dtype=dtype)
    slots = torch.arange(n, device=device).expand(batch, KV_HEADS, n).contiguous()
    scores = heads * n * (GROUP * 20 + 16)
    wide = [CodedTable(slots, vectors)]

    def attend(tables: list[CodedTable]) -> Any:
        return attend_to_tables(queries, tables, tables, n)

    name = f"attention to tables, {8 * e} bits"
    yield Case(name, batch, n, lambda: attend(wide), 2 * heads * n * d * e + scores)
    for bits in (8, 4, 2):
        stored = heads * n * (d * bits // 8 + 4 * (d // QUANTISED_TOGETHER))

        def quantised(bits: int = bits) -> Any:
            return quantise(vectors, bits, QUANTISED_TOGETHER)

        yield Case(f"quantise to {bits} bits", batch, n, quantised, heads * n * d * e + stored)
        narrow = [CodedTable(slots, quantised())]

        def coded(tables: list[CodedTable] = narrow) -> Any:
            return attend(tables)

        yield Case(f"attention to tables, {bits} bits", batch, n, coded, 2 * stored + scores)


def seconds(run: Callable[[], Any], device: str, repeats: int) -> float:
    """Return the median time of a run."""
    run()
    if device != "cuda":
        started = time.perf_counter()
        run()
        return time.perf_counter() - started
    flush = torch.empty(FLUSHED, dtype=torch.int8, device=device)
    times = []
    for _ in range(repeats):
        flush.zero_()
        torch.cuda._sleep(HEAD_START)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def copy_bandwidth(device: str, repeats: int, size: int) -> float:
    """Return bytes per second, read and written, of copying a large tensor."""
    source = torch.zeros(size, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    return 2 * size / seconds(lambda: target.copy_(source), device, repeats)


def main(
    batch: Annotated[list[int] | None, typer.Option(help="May be repeated.")] = None,
    entries: Annotated[list[int] | None, typer.Option(help="May be repeated.")] = None,
    repeats: Annotated[int, typer.Option(help="Runs of each kernel.")] = 50,
    small: Annotated[bool, typer.Option("--small", help="One small case, on any device.")] = False,
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
) -> None:
    """Time every kernel."""
    if not small and not torch.cuda.is_available():
        raise SystemExit("kernels: this benchmark needs a GPU; --small shows that it runs")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batches, lengths = (batch or [1, 8, 32], entries or [1024, 4096, 16384, 65536])
    if small:
        batches, lengths, repeats = [1], [96], 1
    dtype = torch.bfloat16
    bandwidth = copy_bandwidth(device, repeats, 2**20 if small else 2**31)
    results = []
    with progress() as bar:
        task = bar.add_task("kernels", total=len(batches) * len(lengths))
        for size in batches:
            for n in lengths:
                both = cases(size, n, device, dtype), coded_cases(size, n, device, dtype)
                for case in chain(*both):
                    took = seconds(case.run, device, repeats)
                    facts = {key: x for key, x in vars(case).items() if key != "run"}
                    share = case.bytes / took / bandwidth if case.bytes else None
                    results.append({**facts, "seconds": took, "share_of_copy": share})
                bar.advance(task)
    report = {
        "schema": SCHEMA,
        "machine": machine(device),
        "versions": versions(),
        "shape": {"kv_heads": KV_HEADS, "group": GROUP, "head_dim": HEAD_DIM, "dtype": str(dtype)},
        "copy_bytes_per_second": bandwidth,
        "results": results,
    }
    for each in results:
        share = each["share_of_copy"]
        rate = "–" if share is None else f"{100 * share:.0f} % of copy"
        console.print(
            f"{each['kernel']}, batch {each['batch']} × {each['entries']}: "
            f"{1e6 * each['seconds']:.0f} µs, {rate}",
            highlight=False,
        )
    if out is not None:
        out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(typer.run(main))
