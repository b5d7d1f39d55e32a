"""The options of the commands: what each is stands in ``options.toml``; here, what it may hold."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from typer import Typer

from kvlab.fast.lab.described import described
from kvlab.fast.lab.engines import INSTALL
from kvlab.fast.lab.evaluate.tasks import find_task
from kvlab.fast.lab.files import folder_of, read_data
from kvlab.fast.lab.terminal import StoppableCommand, errors, working
from kvlab.fast.models import model_location
from kvlab.reference import methods as registry
from kvlab.reference.conformance.exporting import FORMATS
from kvlab.reference.conformance.report import FLAGS
from kvlab.reference.models import EMBEDDED, embedded_directory
from kvlab.reference.proofs import PAPERS
from kvlab.reference.selection import budget_entries
from kvlab.reference.simulator.judge import EXACT
from kvlab.reference.simulator.sizes import HARDWARE, SHAPES
from kvlab.reference.transformer import load_tokenizer as tokenizer_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PROCESSORS = os.cpu_count() or 1
LISTS = {"engines": INSTALL, "flags": FLAGS, "formats": FORMATS, "papers": PAPERS}
LISTS |= {"gpus": HARDWARE, "shapes": SHAPES, "exact": (str(EXACT),)}
"""What ``options.toml`` names in braces."""


@dataclass(frozen=True)
class Loading:
    """How a model is loaded."""

    device: str | None = None
    dtype: str = "auto"
    parallel: str | None = None


USUAL = Loading()


def add_commands(app: Typer, group: str = "", **commands: Callable[..., None]) -> None:
    """Add commands, by their names, to the command line or one of its groups."""
    said = read_data("commands/options.toml")
    for name, command in commands.items():
        whole = f"{group} {name}".strip()
        known = said["every"] | said.get(group, {}) | said.get(whole, {})
        app.command(name, cls=StoppableCommand)(described(command, known, LISTS))


def words(text: str) -> tuple[str, ...]:
    """Return what commas and blanks separate, without repetitions."""
    return tuple(dict.fromkeys(text.replace(",", " ").split()))


def read_methods(text: str) -> tuple[str, ...]:
    """Return the specifications in an option, which ``;`` or blanks separate."""
    specs = text.replace(";", " ").split()
    if not specs:
        raise ValueError("methods must name at least one method")
    say_notes(specs)
    return tuple(specs)


def say_notes(specs: Iterable[str]) -> None:
    """Say what has to be known of specifications; each note once per process, on stderr."""
    say(registry.notes(specs))


def say(notes: Iterable[str]) -> None:
    """Say what has to be known before a run; each note once per process, on stderr."""
    for note in notes:
        _say(note)


@cache
def _say(note: str) -> None:
    errors.print(f"note: {note}", markup=False, highlight=False)


def read_budgets(given: list[str] | None, *default: str) -> tuple[str, ...]:
    """Return the budgets in an option, each checked, or those of the command."""
    found = words(" ".join(given or ()))
    for text in found:
        budget_entries(text, 100)
    return found or default


def read_prompt(text: str | None, file: Path | None, model: str | Path | None) -> str:
    """Return the text to continue, unchanged: nothing is stripped, no chat template is applied.

    Without text and file, an embedded model continues a problem of its task.
    """
    if text is not None and file is not None:
        raise ValueError("--prompt and --prompt-file cannot both be given")
    if text is not None:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"--prompt = {text!a} must be UTF-8 text") from None
        return _writable(text, model)
    if file is None:
        if model is not None and str(model) not in EMBEDDED:
            raise ValueError("--prompt or --prompt-file must be given with --model")
        task = find_task(EMBEDDED[str(model or "reasoner")])
        return task.problems(1, seed=0)[0].prompt
    return _writable(read_text("prompt_file", file), model)


def _writable(text: str, model: str | Path | None) -> str:
    """Return a text; ValueError if it has words that an embedded model's tokenizer lacks."""
    name = str(model or "reasoner")
    if name in EMBEDDED:
        known = tokenizer_of(embedded_directory(name)).get_vocab()
        if strange := [x for x in text.replace("\n", " ").split(" ") if x and x not in known]:
            raise ValueError(
                f"prompt holds {strange[0]!r}, which the model {name} has no token for: it reads "
                f"only texts of its task ({EMBEDDED[name]}). For English: --model smollm2"
            )
    return text


def read_text(name: str, file: Path) -> str:
    """Return the text of a UTF-8 file, unchanged."""
    if not file.exists():
        raise FileNotFoundError(f"{name} = {file} does not exist")
    if not file.is_file():
        raise ValueError(f"{name} = {file} must be a file")
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{name} = {file} must be UTF-8 text") from None


def check_output(name: str, file: Path | None) -> None:
    """Refuse a file that cannot be written, before anything is computed for it."""
    if file is None:
        return
    if file.is_dir():
        raise ValueError(f"{name} = {file} is a directory")
    if file.exists() and not file.is_file():
        raise ValueError(f"{name} = {file} is no regular file")
    if file.is_symlink() and not file.exists():
        raise ValueError(f"{name} = {file} is a link to {file.readlink()}, which does not exist")
    try:
        with folder_of(file), TemporaryFile(dir=file.parent):
            if file.exists():
                file.open("ab").close()
    except OSError as error:
        raise ValueError(
            f"{name} = {file} cannot be written: {error.strerror}; choose a path below a directory "
            "that you may write to"
        ) from None


def load_tokenizer(model: str | None) -> "PreTrainedTokenizerBase":
    """Load a tokenizer alone, with which a command can refuse what does not fit."""
    name = model or "reasoner"
    model_location(name)  # before libraries are loaded for it
    with working(f"loading the tokenizer of {name}"):
        from kvlab.fast.models import loading

        return loading.load_tokenizer_of(name)


def load_model(model: str | None, device: str | None, dtype: str = "auto") -> "PreTrainedModel":
    """Load a model, or the embedded reasoner, and say so."""
    with working(f"loading {model or 'the embedded reasoner'}"):
        from kvlab.fast.models import loading

        return loading.load(model or "reasoner", dtype, device)[0]
