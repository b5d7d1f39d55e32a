"""lm-evaluation-harness, really run, on local data in the format of the real tasks."""

import json
import re
import tomllib
from functools import partial
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from support.running import printed
from support.texts import CHOOSING, byte_model, write_task
from support.tolerances import FLOAT32_LOGITS

lm_eval = pytest.importorskip("lm_eval")

from lm_eval.api.registry import get_model  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from kvlab.fast.lab import harness  # noqa: E402
from kvlab.fast.lab.harness import OPTIONS, CompressedLM, evaluate_tasks  # noqa: E402
from kvlab.fast.lab.points import After  # noqa: E402
from kvlab.fast.lab.tables import layout  # noqa: E402
from kvlab.reference import methods  # noqa: E402
from kvlab.reference.models import reasoner_directory  # noqa: E402
from kvlab.reference.tasks import reasoning  # noqa: E402

REFUSED = tomllib.loads(Path(__file__).with_name("refused.toml").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def _machine_is_not_described(monkeypatch):
    """lm-eval asks pip for all packages after each run, which takes longer than the run."""
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda storage: None)


GSM8K = files("lm_eval") / "tasks" / "gsm8k" / "gsm8k.yaml"
QUESTIONS = [
    {"question": f"Ann has {n} figs and buys {m}. How many?", "answer": f"It is. #### {n + m}"}
    for n, m in ((3, 4), (120, 3))
]
CHOICES = [
    {"question": f"{n} and {n} is", "choices": [str(2 * n), "none at all", "7"], "label": 0}
    for n in (2, 40)
]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """Folder of tasks: each as lm-eval has it, but for where the data come from."""
    folder = tmp_path_factory.mktemp("tasks")
    write_task(
        folder, "gsm8k_local", QUESTIONS, include=str(GSM8K), generation_kwargs=SHORT, num_fewshot=2
    )
    write_task(folder, "choices_local", CHOICES, **CHOOSING)
    write_task(
        folder,
        "rolling_local",
        [{"page": "The river is slow. " * 5}],
        output_type="loglikelihood_rolling",
        doc_to_target="{{page}}",
        doc_to_text="",
        metric_list=[{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
    )
    write_task(
        folder,
        "reasoner_local",
        [vars(problem) for problem in reasoning.held_out(2)],
        output_type="generate_until",
        doc_to_text="{{prompt}}",
        doc_to_target="{{answer}}",
        generation_kwargs={"until": ["\n"], "max_gen_toks": 140, "do_sample": False},
        filter_list=[
            {
                "name": "answer",
                "filter": [
                    {"function": "regex", "regex_pattern": r"# (\d)"},
                    {"function": "take_first"},
                ],
            }
        ],
        metric_list=[{"metric": "exact_match"}],
    )
    return folder


SHORT = {"max_gen_toks": 6, "until": ["Question:"], "do_sample": False, "temperature": 0.0}
GENERATED = ("gsm8k_local",)
RATED = ("choices_local", "rolling_local")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(byte_model(tmp_path_factory.mktemp("model")))


def answers(model, tasks, names):
    """What a model said, in the order of the problems: texts or log-likelihoods."""
    results = lm_eval.simple_evaluate(
        model=model,
        tasks=list(names),
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        bootstrap_iters=0,
    )
    assert results is not None
    return {
        name: [sample["resps"] for sample in sorted(samples, key=lambda sample: sample["doc_id"])]
        for name, samples in results["samples"].items()
    }, results["results"]


def numbers(found):
    return {name: np.array(rows, dtype=float).ravel() for name, rows in found.items()}


@pytest.fixture(scope="module")
def plain(model, tasks):
    """What lm-eval's own model says."""
    from lm_eval.models.huggingface import HFLM

    own = HFLM(pretrained=model, device="cpu", batch_size=1)
    return answers(own, tasks, GENERATED), answers(own, tasks, RATED)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "budget", "block_size"),
    [("full", None, None), ("full", None, 16), ("h2o", 100_000, 16), ("caote:tova", "100%", None)],
)
def test_with_room_for_everything_the_harness_sees_the_plain_model(
    model, tasks, plain, spec, budget, block_size
):
    ours = CompressedLM(model, spec, budget, block_size, batch_size=3)
    (texts, text_metrics), (likelihoods, _) = plain
    written, metrics = answers(ours, tasks, GENERATED)
    assert written == texts
    assert metrics == text_metrics
    rated, _ = answers(ours, tasks, RATED)
    for name, wanted in numbers(likelihoods).items():
        np.testing.assert_allclose(
            numbers(rated)[name], wanted, rtol=FLOAT32_LOGITS, atol=FLOAT32_LOGITS
        )


