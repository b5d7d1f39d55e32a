"""Tasks of a sweep that rate texts: the figures of `kvlab perplexity` and `kvlab needle`."""

import csv
import tomllib
from pathlib import Path

import numpy as np
import pytest

from kvlab.fast.lab.evaluate.likelihood import cut_windows, rate
from kvlab.fast.lab.evaluate.tasks import find_task
from kvlab.fast.lab.generation import token_ids
from kvlab.fast.lab.sweep.compare import run_in_memory
from kvlab.fast.lab.sweep.design import make_sweep, read_sweep, to_plain, to_toml
from kvlab.fast.lab.sweep.jobs import _accepted, in_this_process
from kvlab.fast.lab.sweep.plan import make_plan
from kvlab.fast.lab.sweep.report import write_report
from kvlab.fast.lab.sweep.run import read_stored, run_sweep
from kvlab.fast.lab.sweep.summary import summarise
from kvlab.fast.models.loading import load
from kvlab.reference import methods
from kvlab.reference.tasks import english, jumps
from support.outside import methods_named
from support.texts import byte_model
from support.tolerances import DECIMALS

TEXT = "The river is long and slow. Nobody knows where it begins, or why. " * 30
EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "examples" / "sweep"
METHODS = ("full", "h2o", "rkv@every=16", "random@recent=4")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rated")
    byte_model(folder / "model", context=2048)
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    return folder


def sweep_of(place, **more):
    """Eight windows in jobs of four, four needles in one job, and problems of another model."""
    text = str(place / "text.txt")
    here = {"models": [str(place / "model")], "text": text}
    windows = {"task": "perplexity", "window": 44, "prompt": 10, "feed": "steps", **here}
    needles = {"task": "haystack", "length": 200, "depths": 2, "problems": 4, **here}
    problems = {"task": "likelihood", "models": ["reasoner"], "problems": 2}
    return make_sweep(
        {
            "methods": list(METHODS),
            "budgets": [20],
            "problems": 8,
            "batch": 4,
            "seeds": [0, 1],
            "pairs": [["h2o", "rkv@every=16"], ["full", "h2o"]],
            "tasks": [windows, needles, problems],
            **more,
        }
    )


@pytest.fixture(scope="module")
def stored(place):
    plan = make_plan(sweep_of(place))
    ran = run_sweep(plan, place / "out", in_this_process)
    assert ran.failures == ()
    return read_stored(place / "out")


def test_a_window_is_rated_as_it_is_alone(stored, place):
    model, tokenizer = load(place / "model")
    windows = cut_windows(token_ids(tokenizer, TEXT), 44, 10, 8)
    found, *_ = summarise(stored)
    assert found.seeds == (0,) and found.mean_length == 44
    points = [found.point(method, 20) for method in METHODS[:3]]
    for point in points:
        alone = rate(model, point.method, point.budget, windows, 128, "steps", 4)
        losses = [-each.logprobs.mean() for each in alone]
        assert point.losses == pytest.approx(losses, abs=DECIMALS)
        assert point.perplexity == pytest.approx(np.exp(np.mean(losses)))
        assert point.mean("entries") == np.mean([each.entries for each in alone])
    assert [point.holds_budget for point in points] == [True, True, False]


def test_the_sweep_goes_on_where_it_was_and_comes_back_from_its_file(stored, place, tmp_path):
    assert make_sweep(to_plain(stored.plan.sweep)) == stored.plan.sweep
    assert make_sweep(tomllib.loads(to_toml(stored.plan.sweep))) == stored.plan.sweep
    assert run_sweep(stored.plan, place / "out", in_this_process).done == 0
    longer = make_plan(sweep_of(place, problems=12))
    ids = {job.id for job in longer.jobs()} - {job.id for job in stored.plan.jobs()}
    assert len(ids) == len(METHODS), "four more windows"
    (place / "text.txt").write_text(TEXT + "More.", encoding="utf-8")
    try:
        changed = {job.id for job in make_plan(sweep_of(place)).jobs()}
    finally:
        (place / "text.txt").write_text(TEXT, encoding="utf-8")
    same = changed & {job.id for job in stored.plan.jobs()}
    assert same == {job.id for job in stored.plan.jobs() if job.model == "reasoner"}


