"""Which implementation runs: PyTorch or Triton.

``KVLAB_KERNELS`` is ``torch``, ``triton`` (CUDA only) or ``interpret`` (Triton's interpreter, for
tests on a CPU). Unset, CUDA tensors take Triton and all others PyTorch; float64 always takes
PyTorch. Where Triton is asked for and missing, nothing falls back: an error says so.

Some cases have no kernel, and go on in PyTorch silently; docs/kernels.md lists them. One of them
has a kernel that was wrong: CAOTE's errors of float32 values on CUDA, see
`caote.FLOAT32_IS_WRONG_ON_CUDA`.
"""

import os
from functools import cache
from importlib.util import find_spec

import torch

VARIABLE = "KVLAB_KERNELS"
KERNELS = ("torch", "triton", "interpret")


def kernels_for(device: torch.device) -> str:
    """Return the implementation that tensors on this device take."""
    asked = os.environ.get(VARIABLE)
    if not asked:
        return "triton" if device.type == "cuda" else "torch"
    if asked not in KERNELS:
        raise ValueError(f"{VARIABLE} = {asked!r} must be one of {', '.join(KERNELS)}")
    needed = {"triton": "cuda", "interpret": "cpu"}.get(asked, device.type)
    if device.type != needed:
        raise ValueError(
            f"{VARIABLE} = {asked!r} needs {needed.upper()} tensors, not {device.type}"
        )
    return asked


def uses_triton(x: torch.Tensor, doubles: bool = False) -> bool:
    """Say whether a tensor takes Triton kernels, and make sure that it can.

    Float64 takes PyTorch, but for kernels of ``doubles``: the others compute in float32.
    """
    chosen = kernels_for(x.device)
    if chosen == "torch" or (x.dtype == torch.float64 and not doubles):
        return False
    _check_installed(chosen)
    return True


@cache
def _check_installed(chosen: str) -> None:
    if find_spec("triton") is None:
        raise RuntimeError(
            f"Triton is not installed, which {VARIABLE} = {chosen!r} needs: "
            f"pip install triton, or set {VARIABLE}=torch"
        )
    from triton import knobs

    if chosen == "interpret" and not knobs.runtime.interpret:
        raise RuntimeError(
            f"{VARIABLE} = 'interpret' comes too late, Triton is loaded: set TRITON_INTERPRET=1"
        )
