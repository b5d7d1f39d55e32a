"""Options that several commands have, each stated once; what they hold, and how it is refused."""

import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated

from typer import Option

from kvlab.fast.lab.evaluate.tasks import find_task
from kvlab.fast.lab.files import folder_of
from kvlab.fast.lab.terminal import errors, working
from kvlab.fast.models import model_location
from kvlab.reference import methods as registry
from kvlab.reference.models import EMBEDDED
from kvlab.reference.selection import budget_entries

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

METHODS = Option("--methods", "--method", help="Registry syntax, separated by ';' or blanks.")
Methods = Annotated[str, METHODS]
Budgets = Annotated[
    list[str] | None,
    Option(
        "--budgets", "--budget", help="Entries or percent, separated by commas; may be repeated."
    ),
]
Controls = Annotated[
    bool,
    Option(
        help="Run the matched controls, too: random eviction under each method's own protection, "
        "schedule and budget."
    ),
]
BlockSize = Annotated[
    int | None, Option(help="Read prompts in blocks of so many tokens; default: at once.")
]
Feed = Annotated[
    str,
    Option(
        help="How tokens are rated: fed one by one as if written (steps), or as a prompt (blocks)."
    ),
]
Workers = Annotated[int, Option(min=1, help="Processes.")]
PROCESSORS = os.cpu_count() or 1
Problems = Annotated[int, Option(help="Held-out problems.")]
Seed = Annotated[int, Option(help="Seed of the held-out problems.")]
Threshold = Annotated[float, Option(help="Attention that counts as an activation.")]
ReferenceModel = Annotated[Path | None, Option(help="Short name (kvlab models list) or directory.")]
Model = Annotated[
    str | None,
    Option(help="Short name (kvlab models list), directory, or owner/name@revision on the hub."),
]
Device = Annotated[
    str | None,
    Option(
        help="Device, as PyTorch names it; default: a GPU if there is one. compare, needle and "
        "perplexity share out several, which commas separate, to processes."
    ),
]
Dtype = Annotated[str, Option(help="auto, float64, float32, bfloat16 or float16.")]
Parallel = Annotated[str | None, Option(help="layers: over all devices.")]
Chat = Annotated[bool, Option("--chat", help="Apply the chat template.")]
Prompt = Annotated[
    str | None, Option(help="Text to continue; default, without --model: a problem.")
]
PromptFile = Annotated[Path | None, Option(help="UTF-8 file with the text to continue.")]
MaxNewTokens = Annotated[int, Option(help="Tokens to write at most.")]
Json = Annotated[bool, Option("--json", help="Print JSON instead of tables.")]


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
        return text
    if file is None:
        if model is not None and str(model) not in EMBEDDED:
            raise ValueError("--prompt or --prompt-file must be given with --model")
        task = find_task(EMBEDDED[str(model or "reasoner")])
        return task.problems(1, seed=0)[0].prompt
    return read_text("prompt_file", file)


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
