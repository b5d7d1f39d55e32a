"""Memory of Triton's interpreter in which an access beside an array is an error.

Every array of a launch is moved to memory of its own, between margins that belong to nobody; every
address that a kernel reads or writes, where its mask allows it, must lie inside one of them.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from triton.runtime import interpreter

MARGIN = 2**16
"""Bytes before and behind an array."""


class Arrays:
    """The arrays of one launch, in memory of their own."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.moved: list[tuple[int, int, Tensor]] = []
        """Where ranges of bytes of the caller begin and end, and where they lie now."""
        for begin, end in merged(sorted(extent(x) for x in tensors if x.numel())):
            memory = torch.empty(end - begin + 2 * MARGIN, dtype=torch.uint8)
            memory[MARGIN:-MARGIN] = torch.from_numpy(at(begin, end))
            self.moved.append((begin, end, memory))
        places = sorted((memory.data_ptr() + MARGIN, e - b) for b, e, memory in self.moved)
        self.begins = np.array([place for place, _ in places], dtype=np.uint64)
        self.ends = np.array([place + size for place, size in places], dtype=np.uint64)

    def place(self, x: Tensor) -> Tensor:
        """Return where a tensor lies now."""
        if not x.numel():
            return x
        first = x.data_ptr()
        begin, _, memory = next(each for each in self.moved if each[0] <= first < each[1])
        offset = (MARGIN + first - begin) // x.itemsize
        view = torch.empty(0, dtype=x.dtype)
        return view.set_(memory.untyped_storage(), offset, x.size(), x.stride())

    def give_back(self) -> None:
        """Write what kernels wrote to where the caller has it."""
        for begin, end, memory in self.moved:
            at(begin, end)[:] = memory[MARGIN:-MARGIN].numpy()

    def check(self, addresses: Any, mask: Any, size: int) -> None:
        """Refuse addresses of numbers of ``size`` bytes that lie beside all arrays."""
        asked = addresses[np.broadcast_to(mask, addresses.shape).astype(bool)].astype(np.uint64)
        if not asked.size:
            return
        number = np.searchsorted(self.begins, asked, side="right")
        inside = (number > 0) & (asked + np.uint64(size) <= self.ends[number - 1])
        if not inside.all():
            raise IndexError(f"{(~inside).sum()} of {asked.size} numbers lie beside all arrays")


def extent(x: Tensor) -> tuple[int, int]:
    """Return the address of a tensor's first byte, and of the byte behind its last one."""
    last = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.itemsize


def merged(extents: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield ranges that do not overlap."""
    begin = end = 0
    for first, last in extents:
        if first >= end:
            if end:
                yield begin, end
            begin = first
        end = max(end, last)
    if end:
        yield begin, end


def at(begin: int, end: int) -> Any:
    """Return bytes of memory as an array."""
    return np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * (end - begin)).from_address(begin))


def tensors_of(arguments: Any) -> Iterator[Tensor]:
    """Yield the tensors among arguments, those in tuples too."""
    for each in arguments:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, tuple):
            yield from tensors_of(each)


def placed(argument: Any, arrays: Arrays) -> Any:
    """Return an argument with its tensors where they lie now."""
    if isinstance(argument, Tensor):
        return arrays.place(argument)
    if isinstance(argument, tuple):
        return interpreter._tuple_create(argument, [placed(each, arrays) for each in argument])
    return argument


current: list[Arrays] = []
"""Of the launch that runs, if one does."""
builder = interpreter.InterpreterBuilder
load, store, add = (
    builder.create_masked_load,
    builder.create_masked_store,
    builder.create_atomic_rmw,
)


def check(pointers: Any, mask: Any) -> None:
    size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
    current[-1].check(pointers.data, mask.data, size)


def checked_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
    check(pointers, mask)
    return load(self, pointers, mask, *rest)


def checked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
    check(pointers, mask)
    return store(self, pointers, value, mask, *rest)


def checked_add(self: Any, op: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
    check(pointers, mask)
    return add(self, op, pointers, value, mask, *rest)


def check_accesses() -> None:
    """Check every access of the interpreter from now on."""
    builder.create_masked_load = checked_load
    builder.create_masked_store = checked_store
    builder.create_atomic_rmw = checked_add
