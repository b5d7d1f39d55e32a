"""The embedded reasoner: where it lies, and the script that trained it."""

from importlib.resources import files
from pathlib import Path


def reasoner_directory() -> Path:
    """Return the Hugging Face directory of the embedded model."""
    return Path(str(files("kvlab.fast.models") / "reasoner"))
