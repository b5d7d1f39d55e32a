"""Commands take their options from a dataclass each; groups of options that many share; checks.

The settings of a command are a dataclass, built of the groups below; the command is a function of
such settings:

    class _Settings(Methods, Budgets, Json):
        methods: str = "h2o tova"
        trace: Annotated[Path, typer.Argument()]
        '''Trace, as `kvlab trace` writes it.'''
        gap: int = 16
        '''Tokens without activation before an entry regains importance.'''

    @command
    def simulate(settings: _Settings) -> None:
        '''Ask what methods would have kept of a recorded generation.'''

Name, type and default of a field are those of its option, and the docstring below the field is the
help text. A truth that is false by default is a plain switch; any other has its ``--no-``. The
command's own options stand first in the help, then those of its groups, in the order of the bases.
Where that is not enough, the type is annotated as typer has it (an argument, another name, bounds,
a help text that is computed). A field that is defined again keeps help text and annotation. A test
calls ``simulate(gap=3)``: keywords are the options.
"""

import ast
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import MISSING, dataclass, fields
from functools import cache, wraps
from pathlib import Path
from tempfile import TemporaryFile
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
)

import typer

from kvlab.fast.lab.evaluate.controls import explained, gains_table
from kvlab.fast.lab.evaluate.pairs import Measure, Test
from kvlab.fast.lab.evaluate.tasks import find_task
from kvlab.fast.lab.files import folder_of
from kvlab.fast.lab.points import Row
from kvlab.fast.lab.tables import Column
from kvlab.fast.lab.terminal import (
    Report,
    errors,
    print_caption,
    print_json,
    print_line,
    print_table,
    printing_rows,
    reporting,
    working,
)
from kvlab.fast.models import model_location
from kvlab.reference import methods as registry
from kvlab.reference.method import docstrings_below
from kvlab.reference.models import EMBEDDED
from kvlab.reference.selection import budget_entries

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


S = TypeVar("S")


def command(function: Callable[[S], None]) -> Callable[..., None]:
    """Return a function for typer, whose options are the fields of the settings it takes."""
    (taken,) = inspect.signature(function).parameters.values()

    @wraps(function)
    def run(**options: Any) -> None:
        function(taken.annotation(**options))

    parameters = _parameters(taken.annotation)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _parameters(settings: type) -> list[inspect.Parameter]:
    """Return the parameters of a command as typer reads them, those of groups after its own."""
    found: dict[str, inspect.Parameter] = {}
    defaults = {each.name: each.default for each in fields(settings)}
    for group in reversed(settings.__mro__):
        own = {}
        for name, hint in inspect.get_annotations(group).items():
            kind, *given = get_args(hint) if get_origin(hint) is Annotated else (hint,)
            known = given or get_args(found[name].annotation)[1:] if name in found else given
            default = inspect.Parameter.empty if defaults[name] is MISSING else defaults[name]
            names = (f"--{name.replace('_', '-')}",) if kind is bool and default is False else ()
            option = copy(known[0]) if known else typer.Option(*names)
            if not given or option.help is None:
                option.help = _meanings(group.__module__)[group.__name__].get(name, option.help)
            own[name] = inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation=Annotated[kind, option],
            )
        found = own | {name: each for name, each in found.items() if name not in own}
    return list(found.values())


@cache
def _meanings(module: str) -> dict[str, dict[str, str]]:
    """Return what stands below the fields of each class of a module, which is read once."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    classes = [each for each in tree.body if isinstance(each, ast.ClassDef)]
    return {each.name: docstrings_below(each) for each in classes}


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Group:
    """Options; a class below this one is a frozen dataclass with keywords only."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


class Json(Group):
    """Whether tables are wanted as data."""

    json: bool = False
    """Print JSON instead of tables."""

    @contextmanager
    def printing(self, columns: Sequence[Column], title: str = "") -> Iterator[tuple[Report, Any]]:
        """Show progress and print rows: return what is told how far it is, and told each row."""
        with (
            reporting(transient=True) as report,
            printing_rows(columns, title, not self.json) as tell,
        ):
            yield report, tell

    def end(self, rows: Iterable[Row], data: Any, caption: str = "", written: str = "") -> None:
        """Print the data, or what follows the rows; exit with code 1 if a method failed."""
        if self.json:
            print_json(data)
        else:
            if caption:
                print_caption(caption)
            if written:
                print_line(written)
        if any(row.failed for row in rows):
            raise typer.Exit(1)


