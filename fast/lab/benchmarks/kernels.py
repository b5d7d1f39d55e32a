"""Kernels against the bandwidth that this GPU reaches when it copies.

python -m kvlab.fast.lab.benchmarks.kernels --out fast/lab/benchmarks/results/kernels-gpu.json

Every kernel is timed with events, the cache of the processor overwritten before each run; the
figure is the median. Its bytes are those of the function's docstring. What is stored in fewer bits
is compared with the kernel for 16 bits: its gain, and the share of the gain that its bytes allow.
The file is written after every size; what memory is not enough for is left out, and named.
``--small`` runs a single small case once, on any device, to see that everything runs: its times
mean nothing.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from kvlab.fast.attention import Reduction
from kvlab.fast.kernels.caote import eviction_errors
from kvlab.fast.kernels.decode import decode_attention
from kvlab.fast.kernels.keep import keep_slots
from kvlab.fast.kernels.mixed_precision import attend_to_tables
from kvlab.fast.kernels.move import move_survivors
from kvlab.fast.kernels.prefill import attend_block, received_attention
from kvlab.fast.kernels.quantise import quantise
from kvlab.fast.kernels.recurrence import RecurrenceCounters
from kvlab.fast.kernels.vector_tables import VectorTable, partners_of
from kvlab.fast.lab.benchmarks.machine import machine, versions
from kvlab.fast.lab.commands.terminal import console, progress

SCHEMA = 3
KV_HEADS, GROUP, HEAD_DIM = 8, 4, 128
"""Llama-3-8B."""
QUANTISED_TOGETHER = 64
"""Channels that share a scale."""
TOKENS_TOGETHER = 32
"""Tokens that share a channel's scale, as KIVI has it."""
ROWS = 1024
"""Rows of a block of the prompt, for its attention and the prefill scores."""
PLAIN, WITH_SCORES = "decode attention, no scores", "decode attention, probabilities"
"""What attention to tables is compared with."""
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
    rival: str = ""
    """Another case of this size that does the same with more bytes, or with more arithmetic."""


