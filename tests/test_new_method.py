"""One file is enough: a new method, with state of its own, in every command and in `compress`."""

import json

import pytest
from outside import SOURCE, methods_named
from shapes import shapes_checked
from typer.testing import CliRunner

from kvlab.fast.lab.cli import app
from kvlab.fast.lab.sweep.jobs import in_this_process
from kvlab.reference.conformance import vectors
from kvlab.reference.tasks import reasoning

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from texts import byte_model, write_task  # noqa: E402

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
    with pytest.MonkeyPatch.context() as patch, shapes_checked(False):
        patch.syspath_prepend(folder.parent)
        patch.setenv("PYTHONPATH", str(folder.parent))
        with methods_named("mymethods.looks"):
            yield


def kvlab(*arguments: object) -> str:
    """Run a command and return what it prints."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, (done.output, str(done.exception))
    return done.stdout


def rows(*arguments: object, key: str = "rows") -> list:
    """Run a command and return the rows that it prints as JSON."""
    return json.loads(kvlab(*arguments, "--json"))[key]


# --- what needs the reference alone --------------------------------------------------------------


def test_it_is_listed():
    assert json.loads(kvlab("methods", "--json"))["methods"]["looks"]["options"] == {
        "share": 0.05,
        "recent": 4,
    }
    assert "looks" in kvlab("methods")


def test_its_cost_is_planned():
    rated = rows("plan", "--methods", f"full {SPEC}", "--length", 2048, "--batch", 4, key="methods")
    full, looks = (row for row in rated)
    assert looks["method"] == SPEC
    assert looks["sequence_gb"] < full["sequence_gb"]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "trace.npz"
    kvlab("trace", "-o", path, "--prompt", PROBLEM.prompt, "--max-new-tokens", 16)
    return path


def test_a_trace_is_replayed(trace):
    (row,) = json.loads(
        kvlab("simulate", trace, "--methods", SPEC, "--budgets", "50%", "--bound", "--json")
    )
    assert row["method"] == SPEC and row["refusal"] is None
    assert 0 < row["error"] < 1


def test_its_decisions_are_shown(trace, tmp_path):
    page = tmp_path / "view.html"
    (row,) = rows(
        *("view", page, "--trace", trace, "--methods", SPEC, "--budget", "60%"), key="methods"
    )
    assert row["refusal"] is None
    assert SPEC in page.read_text(encoding="utf-8")


def test_a_sweep_runs_it(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(
        f'methods = ["{SPEC}"]\nbudgets = ["60"]\nproblems = 1\nbackend = "reference"\n'
        f'models = ["jumps"]\ntasks = ["{SHORT}"]\n'
    )
    kvlab("sweep", path, "--out", tmp_path / "out", "--json")
    assert SPEC in kvlab("report", tmp_path / "out")


KERNEL = """
def score(looks, remembered_asked, positions, seen):
    return (looks + 1) / (remembered_asked + seen - positions)
IMPLEMENTATIONS = {"looks.score": score}
"""


def test_its_vectors_are_made_and_test_a_kernel(tmp_path):
    kvlab("conformance", "generate", "--method", "looks", "--out", tmp_path / "made")
    assert {case.method for case in vectors.read_from(tmp_path / "made")} == {"looks"}
    (tmp_path / "kernel.py").write_text(KERNEL)
    run = ("conformance", "run", tmp_path / "kernel.py", "--target", "looks.score")
    assert " passed, 0 failed, 0 not tested" in kvlab(*run)
    (tmp_path / "kernel.py").write_text(KERNEL.replace("looks + 1", "looks"))
    assert CliRunner().invoke(app, [*map(str, run), "--no-minimise"]).exit_code == 1


# --- what runs on PyTorch ------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["reference", "fast"])
def test_it_is_compared(backend, tmp_path, monkeypatch):
    if backend == "fast":  # that processes know the method is seen with the reference, sooner
        monkeypatch.setattr(
            "kvlab.fast.lab.sweep.compare.in_processes", lambda jobs, workers: in_this_process(jobs)
        )
    (row,) = rows(
        *("compare", "--model", "jumps", "--task", SHORT, "--methods", SPEC, "--budget", 60),
        *("--problems", 1, "--workers", 1, "--backend", backend),
        *("--report", tmp_path / "compare.html"),
    )
    assert (row["spec"], row["budget"], row["refusal"]) == (SPEC, 60, None)
    assert row["entries"] == 60
    assert row["output_error"] > 0


def test_a_model_writes_under_it():
    found = json.loads(
        kvlab(
            *("generate", "--prompt", PROBLEM.prompt, "--method", SPEC, "--budget", BUDGET),
            *("--max-new-tokens", 16, "--json"),
        )
    )
    assert found["most_entries"] == BUDGET
    assert found["written_tokens"] == 16


def test_texts_are_rated_under_it(tmp_path):
    full, looks = rows(
        *("perplexity", "--methods", SPEC, "--budgets", BUDGET, "--windows", 1, "--feed", "steps")
    )
    assert (looks["method"], looks["refusal"]) == (SPEC, None)
    assert looks["perplexity"] > full["perplexity"]


def test_needles_are_searched_under_it(tmp_path):
    (row, *_) = rows(
        *("needle", "--methods", SPEC, "--budgets", BUDGET, "--trials", 1, "--depths", 50),
        *("--heat-map", tmp_path / "needle.svg"),
    )
    assert (row["method"], row["refusal"]) == (SPEC, None)


def test_tasks_are_solved_under_it(tmp_path):
    pytest.importorskip("lm_eval")
    write_task(
        tmp_path,
        "choices_local",
        [{"question": PROBLEM.prompt, "choices": ["a", "b"], "label": 0}],
        output_type="multiple_choice",
        doc_to_text="{{question}}",
        doc_to_choice="{{choices}}",
        doc_to_target="{{label}}",
    )
    (figure, *_) = rows(
        *("eval", "--tasks", "choices_local", "--include-path", tmp_path),
        *("--methods", SPEC, "--budgets", BUDGET),
        key="figures",
    )
    assert (figure["method"], figure["budget"]) == (SPEC, str(BUDGET))


def test_compress_runs_it_on_any_model(tmp_path):
    from kvlab.fast import compress

    model = transformers.AutoModelForCausalLM.from_pretrained(byte_model(tmp_path))
    ids = torch.randint(1, 200, (2, 40), generator=torch.Generator().manual_seed(0))
    with compress(model, SPEC, budget=24) as cache:
        written = model.generate(ids, past_key_values=cache, max_new_tokens=5, do_sample=False)
    assert written.shape[0] == 2
    assert set(cache.kept()) == {(24, 24)}