@pytest.mark.slow
def test_a_small_budget_is_seen(model, tasks, plain):
    ours = CompressedLM(model, "streaming_llm", budget=12, block_size=8, batch_size=2)
    (texts, _), (likelihoods, _) = plain
    assert answers(ours, tasks, GENERATED)[0] != texts
    alone = CompressedLM(model, "streaming_llm", budget=12, block_size=8, batch_size=1)
    rated, own = (numbers(answers(each, tasks, RATED)[0]) for each in (ours, alone))
    for name, wanted in numbers(likelihoods).items():
        np.testing.assert_allclose(rated[name], own[name], rtol=0, atol=FLOAT32_LOGITS)
        assert np.abs(rated[name] - wanted).max() > 100 * FLOAT32_LOGITS, name
    assert set(ours.after_eviction) == {*GENERATED, *RATED}, "each task has its own count"
    assert all(sum(x.count for x in parts) > 0 for parts in ours.after_eviction.values())


def test_a_budget_in_percent_is_that_of_the_request(model):
    ours = CompressedLM(model, "h2o", "25%")
    assert [ours.entries_for(tokens) for tokens in (4, 100, 101)] == [1, 25, 26]
    assert CompressedLM(model, "full").entries_for(4) is None


# --- the commands --------------------------------------------------------------------------------


def test_the_reasoner_solves_its_task_with_the_full_cache_and_not_with_half(tasks):
    arguments = [
        *("eval", "--tasks", "reasoner_local", "--include-path", str(tasks), "--batch-size", "2"),
        *("--methods", "full; streaming_llm; h2o@recent=400", "--budgets", "50%", "--json"),
    ]
    found = json.loads(printed(*arguments))
    values = {(each["method"], each["budget"]): each["value"] for each in found["figures"]}
    assert values["full", None] == 1.0
    assert values["streaming_llm", "50%"] < 0.5
    full, after = (each["after_eviction"] for each in found["figures"])
    assert full is None and 0 < after["count"] < after["of"]
    assert {(each["filter"], each["problems"]) for each in found["figures"]} == {("answer", 2)}
    (refusal,) = found["refusals"]
    assert (refusal["method"], refusal["budget"]) == ("h2o@recent=400", "50%")
    assert "budget = " in refusal["reason"]
    assert found["settings"]["budgets"] == ["50%"]


def test_a_row_prints_its_figures_or_why_there_are_none():
    figure = {"method": "h2o", "budget": "60%", "task": "sums", "metric": "match"}
    figure |= {"filter": "none", "value": 0.5, "error": None, "problems": 1}
    figure |= {"after_eviction": After(0, 7, "tokens")}
    ran = harness.EvaluatedRow(method="h2o", budget="60%", figures=(figure,))
    refused = harness.EvaluatedRow(method="tova", budget="60%", refusal="too small")
    table = layout("eval").table([*harness.printed(ran), *harness.printed(refused)])
    assert table.rows[0] == ("h2o", "60%", "sums", "match", "none", "0.500", "–", "0 % ∅")
    assert table.notes == ["tova 60%: too small"]


@pytest.mark.parametrize(("arguments", "message"), REFUSED["eval"].items())
def test_bad_input_ends_with_one_line_and_exit_code_2(arguments, message, tasks, refusal):
    own = () if "--include-path" in arguments else ("--include-path", tasks)
    assert message in refusal("eval", *own, *arguments.split(" "))


def test_an_unknown_task_is_refused(monkeypatch):
    """Without the 14,000 files of lm-eval's own tasks, which take longer to read than a test."""
    monkeypatch.setattr(harness, "TaskManager", partial(TaskManager, include_defaults=False))
    with pytest.raises(ValueError, match="unknown task 'no_such_task'"):
        evaluate_tasks(str(reasoner_directory()), ("no_such_task",), ("full",))


def test_options_of_a_method_may_follow_as_arguments(model):
    apart = CompressedLM(model, "h2o@every=4", "50%", recent=8).policy_for(10)
    together = CompressedLM(model, "h2o@every=4,recent=8", "50%").policy_for(10)
    assert (apart.protect, apart.schedule) == (together.protect, together.schedule)
    assert apart.protect != CompressedLM(model, "h2o@every=4", "50%").policy_for(10).protect


def test_lm_eval_is_told_of_the_model_by_an_entry_point():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["lm_eval.models"]["kvlab"].partition(":")
    assert getattr(import_module(module), name) is CompressedLM
    assert get_model("kvlab") is CompressedLM


def test_no_option_of_a_method_has_the_name_of_a_model_argument():
    own = {"pretrained", "method", "budget", "block_size", "feed", "device", "dtype"}
    own |= {"parallel", "batch_size", *OPTIONS}
    for name, entry in methods.describe().items():
        assert not own & set(entry["options"]), name


@pytest.mark.parametrize(("argument", "message"), REFUSED["model"].items())
def test_model_arguments_are_checked(model, argument, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        CompressedLM(model, **tomllib.loads(argument))
