"""Kernels: one function each, computed by PyTorch or by Triton (see `kvlab.fast.kernels.choice`).

Every module holds the function, which says what it does and how many bytes and operations that
takes, and computes it in PyTorch; below lies the Triton code.
"""

import os
from sys import modules

if os.environ.get("KVLAB_KERNELS") == "interpret" and "triton" not in modules:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when a kernel imports it
