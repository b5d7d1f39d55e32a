"""What reads and checks the options of commands."""

from pathlib import Path
from tempfile import TemporaryFile

from kvlab.fast.lab.evaluate.tasks import find_task
from kvlab.reference.models import EMBEDDED
from kvlab.reference.tasks import english


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
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"--prompt = {text!a} must be UTF-8 text") from None
        return text
    if file is None:
        if model is not None and str(model) not in EMBEDDED:
            raise ValueError("--prompt or --prompt-file must be given with --model")
        task = find_task(EMBEDDED[str(model or "reasoner")])
        return task.problems(1, seed=0)[0].prompt
    return read_text("prompt_file", file)


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


def check_seed(seed: int) -> None:
    """Raise ValueError if PyTorch does not take a number as a seed."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed = {seed} must be at least 0 and below 2**63")
