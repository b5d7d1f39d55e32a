"""Engines against kvlab's specifications; the real ones where they are installed."""

import pytest
import torch
from typer.testing import CliRunner

from kvlab.fast.lab.cli import app
from kvlab.fast.lab.engines import INSTALL, Written, agreement, launch
from kvlab.fast.models import gguf_file
from kvlab.fast.models.loading import load

PROMPTS = [[5, 6, 7, 8, 9, 10, 11, 12], [12, 11, 10, 9, 8, 7, 6, 5]]


@pytest.mark.parametrize("engine", INSTALL)
def test_an_engine_that_is_not_installed_says_how_it_is(engine, monkeypatch, tmp_path):
    monkeypatch.setenv("KVLAB_OPENVINO", str(tmp_path / "python"))
    monkeypatch.setenv("KVLAB_LLAMA_CPP", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=f"engine = '{engine}' is not installed: .*install"):
        launch(engine)


def test_agreement_ends_at_the_first_token_that_is_not_the_best():
    """Greedy tokens of the model agree with the full cache; one wrong token ends its prompt's."""
    model, _ = load("reasoner", "float32", "cpu")
    tokens = torch.tensor(PROMPTS)
    written = model.generate(tokens, max_new_tokens=6, min_new_tokens=6, do_sample=False)
    greedy = written[:, tokens.shape[1] :].tolist()
    setting = agreement.Setting("full", "full")
    right = agreement.compare(model, setting, PROMPTS, [Written(each, None) for each in greedy])
    assert (right.agreed, right.same, right.difference) == (12, True, None)
    greedy[1][2] = (greedy[1][2] + 1) % model.config.vocab_size
    wrong = agreement.compare(model, setting, PROMPTS, [Written(each, None) for each in greedy])
    assert (wrong.agreed, wrong.tokens, wrong.same) == (6 + 2, 12, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "setting", "wrong"),
    [
        (
            "openvino",
            "SUM, window off",
            "openvino@start=32,recent=64,aggregation=sum,window=0,pool=1",
        ),
        ("llama.cpp", "f16", "full@precision=turboquant_1bit"),
    ],
)
def test_an_engine_agrees_with_its_specification_alone(engine, setting, wrong):
    try:
        launch(engine)
    except FileNotFoundError as absent:
        pytest.skip(str(absent))
    if not gguf_file("smollm2").is_file():
        pytest.skip("SmolLM2 is not here as a GGUF file: kvlab models gguf smollm2")
    check = ["engines", "check", engine, "--settings", setting, "--prompts", "2", "--tokens", "40"]
    assert CliRunner().invoke(app, check).exit_code == 0
    assert CliRunner().invoke(app, [*check, "--method", wrong]).exit_code == 1
