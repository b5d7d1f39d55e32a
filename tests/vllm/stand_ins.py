"""What stands in the place of a GPU, inside vLLM's environment; imports nothing of the tests.

vLLM's backends for GPUs run in the place of CPU_ATTN: TRITON_ATTN with its kernels, in Triton's
interpreter; FLASH_ATTN with dense attention for its kernels, which reads the same metadata.
"""

import os
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

WAITING = ("item", "tolist", "cpu", "nonzero", "__bool__", "__int__", "__float__")
"""Methods of a tensor that wait for its device."""
COUNTED: list[str] = []
COPIED = [0]


def take_the_place_of_cpus(name: str) -> None:
    """Let a backend for GPUs run here.

    vLLM is told two things that a CPU cannot say: that Triton has a driver, and what it can do.
    """
    import torch
    import triton.backends
    from triton.runtime import interpreter

    torch.cuda.get_device_capability = lambda *_: (9, 0)
    driver = SimpleNamespace(is_active=lambda: True)
    triton.backends.backends["cpu"] = SimpleNamespace(driver=driver)
    interpreter.InterpreterBuilder.create_dot = in_float32(interpreter)
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


def count_waits() -> None:
    """Count what waits for a device where kvlab takes in a batch and decides; once a process."""
    from kvlab.fast.vllm import backend, requests
    from kvlab.fast.vllm.blocks import Layout

    if not hasattr(backend.take_turns, "counts"):
        Layout.read = measuring(Layout.read)
        backend.take_turns = counting(backend.take_turns)
        requests.Batch.__init__ = counting(requests.Batch.__init__)


def waits() -> int:
    """Return how often was waited since this was asked last."""
    found = len(COUNTED)
    COUNTED.clear()
    return found


def compiled() -> int:
    """Return how many graphs of the model were traced."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def most_copied() -> int:
    """Return how many numbers one operation made at most, since this was asked last."""
    found = max(COPIED)
    COPIED[:] = [0]
    return found


def measuring(function):
    """Return a function that notes how large the tensors are that it makes."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, given=(), named=None):
            found = operation(*given, **(named or {}))
            if isinstance(found, torch.Tensor) and not found._is_view():
                COPIED.append(found.numel())
            return found

    def measured(*given, **named):
        with Noting():
            return function(*given, **named)

    return measured


def counting(function):
    """Return a function that counts in what it calls."""
    import torch

    own = {name: getattr(torch.Tensor, name) for name in WAITING}

    def waiting(name):
        def waited(*given, **named):
            COUNTED.append(name)
            return own[name](*given, **named)

        return waited

    def counted(*given, **named):
        for name in own:
            setattr(torch.Tensor, name, waiting(name))
        try:
            return function(*given, **named)
        finally:
            for name, method in own.items():
                setattr(torch.Tensor, name, method)

    counted.counts = True
    return counted
