"""Configurations among which Triton chooses: once per process, kernel and shape, by trying them.

Only kernels that write nothing but outputs of their own are tuned: they may run any number of
times. ``TRITON_CACHE_AUTOTUNING=1`` keeps the choice on disk.
"""

from collections.abc import Callable, Sequence
from typing import Any

import triton
from triton import knobs


def blocks(warps: int, stages: int, **sizes: int) -> triton.Config:
    """Return a configuration: sizes of blocks, warps of a program, stages of its loops."""
    return triton.Config(sizes, num_warps=warps, num_stages=stages)


def tuned(*configurations: triton.Config, key: Sequence[str]) -> Callable[[Any], Any]:
    """Let Triton choose, anew where an argument in ``key`` changes; the first where interpreted.

    A configuration that does not fit into shared memory is passed over.
    """
    tried = configurations[:1] if knobs.runtime.interpret else configurations
    return triton.autotune(configs=list(tried), key=list(key))
