import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.methods.ddks import balance
from support.build import observation, run, stream
from support.tolerances import FLOAT64


def test_what_rpc_would_drop_stays_at_two_bits():
    queries, keys, values = stream(np.random.default_rng(19), 2, 2, 4, 3 + 18)
    options = "interval=8,selector=2"
    data = (queries, keys, values)
    first = run(methods.get(f"rpc@{options}"), *data, prompt=3)[10]
    assert first.keep is not None
    cache = run(methods.get(f"ddks@{options},group=4"), *data, prompt=3)[10].cache
    assert len(cache) == 13
    survivors = first.cache.positions
    for g in range(2):
        assert cache.positions[g, cache.keys.bits[g] == 16].tolist() == survivors[g].tolist()
    assert set(cache.keys.bits.ravel()) == {2, 16} == set(cache.values.bits.ravel())


@pytest.mark.parametrize(("group", "bits"), [(64, 5.875)])
def test_average_bits_of_desirekv_table_3(group, bits):
    """c = 4, no prompt, the selector aside: ¼·16 + ¾·(2 + 32/64) = 5.875; without overhead 5.5."""
    queries, keys, values = stream(np.random.default_rng(20), 1, 1, 64, 66)
    policy = methods.get(f"ddks@interval=64,selector=2,group={group}")
    cache = run(policy, queries, keys, values, prompt=0)[-1].cache
    elements = 2 * 64 * 64
    selector = 2 * 2 * 64 * 2
    assert (cache.nbytes - selector) * 8 / elements == bits
    assert (cache.payload_bytes - selector) * 8 / elements == 5.5


def test_demotion_is_final_and_the_demoted_are_not_ranked_again():
    queries, keys, values = stream(np.random.default_rng(21), 2, 2, 4, 60)
    policy = methods.get("ddks@interval=8,selector=2,group=4")
    demoted: set[tuple[int, int]] = set()
    for result in run(policy, queries, keys, values, prompt=3):
        bits, positions = result.cache.keys.bits, result.cache.positions
        now = {(g, int(positions[g, j])) for g, j in np.argwhere(bits == 2)}
        assert demoted <= now
        demoted = now
        assert len(result.cache) == result.seen.clock.seen
    assert demoted


def test_mikv_holds_the_budget_at_full_precision():
    queries, keys, values = stream(np.random.default_rng(22), 2, 2, 4, 40)
    policy = methods.get("ddks@reading=mikv,group=4", budget=10)
    results = run(policy, queries, keys, values, prompt=15)
    cache = results[-1].cache
    assert len(cache) == 40
    assert (cache.keys.bits == 16).sum(axis=1).tolist() == [10, 10]
    assert (cache.keys.bits[:, -5:] == 16).all()  # half of the budget
    for result in results:  # balanced by what the prompt's block saw, once for all
        np.testing.assert_array_equal(result.cache.keys.balance, balance(results[0].seen))


def test_balance_by_hand():
    """max|q| = (8, 1) over two heads, max|k| = (2, 4): β = (√4, √¼) = (2, ½)."""
    heads = np.full((1, 2, 1, 2), 0.5)
    seen = observation(heads, queries=[[-8, 0], [2, 1]], keys=[[1, -4], [2, 3]])
    np.testing.assert_allclose(balance(seen), [[2.0, 0.5]], atol=FLOAT64)


def test_mikv_needs_a_budget():
    assert all(
        map(methods.takes_budget, ("mikv", "ddks@reading=mikv", "ddks@reading=mikv,sinks=2"))
    )
    assert not methods.takes_budget("ddks@interval=8")
