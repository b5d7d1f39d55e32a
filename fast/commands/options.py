"""Options that the commands share."""

from pathlib import Path
from typing import Annotated

import typer

from kvlab.reference.tasks import reasoning

ModelName = Annotated[
    str | None,
    typer.Option(
        "--model", help="Hugging Face directory, or id on the hub; default: the embedded reasoner."
    ),
]
PromptText = Annotated[
    str | None,
    typer.Option("--prompt", help="Text to continue; default, without --model: a problem."),
]
PromptFile = Annotated[
    Path | None, typer.Option("--prompt-file", help="UTF-8 file with the text to continue.")
]
MaxNewTokens = Annotated[int, typer.Option(help="Tokens to write at most.")]
Device = Annotated[
    str | None, typer.Option(help="As PyTorch names it; default: a GPU if there is one.")
]


def read_prompt(text: str | None, file: Path | None, model: str | None) -> str:
    """Return the text to continue, unchanged: nothing is stripped, no chat template is applied.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if both are given, neither is and the model is not the embedded one, or the
            file is not UTF-8.
    """
    if text is not None and file is not None:
        raise ValueError("--prompt and --prompt-file cannot both be given")
    if text is not None:
        return text
    if file is None:
        if model is not None:
            raise ValueError("--prompt or --prompt-file must be given with --model")
        return reasoning.held_out(1)[0].prompt
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist")
    return file.read_text(encoding="utf-8")


def at_least(name: str, value: float, least: float) -> None:
    """Raise ValueError if an option is too small, or NaN."""
    if not value >= least:
        raise ValueError(f"{name} = {value} must be at least {least}")
