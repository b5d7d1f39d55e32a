"""Loading a model: what comes is the checkpoint and nothing else, what does not come says why."""

import json
import shutil

import numpy as np
import pytest
from tolerances import FLOAT32_LOGITS

from kvlab.reference import Transformer, methods
from kvlab.reference.generate import prefill
from kvlab.reference.models import reasoner_directory
from kvlab.reference.tasks import reasoning
from kvlab.reference.transformer import load_tokenizer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
loading = pytest.importorskip("kvlab.fast.models.loading")

TEXTS = [text for p in reasoning.held_out(20) for text in (p.prompt, p.solution, p.text)]


@pytest.fixture
def directory(tmp_path):
    """A copy of the embedded model, to be broken."""
    return shutil.copytree(reasoner_directory(), tmp_path / "reasoner")


def configure(directory, **changed):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def test_the_tokenizer_agrees_with_the_reference():
    """transformers post-processes what it decodes unless told otherwise."""
    _, tokenizer = loading.load(reasoner_directory())
    reference = load_tokenizer(reasoner_directory())
    assert isinstance(tokenizer, transformers.PreTrainedTokenizerFast)
    for text in TEXTS:
        tokens = reference.encode(text).ids
        assert tokenizer(text)["input_ids"] == tokens
        for skip in (True, False):
            decoded = tokenizer.decode(tokens, skip_special_tokens=skip)
            assert decoded == reference.decode(tokens, skip_special_tokens=skip)
        assert decoded == text


def test_the_weights_are_the_checkpoint():
    model, tokenizer = loading.load(str(reasoner_directory()), dtype="float32", device="cpu")
    tokens = tokenizer(TEXTS[0])["input_ids"]
    with torch.no_grad():
        found = model(torch.tensor([tokens])).logits[0, -1].numpy()
    reference = Transformer.from_directory(reasoner_directory())
    expected, _ = prefill(reference, methods.get("full"), tokens)
    np.testing.assert_allclose(found, expected, atol=FLOAT32_LOGITS)
    assert np.abs(np.roll(found, 1) - expected).max() > 1
    assert not model.training


@pytest.mark.parametrize(("dtype", "expected"), [("auto", "float32"), ("bfloat16", "bfloat16")])
def test_the_type_is_the_one_asked_for(dtype, expected):
    model, _ = loading.load(reasoner_directory(), dtype)
    assert model.dtype == getattr(torch, expected)


def test_reports_and_progress_bars_come_back():
    logging = transformers.utils.logging
    before = logging.is_progress_bar_enabled(), logging.get_verbosity()
    loading.load(reasoner_directory())
    assert (logging.is_progress_bar_enabled(), logging.get_verbosity()) == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", "config.json does not exist"),
        ("model.safetensors", "holds no safetensors file, the only kind that is read"),
    ],
)
def test_a_missing_file_is_named_and_pickled_weights_are_never_read(directory, name, message):
    (directory / name).rename(directory / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=message):
        loading.load(directory)


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
)
def test_a_broken_file_is_refused(directory, name):
    (directory / name).write_text("{")
    with pytest.raises(ValueError, match=r"reasoner cannot be loaded: [^\n]*$"):
        loading.load(directory)


def test_no_weight_is_made_up(directory):
    configure(directory, num_hidden_layers=5)
    with pytest.raises(ValueError, match=r"tensor 'model\.layers\.4\.\S+' is missing in "):
        loading.load(directory)
    configure(directory, num_hidden_layers=4, hidden_size=64)
    with pytest.raises(ValueError, match=r"has the shape \(304, 128\), not \(304, 64\)"):
        loading.load(directory)


def test_code_of_a_model_is_never_run(directory):
    (directory / "own.py").write_text("raise SystemExit('executed')")
    auto = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    configure(directory, model_type="own", auto_map=auto)
    with pytest.raises(ValueError, match="needs code of its own, which is never run"):
        loading.load(directory)


@pytest.mark.parametrize("name", ["/nowhere", "./nowhere", "a/b/c", "a b", "../up"])
def test_a_directory_that_does_not_exist_is_not_looked_for_on_the_hub(name):
    with pytest.raises(FileNotFoundError, match=f"model = {name} does not exist"):
        loading.load(name)


def test_a_hub_that_cannot_be_reached_is_one_line(monkeypatch):
    def unreachable(name, **options):
        assert options["local_files_only"] is False
        raise OSError("We couldn't connect to 'https://huggingface.co'\nto load the files.")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", unreachable)
    message = (
        r"^owner/name is no directory here, and cannot be had from the hub: We couldn't connect to "
        r"'https://huggingface\.co' to load the files\.$"
    )
    with pytest.raises(FileNotFoundError, match=message):
        loading.load("owner/name")
