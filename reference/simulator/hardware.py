"""What a GPU can do, from its maker's data sheet."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvlab.reference.checks import check_at_least


@dataclass(frozen=True)
class Hardware:
    """One accelerator, at its peak.

    Raises:
        ValueError: if a figure is negative.
    """

    name: str
    memory: float
    """Bytes."""
    bandwidth: float
    """Bytes of its memory per second."""
    flops: float
    """Dense 16-bit floating-point operations per second, a multiplication and an addition two."""
    source: str

    def __post_init__(self) -> None:
        check_at_least(0, memory=self.memory, bandwidth=self.bandwidth, flops=self.flops)


HARDWARE: Mapping[str, Hardware] = {
    "v100": Hardware("V100 SXM2 32 GB", 32e9, 900e9, 125e12, "NVIDIA V100 data sheet, 2020"),
    "a100": Hardware("A100 SXM 80 GB", 80e9, 2039e9, 312e12, "NVIDIA A100 80GB data sheet, 2021"),
    "h100": Hardware("H100 SXM 80 GB", 80e9, 3350e9, 989e12, "NVIDIA H100 data sheet, 2024"),
    "h200": Hardware("H200 SXM 141 GB", 141e9, 4800e9, 989e12, "NVIDIA H200 data sheet, 2024"),
    "h20": Hardware(
        "H20 96 GB", 96e9, 4000e9, 148e12, "as resellers give it; NVIDIA publishes no data sheet"
    ),
}
"""GPUs by the name that `kvlab plan --gpu` takes."""


def find_hardware(name: str) -> Hardware:
    """Return a GPU of the table.

    Raises:
        ValueError: if there is none of that name.
    """
    if name.lower() not in HARDWARE:
        raise ValueError(f"gpu = {name!r} must be one of {', '.join(HARDWARE)}")
    return HARDWARE[name.lower()]
