"""The first page's tables say what the study found."""

import pytest

from kvlab.fast.lab.sweep.report import is_of_the_papers, solved_over_memory
from kvlab.fast.lab.tables import text_of
from study import overview
from study.stored import stored_summary


@pytest.fixture(scope="module")
def read():
    return overview.read_study()


def test_cells_are_shares_of_the_study_and_methods_of_the_papers_come_last(read):
    stored, found = read
    specs = overview.families(stored)
    own = list(map(is_of_the_papers, specs))
    assert own == sorted(own) and 0 < sum(own) < len(own)
    assert f"The last {sum(own)} rows" in overview.explained(*read, specs)
    grid = overview.under_budgets(found, specs, ("30%", "50%"))
    assert [row[0] for row in grid.rows] == specs
    for spec, *cells in grid.rows:
        for cell, budget in zip(cells, ("30%", "50%"), strict=True):
            assert text_of(cell).startswith(f"{100 * found.point(spec, budget).solved:.1f} (")
    drawing = solved_over_memory(found, specs)._repr_html_()
    assert all(part in drawing for spec in specs for part in spec.split("@"))


def test_methods_without_budget_are_listed_by_memory():
    rows = overview.under_own_rules(stored_summary("study")).rows
    memory = [int(row[1].split()[0]) for row in rows]
    assert memory == sorted(memory) and rows[-1][:2] == ["full", "100 %"]