def test_the_report_has_perplexities_and_tests(stored, tmp_path):
    """In its other forms a table is the same, as `test_tables` has it."""
    write_report(stored, tmp_path)
    read = lambda name: csv.DictReader((tmp_path / name).read_text("utf-8").splitlines())  # noqa: E731
    point = summarise(stored)[0].point("rkv@every=16", 20)
    assert f"{point.perplexity:.4f}" in (tmp_path / "report.md").read_text("utf-8")
    row = next(row for row in read("report.csv") if row["spec"] == "rkv@every=16")
    assert (float(row["perplexity"]), row["holds_budget"]) == (point.perplexity, "False")
    written = {(row["measure"], row["first"]) for row in read("report-tests.csv")}
    assert written == {(m, f) for m in ("solved", "nats per token") for f in ("h2o", "full")}


def test_the_example_of_the_page_is_a_sweep():
    with methods_named(str(EXAMPLE / "mine.py")):
        sweep = read_sweep(EXAMPLE / "mine.toml")
        assert {methods.get("mine", 20).name} <= set(sweep.methods)
    assert [(part.task, part.models) for part in sweep.parts] == [
        ("jumps@fewest=18,most=22", ("jumps",)),
        ("perplexity@window=160,prompt=64", ("smollm2",)),
    ]
    assert sweep.parts[1].measured == 0 and not sweep.parts[1].to_first_error


# --- drafts: the compressed cache drafts, the full cache verifies --------------------------------


@pytest.mark.slow
def test_tokens_accepted_are_those_on_which_both_caches_agree():
    """What is measured along the full cache's answers is an independent count of the same."""
    asked = {"methods": ["full", "h2o", "oracle"], "budgets": [60], "problems": 2, "batch": 2}
    asked["tasks"] = ["jumps@fewest=5,most=6"]
    (drafted,) = summarise(run_in_memory(make_sweep({**asked, "drafts": True})))
    (measured,) = summarise(run_in_memory(make_sweep({**asked, "measured": 2})))
    full, h2o, oracle = (drafted.point(name, 60) for name in asked["methods"])
    for drafts in (h2o, oracle):
        agreement = measured.point(drafts.method, 60).figures["agreement"]
        assert drafts.drafts == pytest.approx(agreement, abs=DECIMALS)
    assert 0 < min(h2o.drafts) < min(oracle.drafts) and full.drafts == (1.0, 1.0)
    assert h2o.outcomes == tuple(
        solved and share == 1 for solved, share in zip(full.outcomes, h2o.drafts, strict=True)
    )


def test_only_the_facts_of_restated_steps_count_where_that_is_asked():
    (problem,) = jumps.held_out(1, size=jumps.Size(copies=3))
    written, (step, *others) = np.array(problem.solution.split(" ")), problem.steps
    counted = written[find_task("jumps@copies=3,facts=true").counts(len(written))].tolist()
    x, y = jumps.REGISTERS[step.line.x], jumps.REGISTERS[step.line.y]
    assert counted[:4] == [x, f"{x}{step.x}", y, f"{y}{step.y}"]
    assert len(counted) == 4 * len([step, *others]) and find_task("jumps").counts(9).all()


def test_a_draft_ends_at_its_first_rejected_token():
    assert _accepted(np.array([True, True, False, True])) == {"accepted": 0.75, "until_rejected": 2}


def test_the_chat_is_asked_in_the_template_of_the_model():
    class Tokenizer:
        def apply_chat_template(self, turns, **how):
            return f"<{turns[0]['content']}>"

        def __call__(self, text, **how):
            return {"input_ids": [*text.encode()]}

    asked = find_task("chat@tokens=7").questions(Tokenizer(), list, 3, seed=1)
    texts = [bytes(each.prompt).decode() for each in asked]
    assert len(set(texts)) == 3 and all(text[1:-1] in english.questions() for text in texts)
    assert [len(each.solution) for each in asked] == [7, 7, 7]
    with pytest.raises(ValueError, match="problems = 1000"):
        find_task("chat").questions(Tokenizer(), list, 1000, seed=1)
