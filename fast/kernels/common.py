"""What the kernels share: Triton, how they are tuned, how work is shared out, pieces of code."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from inspect import unwrap
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from kvlab.fast.kernels.notation import Int, Tensor


class Missing:
    """Stands in for Triton where it is not installed: kernels can be written down, but not run.

    `choice.uses_triton` refuses before a kernel could be launched.
    """

    def __getattr__(self, name: str) -> "Missing":
        return self

    def __call__(self, *arguments: Any, **options: Any) -> "Missing":
        return self


if TYPE_CHECKING or find_spec("triton"):
    import triton
    import triton.language as tl
    from triton import knobs
    from triton.language import constexpr
else:
    triton = tl = knobs = constexpr = Missing()


def kernel(function: Callable[..., Any], changing: Sequence[str] = ()) -> Any:
    """Let Triton compile a function, without the run-time type checker that may wrap it.

    Triton compiles again where a number is 1 or a multiple of 16, but for arguments ``changing``.
    """
    return triton.jit(do_not_specialize=list(changing))(unwrap(function))


def to_device(numbers: Sequence[Any], device: torch.device) -> Int[Tensor, "..."]:
    """Copy integers, or lists of them, to a device without waiting for it."""
    host = torch.tensor(numbers, device="cpu")
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)


# --- configurations ------------------------------------------------------------------------------


def tuned(sizes: str, tried: Sequence[Sequence[int]], key: Sequence[str]) -> Callable[[Any], Any]:
    """Let Triton try configurations, once per process and for every change of a ``key`` argument.

    Those ``tried`` are warps of a program, stages of its loops, and the kernel's ``sizes`` by name.

    Only kernels that write nothing but outputs of their own may be tuned: they run several times. A
    configuration that does not fit into shared memory is passed over; the interpreter takes the
    first, and so does a GPU under ``KVLAB_TUNE=0``. ``TRITON_CACHE_AUTOTUNING=1`` keeps the choice
    on disk.
    """
    only_first = knobs.runtime.interpret or os.environ.get("KVLAB_TUNE") == "0"
    configurations = [
        triton.Config(
            dict(zip(sizes.split(), own, strict=True)), num_warps=warps, num_stages=stages
        )
        for warps, stages, *own in (tried[:1] if only_first else tried)
    ]
    return triton.autotune(configs=configurations, key=list(key))


# --- how the entries of a head are shared out over programs --------------------------------------

MOST_PARTS = 64
WAVES = 2
"""Programs per multiprocessor that a split kernel aims at; up to twice as many, if more even."""
ENTRIES_OF_A_PART = 64
"""Least number of entries in a part, if there are so many."""


def magnitude(n: int) -> int:
    """Return the power of two at or above n."""
    return 1 << max(0, n - 1).bit_length()


def kind_of_call(heads: int, n: int) -> int:
    """Return the same number for about as many heads and entries: they take one configuration.

    Both count in powers of four, up to 1,024 entries as one. It is always a multiple of 16.
    """
    of_heads, of_entries = (-(-(x - 1).bit_length() // 2) for x in (heads, max(n, 1024)))
    return 16 * (64 * of_heads + of_entries)


def columns(d: int) -> int:
    """Return the numbers that a program holds of a vector, or of rows: tensor cores take 16."""
    return max(16, magnitude(d))


def split(
    n: int,
    block: int,
    heads: int,
    device: torch.device,
    waves: int = WAVES,
    most: int = MOST_PARTS,
) -> int:
    """Return the number of parts of n entries: few numbers, since kernels may be compiled for each.

    Enough entries are split so that each multiprocessor has ``waves`` programs or a few more;
    fewer, so that a part has about ``block``; of twice the waves there are no fewer parts.
    """
    return min(most_even(heads, processors(device), waves, most), magnitude(-(-n // block)))


@cache
def processors(device: torch.device) -> int:
    """Return the multiprocessors of a device, and those of an H100 for what is no GPU."""
    if device.type != "cuda":
        return 132
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def most_even(heads: int, processors: int, waves: int = WAVES, most: int = MOST_PARTS) -> int:
    """Return the parts of a head with which every multiprocessor gets as many programs."""
    least = max(1, min(most, waves * processors // heads))

    def idle(parts: int) -> float:
        return -parts * heads % processors / (parts * heads)

    return min(range(least, min(most, 2 * least) + 1), key=idle)


class GridOfParts:
    """A launch grid whose last axis is how many parts the tuner's ``WAVES`` ask for.

    The tuner asks once for each launch that it tries and then for the one that counts, whose parts
    are ``taken``: another thread may launch the same kernel meanwhile.
    """

    def __init__(self, axes: tuple[int, ...], parts_of: Callable[[int], int]) -> None:
        self.axes, self.parts_of, self.taken = axes, parts_of, 0

    def __call__(self, sizes: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the grid, and note its parts."""
        self.taken = self.parts_of(sizes["WAVES"])
        return *self.axes, self.taken


def most_waves(kernel: Any) -> int:
    """Return the largest ``WAVES`` with which a tuned kernel may be launched."""
    return max(tried.kwargs["WAVES"] for tried in kernel.configs)


