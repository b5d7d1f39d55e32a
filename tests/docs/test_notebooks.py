"""Notebooks have the shape that the site and the runner rely on, and the runner can fail."""

import jupytext
import nbformat
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from support.running import python
from support.sampling import slow
from support.site import ROOT, module

exercises, notebook_pages = module("exercises"), module("notebook_pages")
run_notebooks = module("run_notebooks")
SOURCES = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.py"))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_notebook_asks_lets_the_reader_predict_and_checks_exercises(source):
    notebook = jupytext.read(source)
    assert notebook.cells[0].source.startswith(f"# {source.name[:2]} ")
    assert "**Question:**" in notebook.cells[0].source
    text = source.read_text().replace("\n# ", " ")
    assert "redict first" in text and "n three lines" in text
    tasks, wrong = exercises.read(source.stem), run_notebooks.WRONG.get(source.stem, {})
    stubs = run_notebooks.tagged(notebook, "exercise")
    assert len(stubs) == len(tasks) == len(wrong)
    assert all(f"\nattempt({number})" in stub for number, stub in enumerate(stubs, start=1))
    assert all(wrong.values()) and all(hints for hints, _, _ in tasks.values())


def test_the_site_lists_every_notebook():
    config = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader=yaml.BaseLoader)
    listed = [
        part for section in config["nav"] for part in section.values() if isinstance(part, list)
    ]
    pages = [path for part in listed for each in part for path in each.values()]
    pages = [path for path in pages if path.startswith("notebooks/")]
    assert sorted(pages) == [f"notebooks/{path.stem}.md" for path in SOURCES]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_notebook_has_the_cells_of_its_script_with_outputs(source):
    stored = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    ours = run_notebooks.unexecuted(source)
    for cell in stored.cells:
        for output in cell.pop("outputs", ()):
            shown = output.get("data", {})
            assert output.output_type != "error" and len(str(shown)) < 300_000
    kept = ("id", "cell_type", "source")
    assert [[cell[name] for name in kept] for cell in stored.cells] == [
        [cell[name] for name in kept] for cell in ours.cells
    ], "the notebook and its script differ: make notebooks"
    last = [cell.execution_count for cell in stored.cells if cell.cell_type == "code"]
    assert last == [*range(1, len(last) + 1)]


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_notebook_runs_as_a_script_with_what_make_demo_installs(source):
    blocked = run_notebooks.WITHOUT.format(
        modules=("torch", "triton", "transformers", "IPython", "jupytext")
    )
    beside = f"sys.path.append({str(source.parent)!r})"
    run = f"{blocked}\n{beside}\nimport runpy; runpy.run_path({str(source)!r}, run_name='__main__')"
    done = python("-W", "error", "-c", run, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def small():
    return new_notebook(
        cells=[
            new_markdown_cell("# 00 A test\n\n**Question:** does it run?"),
            new_code_cell("answer = ...\nattempt(1)", metadata={"tags": ["exercise"]}),
        ]
    )


EXERCISES = {1: (["Count.", "It is even."], "answer = 2", "assert answer == 2")}


@pytest.mark.parametrize(
    ("cell", "wrong", "message"),
    [
        ("None", {1: ("answer = 3",)}, None),
        ("None", {1: ("answer = 2.0",)}, "the check accepted it"),
        slow(("import warnings; warnings.warn('w')", {1: ("answer = 3",)}, "UserW")),
        slow(("import torch", {1: ("answer = 3",)}, "ModuleNotFoundError")),
    ],
)
def test_the_runner_refuses_what_is_wrong(cell, wrong, message, monkeypatch):
    monkeypatch.setitem(run_notebooks.WRONG, "00_test", wrong)
    monkeypatch.setattr(run_notebooks, "read", lambda name: EXERCISES)
    notebook = small()
    notebook.cells[-1].source = cell  # a small notebook has no `attempt`
    problems = list(run_notebooks.execute(notebook, "00_test"))
    assert len(notebook.cells) == 2, "hidden code stays hidden"
    if message is None:
        assert not problems
    else:
        assert len(problems) == 1 and message in problems[0]


def test_an_attempt_gives_one_hint_more_and_never_the_answer(monkeypatch, capsys):
    monkeypatch.setattr(exercises, "read", lambda name: EXERCISES)
    names = {"answer": ...}
    attempt = exercises.Exercises("00_test", names)
    attempt(1)
    assert capsys.readouterr().out == "Exercise 1: still empty.\n"
    names["answer"] = 3
    for shown in (1, 2, 2):
        attempt(1)
        printed = capsys.readouterr().out
        assert printed.startswith("Exercise 1: not yet.") and printed.count("Hint") == shown
        assert "answer" not in printed
    names["answer"] = 2
    attempt(1)
    assert capsys.readouterr().out == "Exercise 1: right.\n"


def test_a_page_folds_hints_and_solution_and_keeps_outputs_as_text(monkeypatch):
    monkeypatch.setattr(notebook_pages, "read", lambda name: EXERCISES)
    notebook = small()
    notebook.cells[0].source += " <not html>"
    notebook.cells[0].source += " **Predict first:** what?"
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
    assert page.index("attempt(1)") < page.index('"Hints"') < page.index('"A solution"')
    assert "    answer = 2" in page
    assert page.index("</summary>") < page.index("a```b\nsecond") < page.index("</details>")
    assert "````" in page and "a```b\nsecond" in page
    assert '<div class="kvlab-shown"><b>shown</b></div>' in page
