"""Engines that people deploy: each writes tokens under its own cache, in an environment of its own.

A worker beside this file runs inside that environment and imports nothing of kvlab: it reads one
JSON object from standard input and writes another to the file that the object names.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kvlab.reference.checks import check_choice

INSTALL = {
    "openvino": "KVLAB_OPENVINO must name a Python interpreter that has it: python -m venv engines "
    "&& engines/bin/pip install openvino-genai==2026.4.1.0 && "
    "export KVLAB_OPENVINO=$PWD/engines/bin/python",
    "llama.cpp": "KVLAB_LLAMA_CPP must name a folder that has it: npm install --prefix engines "
    "node-llama-cpp@3.22.1 && export KVLAB_LLAMA_CPP=$PWD/engines",
}
"""How each engine is installed."""


@dataclass(frozen=True)
class Written:
    """What an engine wrote after one prompt."""

    tokens: list[int]
    log_probs: list[float] | None
    """Of each token under the engine; None if the engine does not tell."""


def launch(engine: str) -> list[str]:
    """Return the command that runs an engine's worker; FileNotFoundError if it is not installed."""
    check_choice(INSTALL, engine=engine)
    here = Path(__file__).parent
    if engine == "openvino":
        python = os.environ.get("KVLAB_OPENVINO", sys.executable)
        command, probe = [python, str(here / "openvino_worker.py")], [python, "-c"]
        probe += ["import importlib.util as i; exit(not i.find_spec('openvino_genai'))"]
    else:
        folder = Path(os.environ.get("KVLAB_LLAMA_CPP", ".")).resolve()
        command = ["node", str(here / "llama_cpp_worker.mjs"), str(folder)]
        found = "require('fs').existsSync(process.argv[1] + '/node_modules/node-llama-cpp')"
        probe = ["node", "-e", f"process.exit({found} ? 0 : 1)", str(folder)]
    try:
        there = subprocess.run(probe, capture_output=True).returncode == 0
    except OSError:
        there = False
    if not there:
        raise FileNotFoundError(f"engine = {engine!r} is not installed: {INSTALL[engine]}")
    return command


def generate(
    engine: str,
    weights: Path,
    prompts: Sequence[Sequence[int]],
    settings: Mapping[str, Any],
    tokens: int,
) -> list[Written]:
    """Let an engine write greedily after each prompt, on one thread.

    Args:
        engine: a key of `INSTALL`.
        weights: GGUF file, as `kvlab models gguf` writes it.
        prompts: token ids.
        settings: what the engine's worker says that it takes.
        tokens: how many to write after each prompt.

    Raises:
        FileNotFoundError: if the engine is not installed.
        RuntimeError: if it fails; the message has the end of what it said.
    """
    command = launch(engine)
    with TemporaryDirectory() as room:
        asked = {"weights": str(weights.resolve()), "prompts": [list(each) for each in prompts]}
        asked |= {"settings": dict(settings), "tokens": tokens, "out": f"{room}/written.json"}
        done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{engine} failed: {done.stderr[-2000:]}")
        found = json.loads(Path(asked["out"]).read_text("utf-8"))
    return [Written(each["tokens"], each.get("log_probs")) for each in found]
