"""Triton interprets its kernels where there is no GPU; it reads this when it is imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
