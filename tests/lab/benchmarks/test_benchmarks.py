"""The benchmarks run and write what they promise; no time is judged here."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from kvlab.fast.huggingface import graphs
from kvlab.fast.lab.benchmarks import contenders, decode, end_to_end, engines, kernels
from kvlab.fast.lab.benchmarks.contenders import Setting, kvlab, stock
from kvlab.fast.lab.benchmarks.results import SCHEMA, run_benchmark
from kvlab.fast.lab.benchmarks.workload import DATA, Run, tiny_llama
from kvlab.fast.lab.described import described
from kvlab.fast.lab.loop import Step
from kvlab.fast.lab.reports import Text
from kvlab.fast.lab.tables import Table
from kvlab.fast.lab.terminal import StoppableCommand
from kvlab.reference.models import reasoner_directory
from study.benchmarks import decoding, result_blocks, with_gains
from support import recorded
from support.tolerances import FLOAT32_SCORES

ENTRY = 4 * 8 * 2 * 32 * 4
"""Bytes of one cached token: layers, heads, key and value, channels, float32."""
WEIGHTS = 4 * (4 * (4 * 256**2 + 3 * 256 * 688 + 2 * 256) + 256 * 512 + 256)
"""Bytes that a token reads of the tiny model: layers, vocabulary and the last norm."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def measured(tmp_path):
    """Run a benchmark as a command; return what it writes."""

    def run(benchmark, *arguments):
        app, out = typer.Typer(), tmp_path / "result.json"
        said = DATA["options"]["every"] | DATA["options"][benchmark.__name__.rpartition(".")[2]]
        app.command(cls=StoppableCommand)(described(benchmark.main, said))
        done = CliRunner().invoke(app, [*map(str, arguments), "--out", str(out)])
        assert done.exit_code == 0, done.output
        return json.loads(out.read_text())

    return run


def by_name(outcomes):
    return {outcome["name"]: outcome for outcome in outcomes}


# --- decoding ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_decoding_speed_is_written_with_machine_and_versions(measured):
    rounds = ("--repeats", 1, "--whole-repeats", 1, "--tokens", 8, "--stretch", 2)
    found = measured(decode, *rounds)
    assert (found["schema"], found["benchmark"]) == (SCHEMA, "decode")
    assert found["machine"]["cores"] >= 1 and found["versions"]["torch"]
    assert found["about"]["kvpress"] == {"measured": False, "reason": "no environment given"}
    constant, whole = (by_name(found["parts"][name]) for name in ("constant", "whole"))
    assert {constant[f"kvlab {name}"]["peak"]["entries"] for name in decode.PER_STEP} == {256}
    for outcome in constant.values():
        assert outcome["quartiles"] == 3 * outcome["tokens_per_second"] > [0, 0, 0]
        assert outcome["peak"]["bytes"] >= ENTRY * outcome["peak"]["entries"]
        assert outcome["must_bytes"] == WEIGHTS + ENTRY * outcome["peak"]["entries"]
    assert whole["transformers full cache"]["peak"] == {"entries": 71, "bytes": 71 * ENTRY}


def test_all_keep_as_many_entries_as_they_should():
    setting, part = Setting(tiny_llama(), 256), decode.constant(stretch=40, repeats=1)
    several = (stock(setting), *(kvlab(setting, name) for name in ("full", decode.LAGGED)))
    kept = [each.measured(part.run(each), True).entries for each in several]
    assert kept == [256 + 20 - 1, 256 + 20 - 1, 256 + 31]


def test_a_language_model_is_measured_with_a_quarter_of_the_entries(measured):
    model = str(reasoner_directory())
    asked = ("--model", model, "--prompt", 160, "--tokens", 3, "--whole-repeats", 1, "--cpu-time")
    only = "kvlab h2o,transformers full cache of 40"
    found = measured(decode, *asked, "--only", only)
    parameters = {"entries": 40, "cpu_time": True, "model": model, "prompt": 160, "tokens": 3}
    assert found["parameters"].items() >= {**parameters, "whole_repeats": 1, "only": only}.items()
    real = by_name(found["parts"]["real"])
    assert real.keys() == {"transformers full cache", *only.split(",")}
    assert real["transformers full cache of 40"]["peak"]["entries"] == 40 + 1
    assert real["transformers full cache"]["peak"]["entries"] == 160 + 1
    assert all(len(each["first_seconds"]) == 1 for each in real.values())
    (table,) = (block for block in decoding(found) if isinstance(block, Table))
    seconds = [real[name]["first_seconds"][0] for name in ("kvlab h2o", "transformers full cache")]
    times_full = {row[0]: row[-1] for row in table.rows}
    assert times_full["kvlab h2o"] == f"{seconds[0] / seconds[1]:.2f}"
    shown = " ".join(block.text for block in decoding(found) if isinstance(block, Text))
    assert "Seconds are CPU time" in shown and "reads 160 tokens, at once unless a row" in shown


