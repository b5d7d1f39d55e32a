import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.methods.random import draws
from support.build import run, stream
from support.cases import ALL
from support.tables import cases

MODULUS = 2**32


def scattered(number):
    """The same arithmetic with Python's whole numbers, which have no size."""
    number %= MODULUS
    for multiplier in (0x7FEB352D, 0x5BD1E995, 0x27D4EB2F):
        number = (number ^ (number >> 15)) * multiplier % MODULUS
    return number ^ (number >> 16)


def test_a_draw_worked_out_with_whole_numbers():
    """0 + 1 = 1; 1 ^ (1 >> 15) = 1; 1 * 0x7FEB352D = 2146121005; and so on, five coordinates."""
    total = 0
    for coordinate in (3, 0, 1, 40, 57):  # seed, layer, head, position, tokens seen
        total = scattered(total + scattered(coordinate + 1))
    assert draws(3, 0, 1, 40, 57) == (total >> 8) / 2**24


def test_draws_are_even_and_independent():
    entries, heads = np.arange(4000), np.arange(8)[:, None]
    found = draws(0, 0, heads, entries, 99)
    share, _ = np.histogram(found, bins=10, range=(0, 1))
    error = np.sqrt(found.size * 0.1 * 0.9)
    assert abs(share - found.size / 10).max() < 4 * error
    for other in (
        draws(1, 0, heads, entries, 99),
        draws(0, 1, heads, entries, 99),
        draws(0, 0, heads + 1, entries, 99),
        draws(0, 0, heads, entries + 1, 99),
        draws(0, 0, heads, entries, 100),
    ):
        correlation = np.corrcoef(found.ravel(), other.ravel())[0, 1]
        assert abs(correlation) < 4 / np.sqrt(found.size)


def test_the_largest_draws_stay():
    queries, keys, values = stream(np.random.default_rng(0), 2, 1, 4, 9)
    last = run(methods.get("random@seed=5", 4), queries, keys, values, prompt=8)[-1]
    for head, positions in enumerate(last.cache.positions):
        numbers = draws(5, 0, head, last.seen.positions[head], 9)
        best = last.seen.positions[head][np.sort(np.argsort(numbers)[-4:])]
        assert positions.tolist() == best.tolist()


@cases(__file__, "old_entries_are_rarer_only_when_they_are_drawn_anew", "draw low high")
def test_old_entries_are_rarer_only_when_they_are_drawn_anew(draw, low, high):
    """Of 30 entries after 120 tokens, the share that stood in the first half of the text."""
    queries, keys, values = stream(np.random.default_rng(0), 8, 1, 2, 120)
    policy = methods.get(f"random@draw={draw}", 30)
    kept = run(policy, queries, keys, values, prompt=1)[-1].cache.positions
    assert low <= (kept < 60).mean() <= high


@pytest.mark.parametrize("spec", ALL)
def test_a_matched_control_differs_from_the_method_in_its_score_alone(spec):
    """All else is the method's; the heads of a layer share a draw where they share a score."""
    budget = 12 if methods.takes_budget(spec) else None
    method, control = methods.get(spec, budget), methods.get(f"random:{spec}", budget)
    parts = ("schedule", "protect", "budget", "precision", "evict_before_attend", "reposition")
    assert [getattr(method, part) for part in parts] == [getattr(control, part) for part in parts]
    results = run(method, *stream(np.random.default_rng(0), 2, 2, 8, 40), prompt=20)
    drawn = run(control, *stream(np.random.default_rng(0), 2, 2, 8, 40), prompt=20)
    for each in (results, drawn):
        scores = [result.decision.scores for result in each if result.decision is not None]
        alike = [np.array_equal(*heads) for heads in scores if heads is not None]
        assert not alike or all(alike) == method.score.joins_kv_heads


def test_a_matched_control_takes_options_of_the_method_and_a_seed():
    control = methods.get("random:caote:h2o@recent=3,every=5,seed=7,page=2", 12)
    assert control.score.inner.seed == 7
    assert control.schedule.every == 5
    assert control.protect.inner.recent == 3
    assert methods.read("random:h2o@recent=3").seeded(5) == "random:h2o@recent=3,seed=5"
    with pytest.raises(ValueError, match="unknown option 'window' of random:h2o"):
        methods.get("random:h2o@window=3", 12)
