"""The dial compares each score with random eviction that differs in the score alone."""

from kvlab.fast.lab.evaluate.controls import is_control, matched
from kvlab.fast.lab.points import ORACLE
from kvlab.fast.lab.sweep.plan import read_sweep
from study.stored import RESULTS


def test_controls_have_protection_schedule_and_budget_of_their_scores():
    sweep = read_sweep(RESULTS / "dial" / "sweep.toml")
    pairs = [pair for pair in sweep.pairs if ORACLE not in pair]
    assert pairs == matched(sweep.methods, sweep.methods)
    scores = [each for each in sweep.methods if each != ORACLE and not is_control(each)]
    assert [score for _, score in pairs] == scores
