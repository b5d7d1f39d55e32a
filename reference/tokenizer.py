"""Reads a Hugging Face ``tokenizer.json``."""

from pathlib import Path

from tokenizers import Tokenizer


def load_tokenizer(directory: str | Path) -> Tokenizer:
    """Load the tokenizer of a model directory.

    Raises:
        FileNotFoundError: if the directory has no ``tokenizer.json``.
        ValueError: if the file is corrupt.
    """
    path = Path(directory) / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"{path} is not a valid tokenizer file: {error}") from None
