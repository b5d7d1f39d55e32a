"""Entries and bits by a policy's rules alone are those of a replay."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from noise import noise
from tolerances import FLOAT64

from kvlab.reference import methods
from kvlab.reference.policy import Precision
from kvlab.reference.simulator.occupancy import occupancy
from kvlab.reference.simulator.replay import replay

pytestmark = pytest.mark.usefixtures("shapes")

SPECS = [
    ("full", None),
    ("streaming_llm@sinks=2", 12),
    ("h2o", 12),
    ("h2o@every=5", 12),
    ("tova", 30),
    ("snapkv@window=4", 12),
    ("nacl", 12),
    ("raas@pin_prompt=false", 12),
    ("raas", 30),
    ("rkv@every=6,window=3", 12),
    ("lazy_eviction@window=4", 12),
    ("caote:tova", 12),
    ("ahakv@recent=3", 12),
    ("rpc@interval=8,selector=3", None),
    ("kivi@group=4,residual=8", None),
    ("kivi@group=4,residual=8,key_bits=8,value_bits=2", None),
    ("ddks@interval=8,selector=3,group=4", None),
    ("ddks@interval=8,selector=3,group=3", None),
]


@pytest.mark.parametrize("block_size", [None, 6])
@pytest.mark.parametrize(("spec", "budget"), SPECS)
def test_counts_and_bits_are_those_of_a_replay(spec, budget, block_size):
    policy = methods.get(spec, budget)
    found = occupancy(policy, 20, 50, block_size, head_dim=8)
    (fate,) = next(replay(noise(layers=1), [policy], block_size))
    np.testing.assert_array_equal(found.entries, fate.entries)
    np.testing.assert_allclose(found.elements(8), fate.bits)
    assert found.peak == found.attended.max() >= found.entries.max()


@pytest.mark.parametrize("options", ["", ",value_bits=2", ",high_bits=16"])
def test_desirekv_without_doubt(options):
    """The medians of six sensitivities leave three above them."""
    spec = f"desirekv@interval=6,selector=3,group=4,protection=none{options}"
    policy = methods.get(spec)
    found = occupancy(policy, 20, 50, head_dim=8)
    (fate,) = next(replay(noise(layers=1), [policy]))
    np.testing.assert_array_equal(found.entries, fate.entries)
    decided = (found.entries - 20).clip(1)
    off = np.abs(found.elements(8) - fate.bits) / (decided * 2 * 8)
    assert off.max() < 1.5  # which of the kept ones are sensitive is not half of them every time


def test_the_moments_of_decisions():
    found = occupancy(methods.get("lazy_eviction@window=4", 12), 10, 20)
    generated = found.attended[10:]
    assert generated.tolist()[:8] == [11, 12, 13, 14, 13, 14, 15, 16]
    assert np.nonzero(found.ranked[10:])[0].tolist() == [3, 7, 11, 15, 19]
    assert np.nonzero(found.moved[10:])[0].tolist() == [3, 7, 11, 15, 19]
    every = occupancy(methods.get("h2o", 12), 10, 20)
    assert np.nonzero(every.ranked)[0].tolist() == list(range(12, 30))
    assert not every.moved.any()


def test_what_is_quantised_when():
    kivi = occupancy(methods.get("kivi@group=4,residual=8"), 10, 20)
    assert kivi.quantised[9] == 8  # keys in steps of the residual, values older than it
    assert kivi.quantised[10:16].tolist() == [1, 1, 1, 1, 1, 8 + 1]
    assert not kivi.ranked.any()
    ddks = occupancy(methods.get("ddks@interval=8,selector=3,group=4"), 10, 20)
    events = np.nonzero(ddks.ranked[10:])[0].tolist()
    assert events == [10, 18]
    assert (ddks.quantised[10:][events] == 6).all()  # of eight, a quarter stays wide


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 5), "prompt = -1"),
        ((5, -1), "generated = -1"),
        ((0, 0), "tokens = 0"),
        ((5, 5, 0), "block_size = 0"),
        ((5, 5, None, 0), "head_dim = 0"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        occupancy(methods.get("h2o", 4), *arguments)


@dataclass(frozen=True)
class Unheard(Precision):
    """A precision of which only `store` is known."""

    known: Precision

    def store(self, cache, seen, keep):
        return self.known.store(cache, seen, keep)


def without_account(policy):
    """The same policy, whose precision does not say what it stores."""
    return replace(policy, precision=Unheard(policy.precision))


@pytest.mark.parametrize("head_dim", [8, 12])
@pytest.mark.parametrize(
    ("spec", "budget"), [each for each in SPECS if each[0].startswith(("full", "h2o", "k", "d"))]
)
def test_what_a_precision_says_is_what_it_does(spec, budget, head_dim):
    """Its own count of bits is that of running it on drawn vectors."""
    policy = methods.get(spec, budget)
    told = occupancy(policy, 20, 50, 6, head_dim)
    found = occupancy(without_account(policy), 20, 50, 6, head_dim)
    np.testing.assert_array_equal(told.entries, found.entries)
    np.testing.assert_allclose(told.bits, found.bits, rtol=FLOAT64)
    np.testing.assert_array_equal(told.quantised, found.quantised)
    assert found.bits.min() < 16 or not spec.startswith(("k", "d"))


def test_what_desirekv_says_is_what_it_does():
    """But for how many of a window are sensitive, which depends on the keys: low and high are four
    bits apart, and the means less than half of that."""
    policy = methods.get("desirekv@interval=6,selector=3,group=4,protection=none")
    told, found = (occupancy(each, 20, 50, 6, 8) for each in (policy, without_account(policy)))
    np.testing.assert_array_equal(told.entries, found.entries)
    decided = (told.entries - 20).clip(1)
    assert (np.abs(told.elements(8) - found.elements(8)) / (decided * 2 * 8)).max() < 2
    assert found.bits.min() < 16
