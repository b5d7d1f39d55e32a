"""How the entries of a head are shared out over programs."""

import math

import torch

MOST_PARTS = 64
WAVES = 2
"""Programs per multiprocessor that a split kernel aims at."""


def magnitude(n: int) -> int:
    """Return the power of two at or above n: what configurations are chosen for."""
    return 1 << max(0, n - 1).bit_length()


def split(n: int, block: int, heads: int, device: torch.device) -> int:
    """Return into how many parts n entries are cut; a power of two: each is compiled anew."""
    blocks = max(1, -(-n // block))
    processors = 132
    if device.type == "cuda":
        processors = torch.cuda.get_device_properties(device).multi_processor_count
    wanted = max(1, min(MOST_PARTS, blocks, math.ceil(WAVES * processors / heads)))
    return 1 << (wanted - 1).bit_length()
