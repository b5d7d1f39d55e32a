"""The first page's tables say what the study found."""

import pytest

from kvlab.fast.lab.sweep.report import is_of_the_papers, solved_over_memory
from kvlab.fast.lab.tables import text_of
from study import overview
from study.contrasts import stored_summary


@pytest.fixture(scope="module")
def read():
    return overview.read_study()


def test_cells_are_shares_of_the_study(read):
    stored, found = read
    specs = overview.families(stored)
    grid = overview.under_budgets(found, specs, ("30%", "50%"))
    assert [row[0] for row in grid.rows] == specs
    for row, spec in zip(grid.rows, specs, strict=True):
        for cell, budget in zip(row[1:], ("30%", "50%"), strict=True):
            solved = found.point(spec, found.budgets[budget]).solved
            assert text_of(cell).startswith(f"{100 * solved:.1f} (")


def test_methods_of_the_papers_come_last(read):
    stored, _ = read
    own = [is_of_the_papers(spec) for spec in overview.families(stored)]
    assert own == sorted(own) and 0 < sum(own) < len(own)
    assert is_of_the_papers("fast_caote:h2o") and not is_of_the_papers("h2o@every=16")
    assert not is_of_the_papers("oracle")
    assert f"The last {sum(own)} rows" in overview.explained(*read, overview.families(stored))


def test_methods_without_budget_are_listed_by_memory():
    rows = overview.under_own_rules(stored_summary("arithmetic")).rows
    memory = [int(row[1].split()[0]) for row in rows]
    assert memory == sorted(memory) and rows[-1][:2] == ["full", "100 %"]


def test_what_the_study_has_not_tried_is_refused(read):
    with pytest.raises(ValueError, match="has not tried 'h2o@every=3'"):
        overview.under_budgets(read[1], ["h2o@every=3"], ("50%",))


def test_every_curve_is_drawn(read):
    stored, found = read
    specs = overview.families(stored)
    drawing = solved_over_memory(found, specs)._repr_html_()
    for spec in specs:
        name, _, options = spec.partition("@")
        assert name in drawing and options in drawing
    with pytest.raises(ValueError, match="has not tried '55%'"):
        overview.under_budgets(read[1], ["h2o"], ("55%",))


def test_both_models_are_side_by_side():
    table = overview.on_both_models()
    rows = {row[0]: row[1:] for row in table.rows}
    needles, losses = stored_summary("needle_smollm2"), stored_summary("perplexity_smollm2")
    solved = stored_summary("study").point_at("h2o", "50%"), needles.point("h2o", 512)
    for cell, point in zip(rows["h2o"], solved, strict=False):
        assert cell.startswith(f"{100 * sum(point.outcomes) / point.problems:.1f} (")
    ours, full = (losses.point(*each).figures["losses"] for each in (("h2o", 128), ("full", None)))
    assert rows["h2o"][2].startswith(f"{sum(ours) / 8 - sum(full) / 8:.3f} (")
    assert rows["full"][2] == "–" and rows["caote:tova"][0].endswith(overview.CHANCE)
    assert [row[0] for row in overview.on_both_models(["tova"]).rows] == ["random", "tova"]
