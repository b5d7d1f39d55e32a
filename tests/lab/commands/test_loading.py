"""Loading a model: what comes is the checkpoint and nothing else, what does not come says why."""

import json
import shutil
import socket
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import huggingface_hub
import pytest
import torch
import transformers

from kvlab.fast import models
from kvlab.fast.models import loading
from kvlab.reference.models import reasoner_directory
from kvlab.reference.tasks import reasoning
from kvlab.reference.transformer import load_tokenizer
from support.tables import cases

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


@pytest.mark.parametrize(("dtype", "expected"), [("auto", "float32"), ("bfloat16", "bfloat16")])
def test_the_type_is_the_one_asked_for(dtype, expected):
    model, _ = loading.load(reasoner_directory(), dtype)
    assert model.dtype == getattr(torch, expected) and not model.training


def test_reports_and_progress_bars_come_back():
    logging = transformers.utils.logging
    before = logging.is_progress_bar_enabled(), logging.get_verbosity()
    loading.load(reasoner_directory())
    assert (logging.is_progress_bar_enabled(), logging.get_verbosity()) == before


@cases(__file__, "a_missing_file_is_named_and_pickled_weights_are_never_read", "name message")
def test_a_missing_file_is_named_and_pickled_weights_are_never_read(directory, name, message):
    (directory / name).rename(directory / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=message):
        loading.load(directory)


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
)
def test_a_broken_file_is_refused(directory, name):
    (directory / name).write_text("{")
    named = r"reasoner/model\.safetensors" if name == "model.safetensors" else "reasoner"
    with pytest.raises(ValueError, match=rf"{named} cannot be loaded: [^\n]*$"):
        loading.load(directory)


def test_a_truncated_file_of_many_is_named(directory):
    whole = (directory / "model.safetensors").read_bytes()
    (directory / "another.safetensors").write_bytes(whole)
    (directory / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(ValueError, match=r"reasoner/model\.safetensors cannot be loaded"):
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


# --- models on the hub ---------------------------------------------------------------------------


class Hub(BaseHTTPRequestHandler):
    """Answers that it has nothing."""

    def do_HEAD(self):
        self.send_error(404)

    def log_message(self, format, *told):
        """Print nothing."""


@pytest.fixture
def hub(monkeypatch):
    """An address that answers in the place of the hub's, and how it is changed."""

    def use(**constants):
        models.hub_answers.cache_clear()
        for name, value in constants.items():
            monkeypatch.setattr(huggingface_hub.constants, name, value)

    with HTTPServer(("127.0.0.1", 0), Hub) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        files = f"{address}/{{repo_id}}/{{revision}}/{{filename}}"
        use(ENDPOINT=address, HUGGINGFACE_CO_URL_TEMPLATE=files, HF_HUB_OFFLINE=False)
        yield use
        server.shutdown()
    models.hub_answers.cache_clear()


def test_an_id_on_the_hub_needs_a_hub_that_answers(hub, monkeypatch):
    assert models.model_location("owner/name") == "owner/name"
    with pytest.raises(FileNotFoundError, match=r"^owner/name is no directory here, and cannot be"):
        loading.load("owner/name")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(models, "HUB_SECONDS", 0.1)
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        for unreachable in ({"HF_HUB_OFFLINE": True}, {"ENDPOINT": address}):
            hub(**unreachable)
            with pytest.raises(FileNotFoundError, match=r"nothing is stored here of such an id"):
                loading.load("owner/name")


def test_what_is_stored_of_the_hub_is_loaded_without_it(hub, monkeypatch, tmp_path):
    hub(HF_HUB_OFFLINE=True)
    place = tmp_path / "models--owner--name"
    shutil.copytree(reasoner_directory(), place / "snapshots" / "1")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert models.model_location("owner/name") == "owner/name"
    for name in ("owner/name", "owner/name@main", "owner/name@1"):
        model, _ = loading.load(name, device="cpu")
        assert model.config.num_hidden_layers == 4
    with pytest.raises(FileNotFoundError, match="model = owner/name@2 does not exist"):
        loading.load("owner/name@2")


@pytest.mark.parametrize("name", ["/nowhere", "./nowhere", "a/b/c", "a b", "../up"])
def test_a_directory_that_does_not_exist_is_not_looked_for_on_the_hub(name):
    with pytest.raises(FileNotFoundError, match=f"model = {name} does not exist"):
        loading.load(name)
