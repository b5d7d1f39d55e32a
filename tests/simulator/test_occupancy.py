"""Entries and bits by a policy's rules alone are those of a replay."""

import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.simulator.occupancy import occupancies
from kvlab.reference.simulator.replay import replay
from support.noise import noise
from support.sampling import diagonal
from support.tables import known, listed
from support.tolerances import FLOAT64

pytestmark = pytest.mark.usefixtures("shapes")

SPECS = [[*map(known, row)] for row in listed(__file__, "specs")]


@pytest.mark.parametrize(("asked", "sizes"), diagonal(SPECS, [(None, 8), (6, 12)]))
def test_counts_and_bits_are_those_of_a_replay(asked, sizes):
    (spec, budget), (block_size, head_dim) = asked, sizes
    policy = methods.get(spec, budget)
    found = occupancies(policy, 20, 50, block_size, head_dim)[0]
    (fate,) = next(replay(noise(layers=1, d=head_dim), [policy], block_size))
    np.testing.assert_array_equal(found.entries, fate.entries)
    np.testing.assert_allclose(found.elements(head_dim), fate.bits, rtol=FLOAT64)
    assert found.peak == found.attended.max() >= found.entries.max()
    assert (found.bits.min() < 16) == spec.startswith(("kivi", "ddks"))


@pytest.mark.parametrize("options", ["", ",value_bits=2", ",high_bits=16"])
def test_desirekv_without_doubt(options):
    """The medians of six sensitivities leave three above them, but not half of the kept ones every
    time: low and high are four bits apart, and the means less than half of that."""
    spec = f"desirekv@interval=6,selector=3,group=4,protection=none{options}"
    policy = methods.get(spec)
    found = occupancies(policy, 20, 50, head_dim=8)[0]
    (fate,) = next(replay(noise(layers=1), [policy]))
    decided = (found.entries - 20).clip(1)
    np.testing.assert_array_equal(found.entries, fate.entries)
    assert (np.abs(found.elements(8) - fate.bits) / (decided * 2 * 8)).max() < 2
    assert found.bits.min() < 16 and fate.error[:, -1].min() > 0


def test_two_of_three_important_tokens_count_as_sensitive():
    """After nine tokens half of the first six are kept, two in 8 bits and one in 4, and 4 bits of
    scales; the prompt and the selector's three are whole."""
    spec = "desirekv@interval=6,selector=3,group=8,protection=none"
    found = occupancies(methods.get(spec), 20, 9, head_dim=8)[0]
    assert found.entries[-1] == 26
    assert found.elements(8)[-1] == (23 * 16 + 2 * 12 + 8) * 2 * 8


def test_what_is_quantised_when():
    kivi = occupancies(methods.get("kivi@group=4,residual=8"), 10, 20)[0]
    assert kivi.quantised[9] == 8  # keys in steps of the residual, values older than it
    assert kivi.quantised[10:16].tolist() == [1, 1, 1, 1, 1, 8 + 1]
    assert not kivi.ranked.any()
    ddks = occupancies(methods.get("ddks@interval=8,selector=3,group=4"), 10, 20)[0]
    events = np.nonzero(ddks.ranked[10:])[0].tolist()
    assert events == [10, 18]
    assert (ddks.quantised[10:][events] == 6).all()  # of eight, a quarter stays wide
