"""What reads and checks the options of commands.

Commands are moving from the aliases here to a dataclass of settings each: see `settings`.
"""

import os
from collections.abc import Sequence
from math import inf
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

import typer

from kvlab.fast.lab.evaluate.tasks import find_task
from kvlab.reference.models import EMBEDDED
from kvlab.reference.selection import budget_entries
from kvlab.reference.tasks import english

ModelName = Annotated[
    str | None,
    typer.Option("--model", help="Short name (kvlab models list), directory, or id on the hub."),
]
ModelDirectory = Annotated[
    Path | None,
    typer.Option("--model", help="Short name (kvlab models list) or directory."),
]
Device = Annotated[
    str | None, typer.Option(help="Device, as PyTorch names it; default: a GPU if there is one.")
]
Dtype = Annotated[str, typer.Option(help="auto, float64, float32, bfloat16 or float16.")]
Parallel = Annotated[
    str | None,
    typer.Option(help="layers: over all devices; tensor: over the processes of torchrun."),
]
METHODS = typer.Option("--methods", "--method", help="Registry syntax, separated by ';' or blanks.")
Methods = Annotated[str, METHODS]
Budgets = Annotated[
    list[str] | None,
    typer.Option(
        "--budgets", "--budget", help="Entries or percent, separated by commas; may be repeated."
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
BlockSize = Annotated[
    int | None, typer.Option(help="Read prompts in blocks of so many tokens; default: at once.")
]
Feed = Annotated[
    str,
    typer.Option(
        help="How tokens are rated: fed one by one as if written (steps), or as a prompt (blocks)."
    ),
]
Problems = Annotated[int, typer.Option(help="Held-out problems.")]
Seed = Annotated[int, typer.Option(help="Seed of the held-out problems.")]
Threshold = Annotated[float, typer.Option(help="Attention that counts as an activation.")]
Chat = Annotated[bool, typer.Option("--chat", help="Apply the chat template.")]
Workers = Annotated[int, typer.Option(min=1, help="Processes.")]
HtmlReport = Annotated[Path | None, typer.Option("--report", help="HTML report to write.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

CORES = os.cpu_count() or 1


def words(text: str) -> tuple[str, ...]:
    """Return what commas and blanks separate, without repetitions."""
    return tuple(dict.fromkeys(text.replace(",", " ").split()))


def read_methods(text: str) -> tuple[str, ...]:
    """Return the specifications in an option, which ``;`` or blanks separate.

    Raises:
        ValueError: if there is none.
    """
    specs = text.replace(";", " ").split()
    if not specs:
        raise ValueError("methods must name at least one method")
    return tuple(specs)


def refuse_without_text(**options: object) -> None:
    """Raise ValueError if an option is given that only a text to read gives a meaning."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"--{name} needs a --text, or a --model that reads English")


def read_budgets(texts: Sequence[str] | None) -> tuple[str, ...]:
    """Return the budgets of a repeated option, each checked.

    Raises:
        ValueError: if one is neither a number of entries nor a percentage.
    """
    found = words(" ".join(texts or ()))
    for text in found:
        budget_entries(text, 100)
    return found


def read_prompt(text: str | None, file: Path | None, model: str | Path | None) -> str:
    """Return the text to continue, unchanged: nothing is stripped, no chat template is applied.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if text and file are given, if neither is given although the model is not
            embedded, or if text or file are no UTF-8 text.
    """
    if text is not None and file is not None:
        raise ValueError("--prompt and --prompt-file cannot both be given")
    if text is not None:
        check_unicode("--prompt", text)
        return text
    if file is None:
        if model is not None and str(model) not in EMBEDDED:
            raise ValueError("--prompt or --prompt-file must be given with --model")
        task = find_task(EMBEDDED[str(model or "reasoner")])
        return task.problems(1, seed=0)[0].prompt
    return read_text("prompt_file", file)


def check_unicode(name: str, text: str) -> None:
    """Raise ValueError if a text on the command line holds bytes that are no UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{name} = {text!a} must be UTF-8 text") from None


def read_book(file: Path | None, model: str | Path | None) -> str | None:
    """Return a text to read: the file, or the novel for a model that is not embedded, else None.

    The errors are those of `read_text`.
    """
    if file is not None:
        return read_text("text", file)
    return None if str(model or "reasoner") in EMBEDDED else english.novel()


def read_text(name: str, file: Path) -> str:
    """Return the text of a file, unchanged.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if the file is no UTF-8 text.
    """
    if not file.exists():
        raise FileNotFoundError(f"{name} = {file} does not exist")
    if not file.is_file():
        raise ValueError(f"{name} = {file} must be a file")
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{name} = {file} must be UTF-8 text") from None


def prepare_output(name: str, file: Path | None) -> None:
    """Make the directory of a file, before anything is computed for it.

    Raises:
        ValueError: if nothing can be written there.
    """
    if file is None:
        return
    if file.is_dir():
        raise ValueError(f"{name} = {file} is a directory")
    if file.exists() and not file.is_file():
        raise ValueError(f"{name} = {file} is no regular file")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        in_the_way = isinstance(error, FileExistsError | NotADirectoryError)
        reason = "a part of the path is no directory" if in_the_way else error.strerror
        raise ValueError(
            f"{name} = {file} cannot be written: {reason}; choose a path below a directory that "
            "you may write to"
        ) from None


def at_least(name: str, value: float, least: float) -> None:
    """Raise ValueError if an option is too small, infinite or NaN."""
    if not value >= least:
        raise ValueError(f"{name} = {value} must be at least {least}")
    if value == inf:
        raise ValueError(f"{name} = {value} must be finite")


def check_seed(seed: int) -> None:
    """Raise ValueError if PyTorch does not take a number as a seed."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed = {seed} must be at least 0 and below 2**63")
