"""vLLM's environment, a process in it that answers, and the tiny model that both sides read."""

import json
import os
import subprocess
from pathlib import Path
from tempfile import mkstemp

import pytest
import torch
from transformers import LlamaConfig

from kvlab.fast.lab import engines
from kvlab.fast.lab.engines.vllm_environment import announce
from support.models import built
from support.outside import SOURCE, methods_named

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CONFIG = LlamaConfig(
    vocab_size=97,
    hidden_size=128,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=1024,
    bos_token_id=1,
    eos_token_id=None,
    pad_token_id=0,
)
BLOCKS = {"num_gpu_blocks_override": 60}


def pytest_itemcollected(item):
    """Leave what starts vLLM to `make vllm` and `make test-slow`."""
    if "python" in item.fixturenames:
        item.add_marker(pytest.mark.slow)


class Driver:
    """A process that runs `driver.py`."""

    def __init__(self, model: str, python: str, environment: dict[str, str]) -> None:
        errors, self.errors = mkstemp()
        self.model = model
        self.process = subprocess.Popen(
            [python, str(HERE / "driver.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        )
        os.close(errors)

    def run(self, kvlab, events, model=None, **engine) -> dict:
        """Let an engine take events, and return what was found."""
        told = {"model": model or self.model, "engine": BLOCKS | engine, "kvlab": kvlab}
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps({**told, "events": events}), file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            if line.startswith("kvlab found "):
                return json.loads(line.removeprefix("kvlab found "))
        raise AssertionError("vLLM's process has ended")

    def said(self) -> str:
        """Return what the process and those of its ranks said on standard error so far."""
        return Path(self.errors).read_text("utf-8", "replace")

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        Path(self.errors).unlink()


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A tiny random model, and the directory in which it is saved."""
    CONFIG._attn_implementation = "sdpa"
    found = built(CONFIG, torch.float32)
    directory = tmp_path_factory.mktemp("model")
    found.save_pretrained(directory)
    return found, str(directory)


@pytest.fixture(scope="session")
def python():
    """The Python of vLLM's environment."""
    found = engines.python("vllm")
    if found is None:
        pytest.skip("vLLM is not installed: kvlab engines install vllm")
    return found


@pytest.fixture(scope="package")
def looks(tmp_path_factory):
    """The file of a method of one's own, without a PyTorch implementation.

    It fails for prompts of 77 tokens.
    """
    file = tmp_path_factory.mktemp("own") / "looks.py"
    failing = "    def score(self, state, seen, candidates, room):\n"
    assert failing in SOURCE
    file.write_text(SOURCE.replace(failing, f"{failing}        1 / (seen.clock.prompt - 77)\n"))
    with methods_named(file):
        yield str(file)


@pytest.fixture(scope="package")
def environment(tmp_path_factory):
    """Variables with which vLLM finds this kvlab, or a tree with a mistake, as its plug-in."""
    entry = tmp_path_factory.mktemp("entry")
    announce(entry)
    tree = os.environ.get("KVLAB_PLANTED", str(ROOT / ".namespace"))
    kept = ("PATH", "HOME", "TMPDIR")
    found = {name: os.environ[name] for name in kept if name in os.environ}
    return found | {"PYTHONPATH": os.pathsep.join([tree, str(entry)]), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="package")
def driver(model, python, looks, environment):
    """A process in vLLM's environment."""
    running = Driver(model[1], python, environment | {"KVLAB_METHODS": looks})
    yield running
    running.close()


@pytest.fixture(scope="package")
def driver_of(model, python, environment, tmp_path_factory):
    """A function that returns a process in which a backend for GPUs takes the place of CPU_ATTN."""
    triton = pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("triton")  # vLLM's environment has none
    (folder / "triton").symlink_to(Path(triton.__file__).parent, target_is_directory=True)
    path = os.pathsep.join([environment["PYTHONPATH"], str(folder)])
    given = environment | {"TRITON_INTERPRET": "1", "TORCHDYNAMO_DISABLE": "1", "PYTHONPATH": path}

    running = {}

    def started(backend):
        if backend not in running:
            running[backend] = Driver(model[1], python, given | {"KVLAB_BACKEND": backend})
        return running[backend]

    yield started
    for each in running.values():
        each.close()
