"""Commands take their options from a dataclass each; and the groups of options that many share.

The settings of a command are a frozen dataclass with keywords only, built of the groups below; the
command is a function of such settings:

    @dataclass(frozen=True, kw_only=True)
    class Settings(Methods, Budgets, Json):
        methods: str = "h2o tova"
        trace: Annotated[Path, typer.Argument()]
        '''Trace, as `kvlab trace` writes it.'''
        gap: int = 16
        '''Tokens without activation before an entry regains importance.'''

    @command
    def simulate(settings: Settings) -> None:
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
from collections.abc import Callable
from copy import copy
from dataclasses import MISSING, dataclass, fields
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin

import typer

from kvlab.fast.lab.commands.options import read_methods, words
from kvlab.fast.lab.terminal import working
from kvlab.reference.method import docstrings_below
from kvlab.reference.models import reasoner_directory
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


@dataclass(frozen=True, kw_only=True)
class Json:
    """Whether tables are wanted as data."""

    json: bool = False
    """Print JSON instead of tables."""


@dataclass(frozen=True, kw_only=True)
class Methods:
    """Methods to compare."""

    methods: Annotated[str, typer.Option("--methods", "--method")]
    """Registry syntax, separated by ';' or blanks."""

    @property
    def specs(self) -> tuple[str, ...]:
        """The specifications, at least one."""
        return read_methods(self.methods)


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """Budgets under which to compare them."""

    budgets: Annotated[list[str] | None, typer.Option("--budgets", "--budget")] = None
    """Entries or percent, separated by commas; may be repeated."""

    def asked(self, *default: str) -> tuple[str, ...]:
        """Return the budgets, each checked, or those of the command."""
        found = words(" ".join(self.budgets or ()))
        for text in found:
            budget_entries(text, 100)
        return found or default


@dataclass(frozen=True, kw_only=True)
class BlockSize:
    """How prompts are read."""

    block_size: int | None = None
    """Read prompts in blocks of so many tokens; default: at once."""


@dataclass(frozen=True, kw_only=True)
class Feed:
    """How tokens whose probability counts are read."""

    feed: str = "steps"
    """How tokens are rated: fed one by one as if written (steps), or as a prompt (blocks)."""


@dataclass(frozen=True, kw_only=True)
class Workers:
    """How many processes compute."""

    workers: Annotated[int, typer.Option(min=1)] = os.cpu_count() or 1
    """Processes."""


@dataclass(frozen=True, kw_only=True)
class Problems:
    """Problems that no model was trained on."""

    problems: int = 16
    """Held-out problems."""
    seed: int = 0
    """Seed of the held-out problems."""


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """When an entry is important."""

    threshold: float = 0.01
    """Attention that counts as an activation."""


@dataclass(frozen=True, kw_only=True)
class ReferenceModel:
    """A model for the reference."""

    model: Path | None = None
    """Short name (kvlab models list) or directory."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model for PyTorch, and where it runs."""

    model: str | None = None
    """Short name (kvlab models list), directory, or id on the hub."""
    device: str | None = None
    """Device, as PyTorch names it; default: a GPU if there is one."""

    def load(
        self, dtype: str = "auto", parallel: str | None = None
    ) -> tuple["PreTrainedModel", "PreTrainedTokenizerBase"]:
        """Load the model, or the embedded reasoner, and say so."""
        with working(f"loading {self.model or 'the embedded reasoner'}"):
            from kvlab.fast.models import loading

            return loading.load(self.model or reasoner_directory(), dtype, self.device, parallel)


@dataclass(frozen=True, kw_only=True)
class TypedModel(Model):
    """A model for PyTorch, where it runs, and in which number format."""

    dtype: str = "auto"
    """auto, float64, float32, bfloat16 or float16."""


@dataclass(frozen=True, kw_only=True)
class ShardedModel(TypedModel):
    """A model for PyTorch that may be spread over several devices."""

    parallel: str | None = None
    """layers: over all devices."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A text to continue, and for how long."""

    prompt: str | None = None
    """Text to continue; default, without --model: a problem."""
    prompt_file: Path | None = None
    """UTF-8 file with the text to continue."""
    max_new_tokens: int = 128
    """Tokens to write at most."""
