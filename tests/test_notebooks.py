"""Notebooks have the shape that the site and the runner rely on, and the runner can fail."""

import ast
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import notebook_pages
import pytest
import run_notebooks
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from sampling import sampled

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.py"))


def tagged(notebook, tag):
    return [cell for cell in notebook.cells if tag in cell.metadata.get("tags", [])]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_notebook_starts_from_a_question_and_ends_in_checked_exercises(source):
    notebook = jupytext.read(source)
    assert notebook.cells[0].source.startswith(f"# {source.name[:2]} ")
    assert "**Question:**" in notebook.cells[0].source
    checks = tagged(notebook, "check")
    wrong = run_notebooks.WRONG[source.stem]
    assert len(checks) == len(tagged(notebook, "solution")) == len(wrong) >= 3
    for check in checks:
        assert any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(check.source)))
    assert all(wrong.values())


def test_the_site_lists_every_notebook():
    config = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader=yaml.BaseLoader)
    (listed,) = [section["Learn"] for section in config["nav"] if "Learn" in section]
    pages = [path for each in listed for path in each.values()]
    pages = [path for path in pages if path.startswith("notebooks/")]
    assert pages == ["notebooks/index.md", *(f"notebooks/{path.stem}.md" for path in SOURCES)]


@pytest.mark.parametrize(
    "source",
    sampled(SOURCES, [ROOT / "notebooks" / "10_paged_engine.py"]),  # the quickest
    ids=lambda path: path.stem,
)
def test_a_notebook_runs_as_a_script_with_what_make_demo_installs(source):
    blocked = run_notebooks.WITHOUT.format(
        modules=("torch", "triton", "transformers", "IPython", "jupytext")
    )
    run = f"{blocked}\nimport runpy; runpy.run_path({str(source)!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", run], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


def small(check="assert answer == 2"):
    return new_notebook(
        cells=[
            new_markdown_cell("# 00 A test\n\n**Question:** does it run?"),
            new_code_cell("answer = 2", metadata={"tags": ["solution"]}),
            new_code_cell(check, metadata={"tags": ["check"]}),
        ]
    )


@pytest.mark.parametrize(
    ("check", "wrong", "message"),
    [
        ("assert answer == 2", {1: ("answer = 3",)}, None),
        ("assert answer == 2", {1: ("answer = 2.0",)}, "the check accepted it"),
        ("import warnings; warnings.warn('w'); assert answer == 2", {1: ("answer = 3",)}, "UserW"),
        ("import torch; assert answer == 2", {1: ("answer = 3",)}, "ModuleNotFoundError"),
    ],
)
def test_the_runner_refuses_what_is_wrong(check, wrong, message, monkeypatch):
    monkeypatch.setitem(run_notebooks.WRONG, "00_test", wrong)
    notebook = small(check)
    problems = list(run_notebooks.execute(notebook, "00_test"))
    assert len(notebook.cells) == 3, "hidden code stays hidden"
    if message is None:
        assert not problems
    else:
        assert len(problems) == 1 and message in problems[0]


def test_a_page_shows_the_check_folds_the_solution_and_keeps_outputs_as_text():
    notebook = small()
    notebook.cells[0].source += " <not html>"
    cell = new_code_cell("print('a```b')")
    cell.outputs = [
        new_output("stream", text="a```b\n"),
        new_output("stream", text="second\n"),
        new_output("display_data", data={"text/html": "<b>shown</b>", "text/plain": "shown"}),
    ]
    notebook.cells.insert(1, cell)
    nbformat.validate(notebook)
    page = notebook_pages.markdown(notebook, "00_test")
    assert page.index("# 00 A test") < page.index("](00_test.ipynb)") < page.index("**Question:**")
    assert page.index('title="the check"') < page.index('??? success "A solution"')
    assert "    answer = 2" in page
    assert "````" in page and "a```b\nsecond" in page
    assert '<div class="kvlab-shown"><b>shown</b></div>' in page


def test_a_question_becomes_a_row_of_the_list():
    notebook = small()
    notebook.cells[0].source = "# 00 A test\n\n**Question:** does it\nrun?\n\nMore."
    assert (
        notebook_pages.question(notebook, "00_test") == "| [00 A test](00_test.md) | does it run? |"
    )
