"""The dial compares each score with random eviction that differs in the score alone."""

from kvlab.fast.lab.points import ORACLE
from kvlab.fast.lab.sweep.plan import read_sweep
from kvlab.reference import methods
from study.stored import RESULTS


def test_controls_have_protection_schedule_and_budget_of_their_scores():
    pairs = [
        pair for pair in read_sweep(RESULTS / "dial" / "sweep.toml").pairs if ORACLE not in pair
    ]
    assert pairs
    for control, score in pairs:
        one, other = (methods.get(spec, 101) for spec in (control, score))
        assert one.score != other.score and "random" in control
        for answer in ("schedule", "protect", "budget", "precision"):
            assert getattr(one, answer) == getattr(other, answer), (control, answer)
