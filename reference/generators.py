"""The random generators that a process shares: Python's, NumPy's, and PyTorch's where it is loaded.

kvlab's own methods draw from generators of their own, by seed. What is run beside them, such as a
press of kvpress or a method from outside, may draw from the shared ones.
"""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np


@contextmanager
def seeded(*key: int) -> Iterator[None]:
    """Let the shared generators draw meanwhile what ``key`` says, whatever was drawn before.

    The numbers of the key are at least 0. Afterwards the generators go on as if nothing had been
    drawn, so such contexts may stand inside of each other.
    """
    words = np.random.SeedSequence(key).generate_state(2)
    number = int(words[0]) << 32 | int(words[1])
    python, numpy, torch = random.getstate(), np.random.get_state(), sys.modules.get("torch")
    devices = range(torch.cuda.device_count()) if torch and torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices) if torch else nullcontext():
        try:
            random.seed(number)
            np.random.seed(words)
            if torch:
                torch.manual_seed(number)
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
