"""The embedded models: small, trained by this project, and stored as Hugging Face directories."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

EMBEDDED: Mapping[str, str] = {"jumps": "jumps", "reasoner": "reasoning"}
"""Short names of the embedded models, and the kind of task that each solves; comparisons are made
on the first one unless something else is asked for."""
DIRECTORY = Path(str(files("kvlab.reference.models")))
"""Where their directories are, each under its short name."""


def embedded_directory(name: str) -> Path:
    """Return the Hugging Face directory of an embedded model."""
    if name not in EMBEDDED:
        raise ValueError(f"embedded model = {name!r} must be one of {', '.join(EMBEDDED)}")
    return DIRECTORY / name


def reasoner_directory() -> Path:
    """Return the directory of the model that solves chained arithmetic."""
    return embedded_directory("reasoner")
