"""Engines against kvlab's specifications; the real ones where they are installed."""

import functools
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kvlab.fast.lab import engines
from kvlab.fast.lab.engines import agreement
from kvlab.fast.models import gguf_file, loading
from support.running import invoke

PROMPTS = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12], [12, 11, 10, 9, 8, 7, 6, 5]])
OPENVINO = "openvino", "SUM, window off", "openvino@start=32,recent=64"
LLAMA_CPP = "llama.cpp", "f16", "full@precision=q8_0"
SHIFT = "llama.cpp", "context shift, 125 of 256", "streaming_llm@every=125,when_full=true"
WORKER = """import json, sys; asked = json.load(sys.stdin)
json.dump({"tokens": [asked["settings"]]}, open(asked["out"], "w"))"""

LOAD_ONCE = functools.cache(loading.load_gguf)


def test_a_worker_is_asked_and_its_tokens_are_counted():
    command = shlex.join([sys.executable, "-c", WORKER])
    asked = {"prompts": [[5, 6]], "settings": [1, 2, 3], "tokens": 3}
    assert engines.generate(command, asked)["tokens"] == [[1, 2, 3]]
    with pytest.raises(ChildProcessError, match="did not write 4 tokens"):
        engines.generate(command, {**asked, "tokens": 4})


def test_each_interpreter_has_a_folder_of_its_own_for_what_pip_installs(monkeypatch, tmp_path):
    """Else NumPy of another Python cannot be imported, and the engine says only that."""
    monkeypatch.setattr(engines, "cache_directory", lambda: tmp_path)

    def fake(command, **options):
        Path(command[-1]).mkdir()
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(engines.subprocess, "run", fake)
    monkeypatch.setattr(engines.shutil, "which", lambda name: name)
    for engine in engines.WORKERS:
        engines.install(engine)
        assert engines.launch(engine)[-1] == str(engines.folder(engine))
    other = SimpleNamespace(cache_tag="cpython-399")
    monkeypatch.setattr(engines.sys, "implementation", other)
    assert engines.folder("llama.cpp").is_dir()
    with pytest.raises(FileNotFoundError, match="openvino is not installed: kvlab engines install"):
        engines.launch("openvino")
    engines.install("openvino")
    assert len([*(tmp_path / "engines").iterdir()]) == len(engines.WORKERS) + 1


def test_vllm_runs_the_kvlab_that_asks(monkeypatch, tmp_path):
    """Its environment was made by a clone that is gone."""
    monkeypatch.setattr(engines, "folder", lambda engine: tmp_path)
    (linked := tmp_path / "lib/python3.11/site-packages/kvlab").mkdir(parents=True)
    (linked / "fast").symlink_to(tmp_path / "gone")
    engines.launch("vllm")
    found = [str((linked / name).resolve()) for name in ("reference", "fast")]
    assert found == [str(Path(each).resolve()) for each in engines.PACKAGES]


def test_agreement_ends_at_the_first_token_that_is_not_the_best():
    (model, _), full = loading.load("reasoner", "float32", "cpu"), agreement.Setting("full", "full")
    greedy = model.generate(PROMPTS, max_new_tokens=6, min_new_tokens=6, do_sample=False)[:, 8:]
    text = {"prompts": PROMPTS.tolist(), "tokens": greedy.tolist()}
    found = agreement.compare(model, full, "full", text)
    assert (found["agreed"], found["gap"], full.verdict(found)) == (12, 0, "agrees")
    assert full.verdict({**found, "reference": 0.01}) == "WRONG: parts"
    text["tokens"][1][2] += 1
    found = agreement.compare(model, full, "full", {**text, "log_probs": [[0.0] * 6] * 2})
    assert [found[name] for name in ("agreed", "prompt", "step")] == [6 + 2, 1, 2]
    assert (found["gap"] > agreement.TIE, full.verdict(found)) == (True, "WRONG: parts")


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "setting", "wrong"), [OPENVINO, LLAMA_CPP, SHIFT])
def test_an_engine_agrees_with_its_specification_alone(monkeypatch, engine, setting, wrong):
    if not (engines.folder(engine).is_dir() and gguf_file("smollm2").is_file()):
        pytest.skip(f"{engine} is not here: kvlab engines install {engine}")
    monkeypatch.setattr(loading, "load_gguf", LOAD_ONCE)
    check = ["engines", "check", engine, "--settings", setting, "--prompts", "1"]
    check += ["--tokens", "40" if setting == SHIFT[1] else "16"]  # 31 fill its context
    assert invoke(*check).exit_code == 0
    assert invoke(*check, "--method", wrong).exit_code == 1


@pytest.mark.slow
def test_vllm_agrees_with_its_specification_alone():
    if not engines.folder("vllm").is_dir():
        pytest.skip("vllm is not here: kvlab engines install vllm")
    found = {each.name: each for each in agreement.SETTINGS["vllm"]}
    setting = found["sliding window and softcap"]
    weights = agreement.weights_of("vllm", setting)
    model, _ = agreement.load(weights)
    asked = {"weights": str(weights), "prompts": [[*range(5, 75)], [*range(90, 140)]], "tokens": 8}
    text = engines.generate("vllm", {**asked, "settings": setting.options})
    assert setting.verdict(agreement.compare(model, setting, "full", text)) == "agrees"
    wrong = agreement.compare(model, replace(setting, budget=16), "tova", text)
    assert setting.verdict(wrong) == "WRONG: parts"
    counted = replace(setting, counter="vllm:num_preemptions")
    assert "num_preemptions is 0" in counted.verdict({**wrong, "counted": 0})


def test_prompts_are_cut_and_share_their_beginning():
    prompts = [[row] * 200 for row in range(10)]
    lengths = [*map(len, agreement.unequal(prompts))]
    assert lengths[:3] == [200, 181, 162] and lengths[8] == 200
    pairs = agreement.in_pairs(prompts)
    assert pairs[2] == prompts[2] and pairs[3] == [2] * 160 + [3] * 40