@pytest.mark.slow
def test_engines_are_measured_beside_methods(measured, monkeypatch):
    told = {"times": [[0, 0], [1, 2], [3, 6]]}
    for name, found in (("fetched", tiny_llama()), ("model_location", None)):
        monkeypatch.setattr(engines, name, lambda _, found=found: found)
    answer = lambda _, asked: told | {"bytes": len(asked["prompts"][0])}  # noqa: E731
    monkeypatch.setattr(contenders.engines, "generate", answer)
    short = lambda prompt, tokens, repeats: decode.real(prompt, tokens // 16, repeats)  # noqa: E731
    monkeypatch.setattr(engines, "real", short)
    found = by_name(measured(engines, "--lengths", "512", "--repeats", 1)["parts"]["512"])
    q8_0, tova = found["llama.cpp q8_0"], found["kvlab tova"]
    assert (q8_0["first_seconds"], q8_0["quartiles"][1], q8_0["wall"]) == ([1], 1.5, [0.75])
    assert (
        q8_0["must_bytes"] is None and q8_0["peak"]["bytes"] == 4 * tova["peak"]["entries"] == 512
    )


WORKER = """
import json
print(json.dumps({'kvpress': '0'}), flush=True)
asked = json.loads(input())
tokens = asked['run']['tokens']
print(json.dumps({'first': asked['entries'], 'rest': 2, 'tokens': tokens}), flush=True)
"""


def test_a_worker_is_asked_line_by_line(monkeypatch, tmp_path):
    (tmp_path / "kvpress_contender.py").write_text(WORKER)
    monkeypatch.setattr(contenders, "__file__", str(tmp_path / "contenders.py"))
    worker = contenders.KvpressWorker(Path(sys.executable))
    press = contenders.kvpress(worker, Setting(None, entries=5), "tova", 1)
    assert worker.versions == {"kvpress": "0"}
    timing = press.measured(Run(3, 7), False)
    assert timing.speed(with_prompt=True) == 7 / (5 + 2)
    assert timing.speed(with_prompt=False) == (7 - 1) / 2
    worker.process.wait()
    with pytest.raises(RuntimeError, match="kvpress ended with code 0"):
        worker._receive()
    worker.process.communicate()


# --- what needs a GPU runs a small case anywhere --------------------------------------------------


@pytest.mark.skipif(DEVICE == "cuda", reason="there is a GPU")
@pytest.mark.parametrize("benchmark", [end_to_end, kernels])
def test_a_gpu_is_asked_for(benchmark):
    with pytest.raises(SystemExit, match="needs a GPU"):
        benchmark.main()


@pytest.mark.slow
def test_a_tiny_model_runs_everywhere_captured_and_not_and_is_shown(measured, monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setattr(graphs, "DEVICES", ("cpu",))
        monkeypatch.setattr(graphs, "captured", recorded.recorded)
    found = measured(end_to_end, "--small", "--profile", "--block-size", 32)
    full, h2o, *_ = rows = found["parts"]["one_text"]
    ran = [(each["method"], each["graphed"]) for each in rows]
    assert ran == [(method, graphed) for graphed in (True, False) for method in ("full", "h2o")]
    assert full["cache_bytes"] >= ENTRY * full["entries"] > h2o["cache_bytes"]
    assert full["must_bytes"] - h2o["must_bytes"] == ENTRY * (full["entries"] - h2o["entries"])
    assert [each["batch"] for each in found["parts"]["equal_memory"]] == [2, 2]
    assert all(each["profile"][0]["microseconds"] > 0 for each in (full, h2o))
    shown = result_blocks("result.json", found)
    cells = {cell for block in shown for row in getattr(block, "rows", ()) for cell in row}
    assert {"full", "h2o"} <= cells


@pytest.fixture
def interpreted(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setenv("KVLAB_KERNELS", "interpret")
    monkeypatch.setattr(kernels, "ROWS", 5)  # the interpreter takes a minute for a prompt


@pytest.mark.slow
def test_small_sizes_run_everywhere(interpreted, measured):
    found = measured(kernels, "--small")
    rows = found["parts"]["kernels"]
    names = {each["kernel"] for each in rows}
    assert len(names) == 29 and {each["rival"] for each in rows} <= names | {""}
    assert found["about"]["left_out"] == []
    assert all(each["quartiles"] == 3 * [each["seconds"]] > [0, 0, 0] for each in rows)
    assert all(each["must_bytes"] > 0 for each in rows) and rows[0]["backends"]
    assert found["versions"]["triton"] and found["configurations"]


@pytest.mark.slow
def test_rivals_attend_to_the_same(interpreted):
    """A rival that computes something else says nothing."""
    size = kernels.Size(1, 20, DEVICE, torch.float32)
    both = (kernels.decode_cases, kernels.prefill_cases)
    found = {case.kernel: case.run for cases in both for case in cases(size)}
    for rival, name in (
        ("SDPA of PyTorch, 5 rows", "attention of 5 rows with log-sum-exps"),
        ("SDPA of PyTorch", "decode attention, no scores"),
    ):
        ours, _ = found[name]()
        theirs = found[rival]().view_as(ours)
        torch.testing.assert_close(theirs, ours, atol=FLOAT32_SCORES, rtol=FLOAT32_SCORES)


def test_what_memory_is_not_enough_for_is_left_out():
    def run():
        raise torch.OutOfMemoryError("CUDA out of memory")

    fits = kernels.Case("fits", 1, 8, lambda: None, 100, rival="large")
    large = kernels.Case("large", 1, 8, run, 400)
    results, fitted = kernels.timed(iter([fits, large]), "cpu", 1, 1e9)
    assert ([each["kernel"] for each in results], fitted) == (["fits"], False)
    assert with_gains(results)[0]["gain"] is None


# --- a benchmark that is stopped -----------------------------------------------------------------


def test_a_benchmark_goes_on_where_it_was_stopped(measured, monkeypatch, tmp_path, unfinished):
    """Two contenders write once to warm up and in two rounds; what was measured is kept."""
    asked = ("--model", reasoner_directory(), "--prompt", 40, "--tokens", 3, "--whole-repeats", 2)
    asked, written = (*asked, "--only", "kvlab full"), []

    def stopping(setting):
        contender = stock(setting)

        def generate(run, watched):
            written.append(run)
            if len(written) == 2:
                raise KeyboardInterrupt
            return contender.measured(run, watched)

        return replace(contender, measured=generate)

    monkeypatch.setattr(decode, "stock", stopping)
    older = tmp_path / "result.json.part"
    older.write_bytes(b"a pickle")
    with pytest.raises(AssertionError, match="2 steps kept in") as stop:
        measured(decode, *asked)
    assert f"{older} was left by an older kvlab" in str(stop.value)
    assert len([*unfinished.iterdir()]) == 1
    found = measured(decode, *asked)
    assert len(written) == 1 + 1 + 2
    assert all(len(each["tokens_per_second"]) == 2 for each in found["parts"]["real"])
    assert [*unfinished.iterdir()] == [] and older.exists()


def test_what_another_command_measured_is_not_taken(tmp_path):
    done, out = [], tmp_path / "result.json"

    def run(tokens, stops):
        def parts(measure):
            found = measure([Step("one", lambda: done.append(tokens) or tokens)])
            if stops:
                raise KeyboardInterrupt
            return {"part": list(found.values())}

        run_benchmark("any", "cpu", {"tokens": tokens, "out": out}, {}, parts)
        return json.loads(out.read_text())["parts"]

    for tokens in (3, 4):
        with pytest.raises(KeyboardInterrupt):
            run(tokens, stops=True)
    assert [run(tokens, stops=False) for tokens in (3, 4)] == [{"part": [3]}, {"part": [4]}]
    assert done == [3, 4]
