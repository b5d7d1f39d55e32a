"""Kernels against the bandwidth that this GPU reaches when it copies.

python -m kvlab.fast.lab.benchmarks.kernels --out docs/study/results/benchmarks/kernels-gpu.json

Every kernel is timed with events. Before each run the processor's cache is filled with other
memory, by reading: what a write leaves there would have to be written back during the run. The
figure is the median, beside its quartiles. ``must_bytes`` are those that must move: what a kernel
is given, read once, and what it returns, written once. ``rival`` names what a kernel is compared
with. The file names cases for which memory is not enough, and the configurations that Triton chose.
``--small`` runs a single small case once, on any device, to see that everything runs: its times
mean nothing.
"""

import statistics
import timeit
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from kvlab.fast.kernels.attention import Reduction
from kvlab.fast.kernels.caote import eviction_errors
from kvlab.fast.kernels.decode import RecurrenceCounters, decode_attention
from kvlab.fast.kernels.keep import keep_slots
from kvlab.fast.kernels.mixed_precision import attend_to_tables
from kvlab.fast.kernels.move import move_survivors
from kvlab.fast.kernels.prefill import attend_block, received_attention
from kvlab.fast.kernels.quantise import quantise
from kvlab.fast.kernels.vector_tables import VectorTable, partners_of
from kvlab.fast.lab.benchmarks.noted import profiled, quartiles
from kvlab.fast.lab.benchmarks.results import Measure, gpu_or_small, run, run_benchmark
from kvlab.fast.lab.loop import Step

KV_HEADS, GROUP, HEAD_DIM = 8, 4, 128
"""Llama-3-8B."""
QUANTISED_TOGETHER = 64
"""Channels that share a scale."""
TOKENS_TOGETHER = 32
"""Tokens that share a channel's scale, as KIVI has it."""
ROWS = 1024
"""Rows of a block of the prompt, for its attention and the prefill scores."""
PLAIN, WITH_SCORES = "decode attention, no scores", "decode attention, probabilities"
FLUSHED = 2**28
"""Bytes read before every run: more than any processor's cache."""
HEAD_START = 2_000_000
"""Cycles, about a millisecond, that the GPU sleeps while the host starts what is timed."""


@dataclass(frozen=True)
class Case:
    """One kernel on one size."""

    kernel: str
    batch: int
    entries: int
    run: Callable[[], Any]
    must_bytes: int
    """Bytes of all that is given and of all that is returned."""
    rival: str = ""
    """Another case of this size that does the same with more bytes, or with more arithmetic."""
    by_bytes: bool = True
    """Whether moving the bytes is the limit; else arithmetic is."""


@dataclass(frozen=True)
class Size:
    """What kernels are run on: a batch of sequences with equally many entries."""

    batch: int
    entries: int
    device: str
    dtype: torch.dtype
    kv_heads: int = KV_HEADS

    @property
    def rows(self) -> int:
        """Entries of all KV heads and sequences."""
        return self.batch * self.kv_heads * self.entries

    @property
    def vector_bytes(self) -> int:
        """Bytes of one key or value."""
        return HEAD_DIM * self.dtype.itemsize

    def random(self, *shape: int) -> Tensor:
        """Return random numbers for every sequence and KV head."""
        return torch.randn(self.batch, self.kv_heads, *shape, device=self.device, dtype=self.dtype)

    def attention(self, rows: int) -> Tensor:
        """Return random rows of attention in float32."""
        return torch.softmax(self.random(rows, self.entries).float(), dim=-1)

    def positions(self) -> Tensor:
        """Return the positions of entries of which none was evicted."""
        places = torch.arange(self.entries, dtype=torch.int32, device=self.device)
        return places.repeat(self.batch, self.kv_heads, 1)

    def case(self, kernel: str, run: Callable[[], Any], must_bytes: int, *more: Any) -> Case:
        """Return a kernel on this size; ``more`` are the last fields of `Case`."""
        return Case(kernel, self.batch, self.entries, run, must_bytes, *more)


def decode_cases(size: Size) -> Iterator[Case]:
    """Yield attention of one query to all entries, with and without what scores read of it."""
    queries, keys, values = size.random(GROUP, 1, HEAD_DIM), *_vectors_of(size)
    cache = 2 * size.rows * size.vector_bytes

    def attend(reduce: Reduction, counters: RecurrenceCounters | None = None) -> Callable[[], Any]:
        return lambda: decode_attention(queries, keys, values, reduce=reduce, counters=counters)

    def plain() -> Tensor:
        return scaled_dot_product_attention(queries.flatten(1, 2), keys, values, enable_gqa=True)

    yield size.case("SDPA of PyTorch", plain, cache)
    yield size.case(WITH_SCORES, attend("none"), cache + size.rows * GROUP * 4)
    reduced = cache + size.rows * 4
    yield size.case("decode attention, sums", attend("sum"), reduced)
    yield size.case(PLAIN, attend("skip"), cache)
    counts = torch.zeros(2, *size.positions().shape, dtype=torch.int32, device=size.device)
    tracked = attend("max", RecurrenceCounters(counts[0], counts[1], 1e-4))
    name = "decode attention, LazyEviction's counters"
    yield size.case(name, tracked, reduced + size.rows * 16)