class Methods(Group):
    """Methods to compare."""

    methods: Annotated[str, typer.Option("--methods", "--method")]
    """Registry syntax, separated by ';' or blanks."""

    @property
    def specs(self) -> tuple[str, ...]:
        """The specifications, at least one."""
        return read_methods(self.methods)


class Budgets(Group):
    """Budgets under which to compare them."""

    budgets: Annotated[list[str] | None, typer.Option("--budgets", "--budget")] = None
    """Entries or percent, separated by commas; may be repeated."""

    def asked(self, *default: str) -> tuple[str, ...]:
        """Return the budgets, each checked, or those of the command."""
        found = words(" ".join(self.budgets or ()))
        for text in found:
            budget_entries(text, 100)
        return found or default


class Controls(Group):
    """Whether methods are compared with random eviction, each with its own."""

    controls: bool = True
    """Run the matched controls, too: random eviction under each method's own protection, schedule
    and budget."""

    def print_gains(self, gains: Sequence[Test], measure: Measure) -> None:
        """Print what methods gain over their controls, if any control ran."""
        if gains:
            if (table := gains_table(gains, measure)).rows:
                print_table(table)
            print_caption(explained(gains))


class BlockSize(Group):
    """How prompts are read."""

    block_size: int | None = None
    """Read prompts in blocks of so many tokens; default: at once."""


class Feed(Group):
    """How tokens whose probability counts are read."""

    feed: str = "steps"
    """How tokens are rated: fed one by one as if written (steps), or as a prompt (blocks)."""


class Workers(Group):
    """How many processes compute."""

    workers: Annotated[int, typer.Option(min=1)] = os.cpu_count() or 1
    """Processes."""


class Problems(Group):
    """Problems that no model was trained on."""

    problems: int = 16
    """Held-out problems."""
    seed: int = 0
    """Seed of the held-out problems."""


class Threshold(Group):
    """When an entry is important."""

    threshold: float = 0.01
    """Attention that counts as an activation."""


class ReferenceModel(Group):
    """A model for the reference."""

    model: Path | None = None
    """Short name (kvlab models list) or directory."""


class Model(Group):
    """A model for PyTorch, and where it runs."""

    model: str | None = None
    """Short name (kvlab models list), directory, or id on the hub."""
    device: str | None = None
    """Device, as PyTorch names it; default: a GPU if there is one."""

    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """Load the tokenizer alone, with which a command can refuse what does not fit."""
        name = self.model or "reasoner"
        model_location(name)  # before libraries are loaded for it
        with working(f"loading the tokenizer of {name}"):
            from kvlab.fast.models import loading

            return loading.load_tokenizer_of(name)

    def load(self, dtype: str = "auto", parallel: str | None = None) -> "PreTrainedModel":
        """Load the model, or the embedded reasoner, and say so."""
        with working(f"loading {self.model or 'the embedded reasoner'}"):
            from kvlab.fast.models import loading

            network, _ = loading.load(self.model or "reasoner", dtype, self.device, parallel)
        return network


class TypedModel(Model):
    """A model for PyTorch, where it runs, and in which number format."""

    dtype: str = "auto"
    """auto, float64, float32, bfloat16 or float16."""


class ShardedModel(TypedModel):
    """A model for PyTorch that may be spread over several devices."""

    parallel: str | None = None
    """layers: over all devices."""


class Prompt(Group):
    """A text to continue, and for how long."""

    prompt: str | None = None
    """Text to continue; default, without --model: a problem."""
    prompt_file: Path | None = None
    """UTF-8 file with the text to continue."""
    max_new_tokens: int = 128
    """Tokens to write at most."""


# --- what options hold ---------------------------------------------------------------------------


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
    for note in registry.notes(specs):
        _say(note)


@cache
def _say(note: str) -> None:
    errors.print(f"note: {note}", markup=False, highlight=False)


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
