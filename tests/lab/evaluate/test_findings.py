"""Sentences and the example of a comparison, from figures written by hand."""

import pytest

from kvlab.fast.lab.evaluate.statistics import Interval, wilson
from kvlab.fast.lab.sweep import compare as findings
from kvlab.fast.lab.sweep.compare import (
    COLUMNS,
    Comparison,
    budget_of_largest_spread,
    sentences,
)
from kvlab.fast.lab.sweep.plan import Sweep
from kvlab.fast.lab.sweep.summary import Point, TaskSummary, leaders, not_above_chance
from kvlab.fast.lab.tables import Lines
from kvlab.fast.lab.viewing import Viewed
from kvlab.reference.simulator.timeline import Timeline

TIMELINE = Timeline("jumps", 0.01, ())
OUTCOMES = {
    ("full", None): "1111111111",
    ("kivi", None): "1111111110",
    ("random@recent=16", 50): "0000000000",
    ("h2o", 50): "0000000001",
    ("caote:h2o", 50): "0111111111",
    ("random@recent=16", 70): "1100000000",
    ("h2o", 70): "1111111000",
    ("caote:h2o", 70): "1111111111",
}


def point(method, budget, outcomes):
    solved = tuple(letter == "1" for letter in outcomes)
    share = sum(solved) / len(solved)
    interval = Interval(share, *wilson(sum(solved), len(solved)))
    figures = {"average_bits": (4.0,), "entries": (float(budget or 100),)}
    peak = figures["entries"][0]
    return Point(
        method=method,
        budget=budget,
        problems=len(solved),
        wanted=len(solved),
        solved=share,
        interval=interval,
        peak_entries=peak,
        outcomes=solved,
        figures=figures,
    )


def comparison(outcomes=OUTCOMES):
    points = tuple(point(*key, text) for key, text in outcomes.items())
    problems = len(points[0].outcomes)
    specs = tuple(dict.fromkeys(method for method, _ in outcomes))
    sweep = Sweep(specs, ("50", "70"), problems, tasks=("jumps",))
    summary = TaskSummary(
        "jumps",
        "jumps",
        {"50": 50, "70": 70},
        100.0,
        (0,),
        points,
        (),
        leaders(points),
        not_above_chance(points),
    )
    return Comparison(sweep, summary, {}, 1, 1.0)


def test_the_sentences_by_hand():
    """9 of 10 is the widest spread, at 50 entries; Wilson's intervals are 59.6 to 98.2 of 9 in 10,
    0 to 27.8 of 0 and 72.2 to 100 of 10. McNemar: 2/2⁹ = .0039, times the four tests of Holm."""
    assert sentences(comparison()) == [
        "caote:h2o lost least: with 50 % of what the model had read forgotten, the model solved "
        "9 of 10 problems (95 % interval 60 to 98 %); the full cache, which forgets nothing, "
        "solved 10 of 10 problems (95 % interval 72 to 100 %). Next: h2o, 1 of 10 problems (95 % "
        "interval 2 to 40 %).",
        "With as much forgotten at random, the model solved 0 of 10 problems (95 % interval 0 to "
        "28 %). Only caote:h2o is shown to solve more than that (McNemar's exact test, Holm's "
        "correction over all budgets).",
        "By a rule of their own: kivi solved 9 of 10 problems (95 % interval 60 to 98 %) with 25 % "
        "of the memory.",
    ]


def test_the_oracle_is_no_method_that_a_sentence_praises(recorded):
    with_oracle = {**OUTCOMES, ("oracle", 50): "1111111111", ("oracle", 70): "1111111111"}
    assert sentences(comparison(with_oracle)) == sentences(comparison())
    findings.record_example(comparison(with_oracle))
    ((specs, _),) = recorded
    assert "oracle" not in specs


def test_a_small_sample_claims_nothing():
    few = {key: text[1:4] for key, text in OUTCOMES.items()}
    first, second, _ = sentences(comparison(few))
    assert " Next: " not in first
    assert "No method is shown to solve more than that" in second


def test_the_next_best_may_be_level():
    close = {**OUTCOMES, ("h2o", 50): "0001111111"}
    end = "(95 % interval 40 to 89 %); 10 problems are too few to say that h2o is worse."
    assert sentences(comparison(close))[0].endswith(f"Next: h2o, 7 of 10 problems {end}")


def test_where_nothing_is_solved_nothing_is_praised():
    nothing = {key: "0" * len(text) for key, text in OUTCOMES.items()}
    assert sentences(comparison(nothing))[0].startswith("No method forgot 50 %")


def test_equal_methods_are_named_together():
    equal = {**OUTCOMES, ("h2o", 50): OUTCOMES["caote:h2o", 50]}
    assert sentences(comparison(equal))[0].startswith("h2o and caote:h2o lost least: ")


def test_a_budget_for_everything_tells_nothing_nor_does_a_single_method():
    roomy = {(method, budget and 2 * budget): text for (method, budget), text in OUTCOMES.items()}
    found = comparison(roomy)
    assert budget_of_largest_spread(found) is None
    alone = {key: text for key, text in OUTCOMES.items() if key[0] in ("full", "h2o")}
    assert budget_of_largest_spread(comparison(alone)) is None
    own = {key: text for key, text in OUTCOMES.items() if key[1] is None}
    assert budget_of_largest_spread(comparison(own)) is None
    assert len(sentences(comparison(own))) == 1


# --- the example ---------------------------------------------------------------------------------


@pytest.fixture
def recorded(monkeypatch):
    """Note what would be recorded, and record nothing."""
    found = []

    def record(source, specs, budget):
        found.append((specs, budget))
        return Viewed(TIMELINE, ())

    monkeypatch.setattr("kvlab.fast.lab.viewing.text_source", lambda *arguments: arguments)
    monkeypatch.setattr("kvlab.fast.lab.viewing.record_methods", record)
    return found


def test_the_example_begins_with_a_method_that_solves_it_and_one_that_does_not(recorded):
    assert findings.record_example(comparison()) is TIMELINE
    ((specs, budget),) = recorded
    assert budget == 50
    assert specs[0] == "caote:h2o"
    assert specs[1] in ("h2o", "random@recent=16")
    assert set(specs) == {"caote:h2o", "h2o", "random@recent=16"}


def test_where_methods_do_not_differ_there_is_no_example(recorded):
    same = dict.fromkeys(OUTCOMES, "1111")
    assert findings.record_example(comparison(same)) is None
    assert not recorded


# --- rows as they come ---------------------------------------------------------------------------


def test_a_row_has_its_options_below():
    lines = Lines(COLUMNS[:2], (10, 16))
    assert lines.head() == "method         solved (95 %)"
    row = lines.row(point("random@recent=16", 50, "0000000000"))
    assert row == f"random{12 * ' '}0 % (0–28)\n  recent=16"
    refused = Point(
        method="raas", budget=50, problems=1, wanted=1, refusal="budget = 50 is too small"
    )
    assert lines.row(refused).splitlines()[1] == "  budget = 50 is too small"


def test_a_wide_name_has_its_own_line():
    lines = Lines(COLUMNS[:2], (10, 16))
    name, below, options = lines.row(point("fast_caote:h2o@recent=4", 50, "0000000000")).split("\n")
    assert (name, options) == ("fast_caote:h2o", "  recent=4")
    assert below == f"{18 * ' '}0 % (0–28)"