def _vectors_of(size: Size) -> tuple[Tensor, Tensor]:
    return size.random(size.entries, HEAD_DIM), size.random(size.entries, HEAD_DIM)


def _caote_cases(size: Size) -> Iterator[Case]:
    values = size.random(size.entries, HEAD_DIM)
    for rows, base in ((1, "H2O"), (GROUP, "TOVA")):
        h = size.attention(rows)
        output = h @ values.float()
        errors = size.rows * (size.vector_bytes + 4 * rows + 4)
        name = f"CAOTE applied to {base}"
        yield size.case(name, partial(eviction_errors, h, values), errors)
        given = partial(eviction_errors, h, values, output=output)
        yield size.case(f"{name}, output given", given, errors, name)
    fast = partial(eviction_errors, size.attention(1), values, fast=True)
    yield size.case("FastCAOTE applied to H2O", fast, size.rows * (size.vector_bytes + 8))


def _keep_cases(size: Size) -> Iterator[Case]:
    kept = max(1, 3 * size.entries // 4)
    scores, positions = size.attention(1).squeeze(2), size.positions()
    select = partial(keep_slots, scores, None, positions, [kept] * size.batch, ordered=True)
    survivors = size.batch * size.kv_heads * kept
    yield size.case("keep sets", select, size.rows * 8 + survivors * 8)
    state = torch.zeros(3, *positions.shape, dtype=torch.int32, device=size.device)
    buffers = {"vectors": torch.stack(_vectors_of(size)), "state": state}
    move = partial(move_survivors, buffers, select(), True)
    yield size.case("move survivors", move, 2 * survivors * (2 * size.vector_bytes + 12))


def prefill_cases(size: Size) -> Iterator[Case]:
    """Yield attention of a prompt's last rows, and what every entry received from them."""
    (keys, values), positions = _vectors_of(size), size.positions()
    m = min(ROWS, size.entries)
    rows = size.random(GROUP, m, HEAD_DIM)
    row_positions = positions[:, 0, -m:].contiguous()
    last_rows = causal_lower_right(m, size.entries)

    def causal() -> Tensor:
        """Use FlashAttention: no fused kernel takes a mask and grouped heads together."""
        return scaled_dot_product_attention(
            rows.flatten(1, 2), keys, values, attn_mask=last_rows, enable_gqa=True
        )

    attend = partial(attend_block, rows, keys, values, row_positions, positions)
    received = partial(received_attention, rows, keys, row_positions, positions)
    plain, anew = f"SDPA of PyTorch, {m} rows", f"prefill scores of {m} rows"
    read, sums = size.rows * size.vector_bytes, 4 * rows[..., 0].numel()
    attended, scored = 2 * (read + rows.nbytes), read + rows.nbytes + 4 * size.rows
    yield size.case(plain, causal, attended, "", False)
    name = f"attention of {m} rows with log-sum-exps"
    yield size.case(name, attend, attended + sums, plain, False)
    yield size.case(anew, received, scored, "", False)
    from_log_sums = partial(received, lse=attend()[1])
    yield size.case(f"{anew} from log-sum-exps", from_log_sums, scored + sums, anew, False)


def _coded_cases(size: Size) -> Iterator[Case]:
    vectors, queries = size.random(size.entries, HEAD_DIM), size.random(GROUP, 1, HEAD_DIM)
    slots = size.positions().long()

    def attend(keys: VectorTable, values: VectorTable, reduce: Reduction) -> Callable[[], Any]:
        tables = [keys], [values], size.entries
        return partial(attend_to_tables, queries, *tables, None, reduce, partners_of(*tables))

    wide, partner = VectorTable(slots, vectors), size.rows * 4
    name = f"attention to tables, {8 * size.dtype.itemsize} bits"
    moved = 2 * size.rows * size.vector_bytes + partner
    yield size.case(name, attend(wide, wide, "skip"), moved, PLAIN)
    for bits in (8, 4, 2):
        stored = size.rows * (HEAD_DIM * bits // 8 + 4 * (HEAD_DIM // QUANTISED_TOGETHER))
        quantised = partial(quantise, vectors, bits, QUANTISED_TOGETHER)
        written = size.rows * size.vector_bytes + stored
        yield size.case(f"quantise to {bits} bits", quantised, written)
        narrow, name = VectorTable(slots, quantised()), f"attention to tables, {bits} bits"
        moved = 2 * stored + partner
        yield size.case(name, attend(narrow, narrow, "skip"), moved, PLAIN)
        scored = attend(narrow, narrow, "none")
        scores = size.rows * 4 * GROUP
        yield size.case(f"{name}, probabilities", scored, moved + scores, WITH_SCORES)
        blocks = vectors.unflatten(2, (-1, TOKENS_TOGETHER)).transpose(-1, -2)
        keys = VectorTable(slots, quantise(blocks, bits, TOKENS_TOGETHER), by_channel=True)
        moved = size.rows * HEAD_DIM * (2 * bits + 32 // TOKENS_TOGETHER) // 8
        moved += partner + size.rows * 4 * (HEAD_DIM // QUANTISED_TOGETHER)
        yield size.case(f"{name}, keys by channel", attend(keys, narrow, "skip"), moved, PLAIN)


CASES = (decode_cases, _caote_cases, _keep_cases, prefill_cases, _coded_cases)


def timed(
    found: Iterator[Case], device: str, repeats: int, bandwidth: float, only: str = ""
) -> tuple[list[dict[str, Any]], bool]:
    """Time cases as they come; say whether memory was enough for all of them.

    Args:
        found: the cases.
        device: "cpu" or "cuda".
        repeats: timed runs of each.
        bandwidth: bytes that a copy moves per second.
        only: parts of names, with commas; a case needs one of them.
    """
    results = []
    torch.cuda.empty_cache()  # the memory of the cases before
    try:
        for case in found:
            if not any(part in case.kernel for part in only.split(",")):
                continue
            (took,) = seconds([case.run], device, repeats)
            facts = {key: x for key, x in vars(case).items() if key != "run"}
            facts |= {"seconds": statistics.median(took), "quartiles": quartiles(took)}
            if case.kernel.startswith("SDPA"):
                facts["backends"] = profiled(case.run)[1]
            share = case.must_bytes / facts["seconds"] / bandwidth
            results.append(facts | {"share_of_copy": share if case.by_bytes else None})
    except torch.OutOfMemoryError:
        return results, False
    return results, True


def seconds(
    runs: Sequence[Callable[[], Any]], device: str, repeats: int
) -> tuple[list[float], ...]:
    """Return the seconds of each function, which take turns."""
    if device != "cuda":
        return tuple(timeit.repeat(call, number=1, repeat=repeats) for call in runs)
    times: tuple[list[float], ...] = tuple([] for _ in runs)
    flush = torch.zeros(FLUSHED // 4, dtype=torch.int32, device=device)
    for call, own in [*zip(runs, times, strict=True)] * (1 + repeats):  # the first is not timed
        flush.amax()
        torch.cuda._sleep(HEAD_START)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        own.append(begin.elapsed_time(end) / 1e3)
    return tuple(own[1:] for own in times)


def copying(device: str, repeats: int, size: int) -> float:
    """Return the bytes that a copy of so many reads and writes per second."""
    source = torch.zeros(size, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    (took,) = seconds([lambda: target.copy_(source)], device, repeats)
    return 2 * size / statistics.median(took)


def main(
    batch: list[int] | None = None,
    entries: list[int] | None = None,
    repeats: int = 50,
    only: str = "",
    small: bool = False,
    out: Path | None = None,
) -> None:
    """Time every kernel."""
    asked, dtype = locals(), torch.bfloat16
    device = gpu_or_small("kernels", small)
    batches, lengths = (batch or [1, 8, 32], entries or [1024, 4096, 16384, 65536])
    sizes = [Size(n, length, device, dtype) for n in batches for length in lengths]
    if small:
        sizes, repeats = [Size(1, 64, device, dtype, kv_heads=1)], 1
    shape = {"kv_heads": sizes[0].kv_heads, "group": GROUP, "head_dim": HEAD_DIM}
    about: dict[str, Any] = {"shape": {**shape, "dtype": str(dtype)}, "left_out": []}

    def parts(run: Measure) -> dict[str, list[dict[str, Any]]]:
        copy = Step("copy bandwidth", partial(copying, device, repeats, copied))
        bandwidth = about["copy_bytes_per_second"] = run([copy])[copy.id]
        asked_of_each = device, repeats, bandwidth
        results: list[dict[str, Any]] = []
        for size in sizes:
            steps = [
                Step(
                    f"{cases.__name__.strip('_')}, batch {size.batch}, {size.entries} entries",
                    lambda cases=cases, size=size: timed(cases(size), *asked_of_each, only),
                )
                for cases in CASES
            ]
            for more, fitted in run(steps).values():
                results += more
                if not fitted:
                    last = more[-1]["kernel"] if more else None
                    place = {"batch": size.batch, "entries": size.entries}
                    about["left_out"].append({**place, "all_after": last})
        return {"kernels": results}

    copied = 2**20 if small else 2**31
    run_benchmark("kernels", device, asked, about, parts)


if __name__ == "__main__":
    run(main, "kernels")
