"""What a person sees first of a comparison: bars, and a program with what was evicted."""

from io import StringIO

import pytest
from rich.console import Console

from kvlab.fast.lab import viewing
from kvlab.fast.lab.bars import Bars
from kvlab.fast.lab.evaluate.pairs import Test as Gain
from kvlab.fast.lab.evaluate.statistics import Interval
from kvlab.fast.lab.played import side_by_side
from kvlab.fast.lab.points import MeasuredRow
from kvlab.reference.models import embedded_directory
from kvlab.reference.tasks import jumps

FIGURES = {"tova": 0.1, "h2o": Interval(0.5, 0.25, 0.75), "raas": None, "full": 1.0}
MEANS = {"first_mean": 0.5, "second_mean": 0.2, "difference": Interval(0.3, 0.1, 0.4)}
GIVEN = {"measure": "solved", "first": "h2o", "second": "random:h2o", "verdict": "h2o", "budget": 9}
GIVEN |= {"units": 20, "p": 0.01, "p_adjusted": 0.02, **MEANS}


@pytest.mark.parametrize("width", [40, 80, 140])
def test_bars_are_sorted_and_end_where_figures_are(width):
    rows = [MeasuredRow(method=name, budget=None if name == "full" else 9) for name in FIGURES]
    rows[2] = MeasuredRow(method="raas", budget=9, refusal="too small")
    bars = Bars(rows, lambda row: FIGURES[row.method], "solved", [Gain(**GIVEN)], {"30%": 9})
    full, budget, h2o, tova, raas, signs = (line.plain for line in bars.lines(width))
    cells, drawn = full.count("█"), h2o.split(" ")[-1]
    assert max(map(len, (full, h2o, tova, raas))) <= width and cells >= 10
    assert "budget: 9 entries (30%)" in budget and raas.endswith("– too small")
    assert (len(drawn), drawn.count("░")) == (
        round(0.75 * cells),
        round(0.75 * cells) - round(0.5 * cells),
    )
    assert drawn.index("◆") == round(0.2 * cells) - 1 and tova.count("█") == round(0.1 * cells)
    assert ("(25–75)" in h2o) is (width >= 60) and "◆ its matched control" in signs


def shown(drawn, width):
    """Return what a terminal of so many columns shows."""
    console = Console(width=width, record=True, file=StringIO())
    console.print(drawn)
    return console.export_text()


def test_a_program_shows_what_was_lost_and_where_the_answer_turns_wrong():
    problem = jumps.held_out(1, size=jumps.Size(fewest=14, most=16))[0]
    source = viewing.text_source(problem.prompt, embedded_directory("jumps"), problem.tokens)
    found = viewing.record_methods(source, ["h2o", "caote:h2o"], 168, most_values=1)
    drawn = side_by_side(found.timeline.runs, styled=False)
    *lines, _, why, more = (line.rstrip() for line in shown(drawn, 120).splitlines())
    assert " ".join(lines[-1].split()) == "L7 e (7) + g ✗ L7 e (7) + c ✓"
    assert "L7 e = e + ~c~, then go" in lines[10]
    said = "writes g, which is wrong. The full cache writes c"
    read = "attends to “c” in line L7 (50% of its attention), and has lost that here."
    assert said in why and f"{why} {more}".endswith(read)
    narrow = shown(side_by_side(found.timeline.runs, styled=True), 60).splitlines()
    assert max(map(len, narrow)) <= 60 and len(narrow) >= 2 * len(lines)