def cases(batch: int, n: int, device: str, dtype: torch.dtype) -> Iterator[Case]:
    """Yield every kernel, with what it is compared with."""
    heads, d, e = batch * KV_HEADS, HEAD_DIM, dtype.itemsize
    queries = torch.randn(batch, KV_HEADS, GROUP, 1, d, device=device, dtype=dtype)
    vectors = torch.randn(2, batch, KV_HEADS, n, d, device=device, dtype=dtype)
    keys, values = vectors
    cache = 2 * heads * n * d * e

    def case(kernel: str, run: Callable[[], Any], bytes_: int, rival: str = "") -> Case:
        return Case(kernel, batch, n, run, bytes_, rival)

    def plain() -> Tensor:
        return scaled_dot_product_attention(queries.flatten(1, 2), keys, values, enable_gqa=True)

    yield case("SDPA of PyTorch", plain, cache)
    scored = cache + heads * n * GROUP * 12
    yield case(WITH_SCORES, lambda: decode_attention(queries, keys, values), scored)
    reduced = cache + heads * n * (8 * GROUP + 4)

    def with_sums() -> Any:
        return decode_attention(queries, keys, values, reduce="sum")

    yield case("decode attention, sums", with_sums, reduced)

    def without() -> Any:
        return decode_attention(queries, keys, values, reduce="skip")

    yield case(PLAIN, without, cache)
    counts = torch.zeros(2, batch, KV_HEADS, n, dtype=torch.int32, device=device)
    counters = RecurrenceCounters(counts[0], counts[1], 1e-4)

    def tracked() -> Any:
        return decode_attention(queries, keys, values, reduce="max", counters=counters)

    yield case("decode attention, LazyEviction's counters", tracked, reduced + heads * n * 16)
    for k, base in ((1, "H2O"), (GROUP, "TOVA")):
        h = torch.softmax(torch.randn(batch, KV_HEADS, k, n, device=device), dim=-1)
        output = torch.stack([row @ v.float() for row, v in zip(h, values, strict=True)])
        errors = heads * n * (d * e + 8 * k + 4)
        name = f"CAOTE around {base}"

        def given(h: Tensor = h, output: Tensor = output) -> Tensor:
            return eviction_errors(h, values, output=output)

        def anew(h: Tensor = h) -> Tensor:
            return eviction_errors(h, values)

        yield case(name, anew, errors + heads * n * (d * e + 4 * k))
        yield case(f"{name}, output given", given, errors, name)
    h = torch.softmax(torch.randn(batch, KV_HEADS, 1, n, device=device), dim=-1)
    twice = heads * n * (2 * d * e + 16)
    yield case("FastCAOTE around H2O", lambda: eviction_errors(h, values, fast=True), twice)
    scores = torch.rand(batch, KV_HEADS, n, device=device)
    positions = torch.arange(n, dtype=torch.int32, device=device).repeat(batch, KV_HEADS, 1)
    kept = max(1, 3 * n // 4)

    def select() -> Tensor:
        return keep_slots(scores, None, positions, [kept] * batch, ordered=True)

    yield case("keep sets", select, heads * n * 8 + heads * kept * 8)
    slots = select()
    state = torch.zeros(3, batch, KV_HEADS, n, dtype=torch.int32, device=device)
    buffers = {"vectors": vectors, "state": state}
    moved = 2 * heads * kept * (2 * d * e + 12)
    yield case("move survivors", lambda: move_survivors(buffers, slots, True), moved)
    yield from prefill_cases(keys, values, positions)


def prefill_cases(keys: Tensor, values: Tensor, positions: Tensor) -> Iterator[Case]:
    """Yield attention of a prompt's last rows, and what every entry received from them."""
    batch, _, n, d = keys.shape
    m = min(ROWS, n)
    rows = torch.randn(batch, KV_HEADS, GROUP, m, d, device=keys.device, dtype=keys.dtype)
    row_positions = positions[:, 0, -m:].contiguous()
    read = rows, keys, row_positions, positions
    last_rows = causal_lower_right(m, n)

    def causal() -> Tensor:
        """Use FlashAttention: no fused kernel takes a mask and grouped heads together."""
        return scaled_dot_product_attention(
            rows.flatten(1, 2), keys, values, attn_mask=last_rows, enable_gqa=True
        )

    def attend() -> Any:
        return attend_block(rows, keys, values, row_positions, positions)

    _, lse = attend()
    plain, anew = f"SDPA of PyTorch, {m} rows", f"prefill scores of {m} rows"
    yield Case(plain, batch, n, causal, 0)
    name = f"attention of {m} rows with log-sum-exps"
    yield Case(name, batch, n, attend, 0, plain)
    yield Case(anew, batch, n, lambda: received_attention(*read), 0)

    def from_log_sums() -> Tensor:
        return received_attention(*read, lse=lse)

    yield Case(f"{anew} from log-sum-exps", batch, n, from_log_sums, 0, anew)


def coded_cases(batch: int, n: int, device: str, dtype: torch.dtype) -> Iterator[Case]:
    """Yield what is stored in fewer bits, beside the same entries in ``dtype``."""
    heads, d, e = batch * KV_HEADS, HEAD_DIM, dtype.itemsize
    vectors = torch.randn(batch, KV_HEADS, n, d, device=device, dtype=dtype)
    queries = torch.randn(batch, KV_HEADS, GROUP, 1, d, device=device, dtype=dtype)
    slots = torch.arange(n, device=device).expand(batch, KV_HEADS, n).contiguous()

    def attend(keys: VectorTable, values: VectorTable, reduce: Reduction) -> Callable[[], Any]:
        tables = [keys], [values], n
        partners = partners_of(*tables)
        return lambda: attend_to_tables(queries, *tables, None, reduce, partners)

    def case(kernel: str, run: Callable[[], Any], bytes_: int, rival: str = "") -> Case:
        return Case(kernel, batch, n, run, bytes_, rival)

    wide = VectorTable(slots, vectors)
    partner = heads * n * 4
    name = f"attention to tables, {8 * e} bits"
    yield case(name, attend(wide, wide, "skip"), 2 * heads * n * d * e + partner, PLAIN)
    for bits in (8, 4, 2):
        stored = heads * n * (d * bits // 8 + 4 * (d // QUANTISED_TOGETHER))

        def quantised(bits: int = bits) -> Any:
            return quantise(vectors, bits, QUANTISED_TOGETHER)

        yield case(f"quantise to {bits} bits", quantised, heads * n * d * e + stored)
        narrow, name = VectorTable(slots, quantised()), f"attention to tables, {bits} bits"
        yield case(name, attend(narrow, narrow, "skip"), 2 * stored + partner, PLAIN)
        scores = heads * n * (8 + 16 * GROUP)
        scored = attend(narrow, narrow, "none")
        yield case(f"{name}, probabilities", scored, 2 * stored + partner + scores, WITH_SCORES)
        blocks = vectors.unflatten(2, (-1, TOKENS_TOGETHER)).transpose(-1, -2)
        keys = VectorTable(slots, quantise(blocks, bits, TOKENS_TOGETHER), by_channel=True)
        moved = heads * n * d * (2 * bits + 32 // TOKENS_TOGETHER) // 8
        moved += partner + heads * n * 4 * (d // QUANTISED_TOGETHER)
        name = f"{name}, keys by channel"
        yield case(name, attend(keys, narrow, "skip"), moved, PLAIN)


def timed(
    found: Iterator[Case], device: str, repeats: int, bandwidth: float
) -> tuple[list[dict[str, Any]], bool]:
    """Time cases as they come; say whether memory was enough for all of them."""
    results = []
    try:
        for case in found:
            took = seconds(case.run, device, repeats)
            facts = {key: x for key, x in vars(case).items() if key != "run"}
            share = case.bytes / took / bandwidth if case.bytes else None
            results.append({**facts, "seconds": took, "share_of_copy": share})
    except torch.OutOfMemoryError:
        return results, False
    return results, True


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


def add_gains(results: list[dict[str, Any]]) -> None:
    """Say how much faster than its rival each case is, and how much of that its bytes allow."""
    known = {(each["kernel"], each["batch"], each["entries"]): each for each in results}
    for each in results:
        if each["rival"]:
            rival = known.get((each["rival"], each["batch"], each["entries"]))
            if rival is None:  # its memory was not enough
                each["gain"] = each["share_of_gain"] = None
                continue
            each["gain"] = rival["seconds"] / each["seconds"]
            bounded = each["bytes"] and each["bytes"] < rival["bytes"]
            ideal = rival["bytes"] / each["bytes"] if bounded else None
            each["share_of_gain"] = None if ideal is None else each["gain"] / ideal


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
    results, left_out = [], []
    report = {
        "schema": SCHEMA,
        "machine": machine(device),
        "versions": versions(),
        "shape": {"kv_heads": KV_HEADS, "group": GROUP, "head_dim": HEAD_DIM, "dtype": str(dtype)},
        "copy_bytes_per_second": bandwidth,
        "left_out": left_out,
        "results": results,
    }
    with progress() as bar:
        task = bar.add_task("kernels", total=len(batches) * len(lengths))
        for size in batches:
            for n in lengths:
                for kind in (cases, coded_cases):
                    found = kind(size, n, device, dtype)
                    more, fitted = timed(found, device, repeats, bandwidth)
                    results += more
                    if not fitted:
                        after = more[-1]["kernel"] if more else None
                        left_out.append({"batch": size, "entries": n, "all_after": after})
                    torch.cuda.empty_cache()
                add_gains(results)
                if out is not None:
                    out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
                bar.advance(task)
    for each in results:
        share = each["share_of_copy"]
        rate = "–" if share is None else f"{100 * share:.0f} % of copy"
        if each.get("gain") is not None:
            rate += f", {each['gain']:.2f} times as fast as {each['rival']}"
        if each.get("share_of_gain") is not None:
            rate += f", {100 * each['share_of_gain']:.0f} % of what its bytes allow"
        console.print(
            f"{each['kernel']}, batch {each['batch']} × {each['entries']}: "
            f"{1e6 * each['seconds']:.0f} µs, {rate}",
            highlight=False,
        )
    for each in left_out:
        after = each["all_after"] or "the start"
        console.print(
            f"batch {each['batch']} × {each['entries']}: memory was not enough after {after}",
            highlight=False,
        )


if __name__ == "__main__":
    sys.exit(typer.run(main))
