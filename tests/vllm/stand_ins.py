"""What stands in the place of a GPU, inside vLLM's environment; imports nothing of the tests.

vLLM's backends for GPUs run in the place of CPU_ATTN: TRITON_ATTN with its kernels, in Triton's
interpreter; FLASH_ATTN with dense attention for its kernels, which reads the same metadata.
"""

import os
from dataclasses import replace
from functools import wraps
from itertools import pairwise
from types import SimpleNamespace

WAITING = ("item", "tolist", "cpu", "nonzero", "__bool__", "__int__", "__float__")
"""Methods of a tensor that wait for its device."""
WAITED: list[int] = []
COPIED: list[int] = []


def take_the_place_of_cpus(name: str) -> None:
    """Let a backend for GPUs run here.

    vLLM is told two things that a CPU cannot say: that Triton has a driver, and what it can do.
    """
    import torch
    import triton.backends
    from triton.runtime import interpreter

    torch.cuda.get_device_capability = lambda *_: (9, 0)
    driver = SimpleNamespace(is_active=lambda: True)
    triton.backends.backends["cpu"] = SimpleNamespace(driver=driver)  # type: ignore[assignment]
    interpreter.InterpreterBuilder.create_dot = in_float32(interpreter)  # type: ignore[assignment]
    options = interpreter.interpreter_builder.options
    interpreter.interpreter_builder.options = replace(options, sanitize_overflow=False)  # slow
    from vllm.plugins import load_general_plugins
    from vllm.v1.attention.backends import flash_attn
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    flash_attn.get_flash_attn_version = lambda **_: 3
    flash_attn.get_scheduler_metadata = lambda cache_seqlens, **_: cache_seqlens.clone()
    flash_attn.flash_attn_varlen_func = attend_densely
    flash_attn.reshape_and_cache_flash = store
    load_general_plugins()
    register_backend(AttentionBackendEnum.CPU_ATTN, AttentionBackendEnum[name].get_path())


def in_float32(interpreter):
    """Return the interpreter's product of matrices, which would multiply the bits of bfloat16."""
    from triton.language import bfloat16, float32

    own = interpreter.InterpreterBuilder.create_dot

    def create_dot(self, *given):
        a, b = (
            interpreter.TensorHandle(
                interpreter._convert_float(x.data, bfloat16, float32, None).view("float32"), float32
            )
            if x.dtype == bfloat16
            else x
            for x in given[:2]
        )
        return own(self, a, b, *given[2:])

    return create_dot


def set_layout(layout: str | None, segments: bool) -> None:
    """Choose a layout of caches, and whether TRITON_ATTN attends to 16 segments of a text apart."""
    os.environ.pop("VLLM_KV_CACHE_LAYOUT", None)
    if layout is not None:
        os.environ["VLLM_KV_CACHE_LAYOUT"] = layout
    if "KVLAB_BACKEND" in os.environ:
        from vllm.v1.attention.backends import triton_attn

        triton_attn.MIN_LAUNCH_GRID_SIZE_2D = 128 if segments else 0


def attend_densely(
    q, k, v, out, cu_seqlens_q, seqused_k, block_table, softmax_scale, scheduler_metadata, **_
):
    """Attend as FlashAttention's kernel does: causal, to the first tokens of a row's blocks."""
    import torch

    assert torch.equal(scheduler_metadata, seqused_k)
    for row, (first, end) in enumerate(pairwise(cu_seqlens_q.tolist())):
        length = int(seqused_k[row])
        blocks = block_table[row, : -(-length // k.shape[1])].long()
        keys, values = (
            x[blocks].flatten(0, 1)[:length].repeat_interleave(q.shape[1] // k.shape[2], 1)
            for x in (k, v)
        )
        logits = torch.einsum("mhd,nhd->hmn", q[first:end], keys) * softmax_scale
        seen = torch.ones(logits.shape[1:]).tril(length - (end - first)) > 0
        weights = logits.masked_fill(~seen, -torch.inf).softmax(-1)
        out[first:end] = torch.einsum("hmn,nhd->mhd", weights, values)


def store(key, value, key_cache, value_cache, slots, *_) -> None:
    """Write keys and values to their slots."""
    size = key_cache.shape[1]
    for new, cache in ((key, key_cache), (value, value_cache)):
        cache[slots // size, slots % size] = new[: len(slots)]


def take_notes() -> None:
    """Note waits where kvlab takes in a batch and decides, and copies where it reads caches."""
    from kvlab.fast.vllm import backend, requests
    from kvlab.fast.vllm.blocks import Layout

    if not hasattr(backend.take_turns, "__wrapped__"):  # once a process
        backend.take_turns = noting(backend.take_turns, WAITED, waits)
        requests.Batch.__init__ = noting(requests.Batch.__init__, WAITED, waits)
        Layout.read = noting(Layout.read, COPIED, copies)


def noting(function, notes, note):
    """Return a function that notes something of every operation of PyTorch in it."""
    from torch.overrides import TorchFunctionMode

    class Noting(TorchFunctionMode):
        def __torch_function__(self, operation, types, given=(), named=None):
            found = operation(*given, **(named or {}))
            notes.append(note(operation.__name__, given, found))
            return found

    @wraps(function)
    def noted(*given, **named):
        with Noting():
            return function(*given, **named)

    return noted


def waits(name, given, found) -> int:
    """Count an operation that waits for the device."""
    masks = name == "__getitem__" and "bool" in str(getattr(given[1], "dtype", given[1]))
    return int(name in WAITING or masks)


def copies(name, given, found) -> int:
    """Return how many numbers an operation makes."""
    return 0 if found is None or found._is_view() else found.numel()


def noted() -> dict:
    """Return what was noted since this was asked last; clear it."""
    found = {"waits": sum(WAITED), "copied": max(COPIED, default=0)}
    WAITED.clear()
    COPIED.clear()
    return found


def compiled() -> int:
    """Return how many graphs of the model were traced."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]