def starts_early(device: torch.device) -> bool:
    """Say whether programs can be there before the kernel before them ends: NVIDIA's from 9.0.

    That kernel lets them in by `gdc_launch_dependents`; they wait for its end by `gdc_wait`.
    """
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)


# --- where tensors lie ---------------------------------------------------------------------------


def on_device_of(x: Tensor) -> AbstractContextManager[Any]:
    """Launch meanwhile on the device of a tensor: Triton takes the current one."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def per_head(x: Tensor, written: bool = False) -> Tensor:
    """Return ``[N, G, n, ...]`` as ``[N·G, n, ...]``, its last axis contiguous.

    It is copied where that cannot be a view; what will be ``written`` is refused instead.
    """
    flat = x.flatten(0, 1)
    if flat.shape[-1] > 1 and flat.stride(-1) != 1:
        flat = flat.contiguous()
    if written and flat.data_ptr() != x.data_ptr():
        raise ValueError(
            f"strides {x.stride()}: heads must lie equally far apart, and the last axis next to "
            "each other"
        )
    return flat


class Rows(NamedTuple):
    """What a kernel reads a row at a time: where it begins, strides of heads and of rows."""

    data: Tensor
    head: int
    row: int


def rows_of(x: Tensor) -> Rows:
    """Return the rows of ``[heads, n, ...]``."""
    return Rows(x, x.stride(0), x.stride(1))


def multiplied_in_float32(x: Tensor) -> bool:
    """Say whether products are formed in float32: the interpreter has none of bfloat16."""
    return x.dtype == torch.float32 or (x.dtype == torch.bfloat16 and not x.is_cuda)


# --- pieces of kernels ---------------------------------------------------------------------------


@kernel
def share_of(part, parts, n):
    """Return where a part of n entries begins, at a multiple of 16, and where it ends."""
    sixteens = tl.cdiv(n, 16)
    return part * sixteens // parts * 16, tl.minimum((part + 1) * sixteens // parts * 16, n)


@kernel
def squeezed(logits, softcap):
    """Return softcap · tanh(logits / softcap), from exponentials that cannot overflow."""
    small = tl.exp(-2.0 * tl.abs(logits) / softcap)
    bent = softcap * (1.0 - small) / (1.0 + small)
    return tl.where(logits < 0, -bent, bent)


@kernel
def in_reach(weights, TYPE: constexpr):
    """Return weights of at most 1 in a number format; those in float16 are multiplied by 2^15.

    The smallest number of float16 is 6e-8, and beside an attention sink a weight may be smaller.
    So a weight is off by 2^-40 of the largest one so far, or by 2^-12 of itself.
    """
    if TYPE.is_fp16():
        weights = weights * 32768.0
    return weights.to(TYPE)


@kernel
def out_of_reach(product, TYPE: constexpr):
    """Undo the power of two of `in_reach`."""
    if TYPE.is_fp16():
        product = product * (1 / 32768)
    return product


@kernel
def into_reach(largest, TO: constexpr = 14):
    """Return the power of two that moves the largest number between 2^TO and twice that, and the
    one that undoes it. 2^14 lies at the upper end of float16.
    """
    exponent = tl.maximum(largest.to(tl.int32, bitcast=True) >> 23, TO + 1)
    up = ((254 + TO - exponent) << 23).to(tl.float32, bitcast=True)
    return up, ((exponent - TO) << 23).to(tl.float32, bitcast=True)


@kernel
def read_vectors(
    vectors, head, row, there,
    D: constexpr, BLOCK_D: constexpr, WIDE: constexpr,
):  # fmt: skip
    """Return vectors ``[rows, BLOCK_D]`` of a head, zeros where none is; as float32 with WIDE."""
    column = tl.arange(0, BLOCK_D)
    at = head * vectors.head + row[:, None].to(tl.int64) * vectors.row + column
    read = tl.load(vectors.data + at, mask=there[:, None] & (column < D)[None, :], other=0.0)
    if WIDE:
        read = read.to(tl.float32)
    return read


LOG2_E = constexpr(1.4426950408889634)


@kernel
def soften(products, unit, best, mass):
    """Take a block of logits ``[rows, entries]`` into a softmax that is computed block by block.

    Logits are products times a positive ``unit``, which is folded into the exponents. Returns
    exp(logits − the largest so far), the factor of earlier sums, and the new largest products and
    masses. `log_mass` ends it.
    """
    rate = unit * LOG2_E  # exp keeps the least numbers, slowly
    now = tl.maximum(best, tl.max(products, axis=1))
    anchor = tl.where(now == float("-inf"), 0.0, now)
    weights = tl.exp2((products - anchor[:, None]) * rate)
    shrink = tl.exp2((best - anchor) * rate)
    return weights, shrink, now, mass * shrink + tl.sum(weights, axis=1)


@kernel
def log_mass(best, unit, mass):
    """Return log-sum-exps, −inf for rows that read nothing, and what to divide outputs by."""
    whole = tl.where(mass == 0, 1.0, mass)
    return tl.where(mass == 0, float("-inf"), best * unit + tl.log(whole)), whole
