"""The embedded models: where they lie, and which task each of them solves."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

EMBEDDED: Mapping[str, str] = {"jumps": "jumps", "reasoner": "reasoning"}
"""Short names of the embedded models, and the kind of task that each solves; comparisons are made
on the first one unless something else is asked for."""


def embedded_directory(name: str) -> Path:
    """Return the Hugging Face directory of an embedded model.

    Raises:
        ValueError: if no embedded model has this name.
    """
    if name not in EMBEDDED:
        raise ValueError(f"embedded model = {name!r} must be one of {', '.join(EMBEDDED)}")
    return Path(str(files("kvlab.fast.models") / name))


def reasoner_directory() -> Path:
    """Return the directory of the model that solves chained arithmetic."""
    return embedded_directory("reasoner")


def model_location(model: str | Path) -> str:
    """Return the directory or id that a name stands for: a short name, a directory, or an id."""
    return str(embedded_directory(str(model))) if str(model) in EMBEDDED else str(model)
