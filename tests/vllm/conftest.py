"""vLLM's environment, a process in it that answers, and the tiny model that both sides read."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from models import built
from transformers import LlamaConfig

from kvlab.fast.lab import engines

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


class Driver:
    """A process that runs `driver.py`."""

    def __init__(self, model: str, python: str, path: str, methods: str) -> None:
        kept = ("PATH", "HOME", "TMPDIR")
        environment = {name: os.environ[name] for name in kept if name in os.environ}
        environment |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "KVLAB_METHODS": methods}
        self.model = model
        self.process = subprocess.Popen(
            [python, str(HERE / "driver.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def run(self, kvlab, events, **engine) -> dict:
        """Let an engine take events, and return what was found."""
        told = {"model": self.model, "engine": BLOCKS | engine, "kvlab": kvlab, "events": events}
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(told), file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            if line.startswith("kvlab found "):
                return json.loads(line.removeprefix("kvlab found "))
        raise AssertionError("vLLM's process has ended")

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A tiny random model, and the directory in which it is saved."""
    CONFIG._attn_implementation = "sdpa"
    found = built(CONFIG, torch.float32)
    directory = tmp_path_factory.mktemp("model")
    found.save_pretrained(directory)
    return found, str(directory)


@pytest.fixture(scope="session")
def started(model, tmp_path_factory):
    """Return a function that starts a process in vLLM's environment, with a tree of kvlab."""
    python = engines.python("vllm")
    if python is None:
        pytest.skip("vLLM is not installed: kvlab engines install vllm")
    entry = tmp_path_factory.mktemp("entry")
    info = entry / "kvlab-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvlab\nVersion: 0\n")
    point = "[vllm.general_plugins]\nkvlab = kvlab.fast.vllm:register\n"
    (info / "entry_points.txt").write_text(point)
    running = []

    def start(tree: Path = ROOT / ".namespace") -> Driver:
        path = os.pathsep.join([str(tree), str(entry)])
        running.append(Driver(model[1], python, path, str(HERE / "largest.py")))
        return running[-1]

    yield start
    for each in running:
        each.close()


@pytest.fixture(scope="session")
def driver(started):
    """The process that most tests share."""
    return started()
