"""Inputs that kernels find hard."""

import os
from contextlib import contextmanager

import numpy as np
import torch

from kvlab.fast.kernels.choice import VARIABLE

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HEAD_DIMS = (32, 64, 80, 96, 128)
GROUPS = (1, 2, 4, 7, 8)


def drawn(shape, seed=0, dtype=torch.float32, scale=1.0):
    """Gaussian numbers, rounded to ``dtype``."""
    rng = np.random.default_rng(seed)
    return torch.tensor(scale * rng.normal(size=shape)).to(DEVICE, dtype)


def in_a_buffer(x, slack=3):
    """The same numbers as a view of a buffer that is longer along the axis of entries."""
    buffer = torch.full((*x.shape[:2], x.shape[2] + slack, *x.shape[3:]), torch.nan, dtype=x.dtype)
    buffer = buffer.to(x.device)
    buffer[:, :, : x.shape[2]] = x
    return buffer[:, :, : x.shape[2]]


def as_numpy(x):
    """Float64 for the reference."""
    return x.detach().cpu().double().numpy()


@contextmanager
def in_torch():
    """Let kernels compute in PyTorch."""
    before = os.environ[VARIABLE]
    os.environ[VARIABLE] = "torch"
    try:
        yield
    finally:
        os.environ[VARIABLE] = before
