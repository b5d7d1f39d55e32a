"""Inputs that kernels find hard."""

import os
from contextlib import contextmanager

import numpy as np
import torch

from kvlab.fast.kernels.choice import VARIABLE
from kvlab.reference.attention import logits, softmax, weighted_values

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
    return x.detach().cpu().double().numpy()


@contextmanager
def in_torch():
    before = os.environ[VARIABLE]
    os.environ[VARIABLE] = "torch"
    try:
        yield
    finally:
        os.environ[VARIABLE] = before


def vectors(N=2, G=2, rho=2, m=1, n=70, d=32, dtype=torch.float32, scale=1.0):
    """Queries, keys and values; what lies behind the entries is NaN, and may not come through."""
    queries = drawn((N, G, rho, m, d), 0, dtype, scale)
    return queries, *(in_a_buffer(drawn((N, G, n, d), seed, dtype)) for seed in (1, 2))


def attended(queries, keys, values, mask=None, softcap=None, gains=None):
    """Outputs, probabilities and log-sum-exps by the reference, which takes one sequence.

    The mask is ``[N, G, 1, m, n]``. Rows that may read nothing get zeros and −inf.
    """
    found = []
    for one in range(len(queries)):
        q, k, v = (as_numpy(x[one]) for x in (queries, keys, values))
        raw = logits(q, k, softcap)
        if gains is not None:
            raw = raw * as_numpy(gains[one])[:, None]
        allowed = np.broadcast_to(True if mask is None else mask[one], raw.shape)
        reads = allowed.any(axis=-1, keepdims=True)
        weights = np.where(reads, softmax(raw, allowed | ~reads), 0.0)
        lse = np.logaddexp.reduce(np.where(allowed, raw, -np.inf), axis=-1)
        found.append((weighted_values(weights, v), weights, lse))
    return [np.stack(each) for each in zip(*found, strict=True)]
