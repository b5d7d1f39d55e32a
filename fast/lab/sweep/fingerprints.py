"""Which model a result is of: a digest of its files, or its id and revision on the hub."""

import hashlib
from pathlib import Path

from kvlab.fast.models import stored_directory

WHAT_MATTERS = ("config", "generation_config", "tokenizer", "special_tokens", "added_tokens")
"""Beginnings of the names of files, besides the weights, that change what a model writes."""


def fingerprint(location: str) -> str:
    """Hash model and tokenizer in a directory; return an id on the hub with its last revision."""
    directory = Path(location)
    if not directory.is_dir():
        stored = stored_directory(location)
        return f"{location}@{Path(stored).name}" if stored else location
    total = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        if path.name.startswith(WHAT_MATTERS) or path.suffix == ".safetensors":
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            total.update(f"{path.name} {digest}\n".encode())
    return total.hexdigest()[:24]
