"""One file is enough: a new method, with state of its own, in every command."""

import json
import shlex
from collections.abc import Iterator

import pytest

from kvlab.reference.tasks import reasoning
from support.outside import PYRAMID, SOURCE, methods_named
from support.running import printed
from support.sampling import slow
from support.shapes import shapes_checked

pytest.importorskip("transformers")

from support.texts import CHOOSING, write_task

SPEC = "looks@recent=8"
BUDGET = 120
SHORT = "jumps@fewest=3,most=4"
"""Programs of some 90 tokens."""
PROBLEM = reasoning.held_out(1)[0]


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory):
    """A package with the method's file, which the environment names."""
    folder = tmp_path_factory.mktemp("site") / "mymethods"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "looks.py").write_text(SOURCE)
    (folder / "pyramid.py").write_text(PYRAMID.replace("from looks", "from mymethods.looks"))
    with pytest.MonkeyPatch.context() as patch, shapes_checked(False):
        patch.syspath_prepend(folder.parent)
        patch.setenv("PYTHONPATH", str(folder.parent))
        with methods_named("mymethods.looks", "mymethods.pyramid"):
            yield


def rows_of_it(found, spec=SPEC) -> Iterator[dict]:
    """Yield what a command's JSON says of the method, wherever it stands."""
    if isinstance(found, dict):
        if spec in (found.get("method"), found.get("spec")):
            yield found
        found = [*found.values()]
    for each in found if isinstance(found, list) else ():
        yield from rows_of_it(each, spec)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a trace and a choice for lm-eval."""
    folder = tmp_path_factory.mktemp("runs")
    printed("trace", "-o", folder / "t.npz", "--prompt", PROBLEM.prompt, "--max-new-tokens", 16)
    rows = [{"question": PROBLEM.prompt, "choices": ["a", "b"], "label": 0}]
    write_task(folder, "choices_local", rows, **CHOOSING)
    return folder


CHOOSE = "--tasks choices_local --include-path FOLDER"
COMPARED = f"--model jumps --task {SHORT} --budget 60 --problems 1 --workers 1"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("plan --length 2048 --batch 4", {}),
        ("simulate FOLDER/t.npz --budgets 50% --bound", {"refusal": None}),
        ("view FOLDER/view.html --trace FOLDER/t.npz --budget 60%", {"refusal": None}),
        slow((f"compare {COMPARED} --backend reference", {"refusal": None, "entries": 60})),
        slow((f"compare {COMPARED} --backend fast", {"refusal": None, "entries": 60})),
        slow((f"perplexity --budgets {BUDGET} --windows 1 --feed steps", {"refusal": None})),
        slow((f"needle --budgets {BUDGET} --trials 1 --depths 1", {"refusal": None})),
        slow((f"eval {CHOOSE} --budgets {BUDGET}", {"budget": str(BUDGET)})),
    ],
)
def test_every_command_runs_it(command, expected, folder, request):
    if command.startswith("eval"):
        pytest.importorskip("lm_eval")
    if "fast" in command:  # that processes know the method is seen with the reference, sooner
        request.getfixturevalue("here")
    arguments = shlex.split(command.replace("FOLDER", str(folder)))
    found = [*rows_of_it(json.loads(printed(*arguments, "--methods", SPEC, "--json")))]
    assert found and all(expected.items() <= row.items() for row in found)


@pytest.mark.parametrize(
    "command",
    [
        "plan --length 200 --batch 4 --budget 60",
        "simulate FOLDER/t.npz --budgets 60 --bound",
        slow(f"compare {COMPARED} --backend reference"),
        slow("perplexity --budgets 60 --windows 1 --feed steps"),
    ],
)
def test_entries_of_a_pyramid_are_its_mean_budget_in_every_command(command, folder):
    arguments = shlex.split(command.replace("FOLDER", str(folder)))
    found = json.loads(printed(*arguments, "--methods", "pyramid", "--json"))
    (row,) = rows_of_it(found, "pyramid")
    assert row["entries"] == pytest.approx(60, abs=0.5)


def test_a_model_writes_under_a_pyramid():
    given = "--prompt", PROBLEM.prompt, "--method", "pyramid", "--budget", 60
    found = json.loads(printed("generate", *given, "--max-new-tokens", 4, "--json"))
    assert (found["fewest_entries"], found["most_entries"]) == (30, 90)


def test_a_sweep_runs_it(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(
        f'methods = ["{SPEC}"]\nbudgets = ["60"]\nproblems = 1\nbackend = "reference"\n'
        f'models = ["jumps"]\ntasks = ["{SHORT}"]\n'
    )
    printed("sweep", path, "--out", tmp_path / "out", "--json")
    assert SPEC in printed("report", tmp_path / "out")
