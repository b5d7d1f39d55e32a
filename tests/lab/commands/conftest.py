"""A trace that commands are given."""

import pytest

from kvlab.reference.simulator.trace import save_trace
from support.noise import noise


@pytest.fixture(scope="session")
def noise_file(tmp_path_factory):
    """A trace of noise, of 20 tokens given and 50 generated."""
    path = tmp_path_factory.mktemp("trace") / "noise.npz"
    save_trace(noise(), path)
    return path
