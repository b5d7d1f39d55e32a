"""Compiles every kernel for a GPU that need not be there; run as a program, not interpreted.

The interpreter takes what the compiler refuses: shapes that are no powers of two, operands of
different types, variables that change type in a loop. Kernels are called as the benchmark and
methods call them, on tensors of the CPU: what would be launched is compiled, and nothing runs.
"""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from kvlab.fast.kernels import choice, common
from kvlab.fast.kernels.decode import RecurrenceCounters, decode_attention
from kvlab.fast.kernels.mixed_precision import attend_to_tables
from kvlab.fast.kernels.prefill import attend_block, received_attention
from kvlab.fast.kernels.quantise import quantise
from kvlab.fast.kernels.vector_tables import VectorTable
from kvlab.fast.lab.benchmarks import kernels

MOST_SHARED = 227 * 1024
"""Bytes of shared memory that a block of an H100 or H200 can have."""
ENTRIES = 320
ONCE = "--once" in sys.argv
"""Whether a kernel is compiled for its first call alone."""
H200 = GPUTarget("cuda", 90, 32)
compiled: dict[tuple[str, str], Any] = {}
"""What was compiled, by the name of the kernel and a digest of what it was compiled from."""
launch = JITFunction.run


def compile_only(self, *arguments, warmup=False, **options):
    """Compile for these arguments, unless that is done; return the bytes of shared memory."""
    kind = kind_of(self, options)
    if ONCE and kind in {name for name, _ in compiled}:
        return 0
    kernel: Any = launch(self, *arguments, warmup=True, **options)
    compiled[kind, kernel.hash] = kernel
    return kernel.metadata.shared


def kind_of(kernel: JITFunction, options: dict[str, Any]) -> str:
    """Return the name of a kernel, and whether its rows are those of a block."""
    return f"{kernel.fn.__name__}{' of a block' if options.get('rows_at') is not None else ''}"


def ask_for_grid(grid: Any, **sizes: Any) -> None:
    """Ask for the grid as a launch would: some note what they answer."""
    if callable(grid):
        grid(sizes)


def compile_configurations(self, *arguments, **options):
    """Compile the first configuration that fits, and ask for its grid."""
    for tried in self.configs:
        sizes = options | tried.all_kwargs()
        if self.fn.run(*arguments, **sizes) <= MOST_SHARED:
            ask_for_grid(**sizes)
            return
    raise AssertionError(f"no configuration of {self.fn} fits")


def call(dtype: torch.dtype) -> None:
    """Call every kernel with what it is called with, in one number format of the entries."""
    size = kernels.Size(1, ENTRIES, "cpu", dtype, kv_heads=2)
    for cases in kernels.CASES:
        for case in cases(size):
            case.run()
    places = size.positions()
    for d in (128, 256):
        queries, rows = size.random(2, 1, d), size.random(2, 64, d)
        keys, row_places = size.random(ENTRIES, d), places[:, 0, -64:].contiguous()
        for reduce in ("none", "sum", "mean", "max", "skip"):
            exact = queries.float() if reduce == "none" else None
            decode_attention(queries, keys, keys, places, 5.0, reduce, exact=exact)
        counts = places.clone(), places.clone()
        decode_attention(queries, keys, keys, None, None, "sum", RecurrenceCounters(*counts, 0.1))
        attend_block(rows, keys, keys, row_places, places, 5.0)
        received_attention(rows, keys, row_places, places, torch.ones(1, 64), 5.0)
    several(size)


def several(size: kernels.Size) -> None:
    """Call the kernels that attend to tables of several widths."""
    vectors, number = size.random(ENTRIES, 128), torch.arange(ENTRIES) % 4
    tables = []
    for turn, bits in enumerate((16, 8, 4, 2)):
        slots = (number == turn).nonzero()[:, 0].expand(1, 2, -1)
        own = vectors[:, :, number == turn]
        tables.append(VectorTable(slots, own if bits == 16 else quantise(own, bits, 64)))
    queries = size.random(4, 1, 128)
    attend_to_tables(queries, tables, [tables[i] for i in (2, 0, 1, 3)], ENTRIES, 5.0)


def as_on_a_gpu(
    run: Callable[..., Any], run_tuned: Callable[..., Any], target: GPUTarget = H200
) -> None:
    """Let tensors of the CPU take Triton, and these functions its kernels, tuned ones too."""
    driver: Any = SimpleNamespace(
        get_current_device=lambda: target.arch,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: target,
    )
    triton.runtime.driver.set_active(driver)
    JITFunction.run, Autotuner.run = run, run_tuned
    choice.kernels_for = lambda device: "triton"
    common.multiplied_in_float32 = lambda x: x.dtype == torch.float32
    common.starts_early = lambda device: target.backend == "cuda" and int(target.arch) >= 90


if __name__ == "__main__":
    as_on_a_gpu(compile_only, compile_configurations)
    for dtype in (torch.bfloat16, torch.float16, torch.float32)[: 3 if "all" in sys.argv else 1]:
        call(dtype)
    for (kind, _), kernel in compiled.items():
        print(f"{kind}: {kernel.metadata.shared} bytes shared")
