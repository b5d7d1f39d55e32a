"""Engines that people deploy: each writes tokens under its own cache, in a process of its own.

A worker is a program that imports nothing of kvlab. It reads one JSON object from standard input:
``weights`` (GGUF file; for vLLM a directory), ``prompts`` (token ids), ``settings``, ``tokens``
(how many to write greedily after each prompt) and ``out``. To the file ``out`` it writes an object:
``tokens``, a list per prompt, and ``log_probs`` of each token, if the engine tells. Workers of
OpenVINO and llama.cpp add what they took: ``times``, seconds of CPU time and on the clock before
the prompt and after the first and last token; ``bytes`` of the cache. ``timed``: they need not tell
log_probs; not ``exact``: OpenVINO chooses its number formats.
"""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kvlab import reference
from kvlab.fast.lab.engines.vllm_environment import link
from kvlab.fast.models import cache_directory, fetched_directory, gguf_file
from kvlab.fast.vllm import CONNECTOR, SCHEDULER

HERE = Path(__file__).parent
PACKAGES = (str(Path(reference.__file__).parent), str(HERE.parents[1]))
INSTALL: Mapping[str, tuple[str, ...]] = {
    "openvino": (sys.executable, "-m", "pip", "install", "openvino-genai==2026.4.1.0", "--target"),
    "llama.cpp": ("npm", "install", "node-llama-cpp@3.22.1", "--prefix"),
    "vllm": (sys.executable, str(HERE / "vllm_environment.py"), *PACKAGES),
}
"""Command that installs each engine; a folder follows."""
WORKERS: Mapping[str, tuple[str, ...]] = {
    "openvino": (sys.executable, "-I", str(HERE / "openvino_worker.py")),
    "llama.cpp": ("node", str(HERE / "llama_cpp_worker.mjs")),
    "vllm": ("{folder}/bin/python", str(HERE / "vllm_worker.py")),
}
"""Command of each engine's worker; the folder follows."""


def folder(engine: str) -> Path:
    """Return where an engine of `INSTALL` is installed; what pip installs fits one interpreter."""
    for_one = INSTALL[engine][0] == sys.executable
    name = f"{engine}-{sys.implementation.cache_tag}" if for_one else engine
    return cache_directory() / "engines" / name


def install(engine: str) -> None:
    """Install an engine completely or not at all; OSError if its installer fails."""
    target, command = folder(engine), INSTALL[engine]
    if shutil.which(command[0]) is None:
        raise OSError(f"{engine} needs {command[0]}, which is not on this machine")
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent, prefix=".unfinished-") as room:
        if subprocess.run([*command, f"{room}/engine"], stdout=sys.stderr).returncode:
            raise OSError(f"{engine} could not be installed: {shlex.join(command)} FOLDER")
        shutil.rmtree(target, ignore_errors=True)
        Path(room, "engine").replace(target)


def python(engine: str) -> str | None:
    """Return the Python of an engine's environment; None if it is not installed."""
    found = folder(engine) / "bin" / "python"
    return str(found) if found.is_file() else None


def weights_for(engine: str) -> Path:
    """Return where SmolLM2 is, as the engine reads it, whether it is there or not."""
    return fetched_directory("smollm2") if engine == "vllm" else gguf_file("smollm2")


def launch(engine: str) -> list[str]:
    """Return the command of a worker, for a name of `WORKERS` or such a command.

    FileNotFoundError if the engine is not installed, or there is no such program.
    """
    if engine in WORKERS:
        if not folder(engine).is_dir():
            raise FileNotFoundError(f"{engine} is not installed: kvlab engines install {engine}")
        where = str(folder(engine))
        if engine == "vllm":
            for site in folder(engine).glob("lib/python*/site-packages"):
                link(*PACKAGES, site)
        return [part.format(folder=where) for part in (*WORKERS[engine], where)]
    command = shlex.split(engine)
    if not command or shutil.which(command[0]) is None:
        raise FileNotFoundError(f"engine = {engine!r} is no command, nor {' or '.join(WORKERS)}")
    return command


def plugged(method: str, budget: int, **within: int) -> dict[str, Any]:
    """Return the arguments of vLLM's ``LLM`` by which kvlab's method evicts blocks there.

    ``within``: ``block_size``, if also within prompts, which are read in blocks of so many tokens.
    """
    return {
        "additional_config": {"kvlab": {"method": method, "budget": budget, **within}},
        "kv_transfer_config": {"kv_connector": CONNECTOR, "kv_role": "kv_both"},
        "scheduler_cls": SCHEDULER if within else None,
    }


def generate(engine: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Let a worker do what it is asked; return that with the texts as ``tokens``.

    FileNotFoundError as in `launch`; ChildProcessError if it fails, or writes another number of
    tokens.
    """
    with TemporaryDirectory() as room:
        told = json.dumps({**asked, "out": f"{room}/written.json"})
        done = subprocess.run(launch(engine), input=told, capture_output=True, text=True)
        if done.returncode or not Path(room, "written.json").is_file():
            raise ChildProcessError(f"{engine} failed: {done.stderr[-2000:]}")
        found = json.loads(Path(room, "written.json").read_text("utf-8"))
    if [len(each) for each in found["tokens"]] != [asked["tokens"]] * len(asked["prompts"]):
        raise ChildProcessError(
            f"{engine} did not write {asked['tokens']} tokens after each prompt"
        )
    return {**asked, **found}
