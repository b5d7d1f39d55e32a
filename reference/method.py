"""A method: hyper-parameters that make a policy, and everything that others must know about it."""

import ast
import inspect
import re
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from itertools import pairwise
from textwrap import dedent
from typing import Any, ClassVar, Literal

from kvlab.reference.checks import check_choice
from kvlab.reference.policy import Edges, Policy


@dataclass(frozen=True)
class Divergence:
    """One point on which the paper, its authors' code and popular re-implementations differ."""

    topic: str
    paper: str
    default: str
    """What kvlab does."""
    elsewhere: str = "no code"
    """What the authors' code and re-implementations do."""
    option: str = "none"
    """The options, in registry syntax, that give the other readings; or words."""

    @property
    def specifications(self) -> tuple[str, ...]:
        """The options that can be typed as they stand."""
        return tuple(SPECIFICATION.findall(self.option))


SPECIFICATION = re.compile(r"\w+(?::\w+)?@\w+=[\w.]+(?:,\w+=[\w.]+)*|\w+:\w+")
"""``name@option=value,...``, or a wrapper and its base."""


@dataclass(frozen=True)
class Example:
    """Options under which a method decides often on streams of three dozen tokens.

    The tests that hold every method run it, and test vectors are made of it.
    """

    spec: str
    """In registry syntax."""
    budget: int | None = 12
    """Entries that may stay; None where the method sizes itself."""
    groups: tuple[str, ...] | None = None
    """Groups of test vectors; None: those that suit the first example of a method, or an option."""
    also: tuple[str, ...] = ()
    """Further groups."""
    ties: bool = False
    """Whether equal scores decide in every group, as where a score counts steps."""
    shared: bool = True
    """Whether the tests that hold every method run it, where it takes one with any budget from six
    entries on."""


class Method(ABC):
    """Hyper-parameters of one method, as fields of a frozen dataclass.

    Field names are the option names of the registry syntax ``name@field=value``. A file that
    defines a method says everything about it; the defaults below are right for every method.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    """Paper, arXiv identifier, sections."""
    published: ClassVar[str] = "unpublished"
    """Year and month, as in ``2023-06``: tables list methods in this order."""
    equations: ClassVar[tuple[str, ...]] = ()
    """Tags of the equations that the file implements, each tagged once in its code."""
    variants: ClassVar[Mapping[str, str]] = {}
    """Names of the papers' ablations and variants, and what they are in registry syntax."""
    divergences: ClassVar[tuple[Divergence, ...]] = ()
    budgeted: ClassVar[bool] = True
    """Whether a budget has to be given; the others state their memory by their own parameters."""
    examples: ClassVar[tuple[Example, ...]] = ()
    """For tests and test vectors, the main reading first; empty: the method with its defaults."""
    compared: ClassVar[tuple[str, ...]] = ()
    """Specifications for comparisons on texts of some 200 tokens, as those of the embedded model;
    empty: the method with its defaults."""

    def __post_init__(self) -> None:
        for option, value in vars(self).items():
            check_option(type(self), option, value)

    @abstractmethod
    def policy(self, budget: int | None) -> Policy:
        """Compose the four answers for a budget of entries per KV head and layer.

        Raises:
            ValueError: if a budget is missing or not allowed, or too small for what is protected.
        """


@dataclass(frozen=True)
class Wrapper(Method):
    """A method around the score of another, as in ``caote:h2o``."""

    base: Method

    @property
    def innermost(self) -> Method:
        """The method inside of all wrappers."""
        return self.base.innermost if isinstance(self.base, Wrapper) else self.base


@dataclass(frozen=True)
class WithSafe(Wrapper):
    """A method under which further entries are safe: options of every method."""

    name = "every method"

    sinks: int = 0
    """First tokens of the text that are safe."""
    recent: int = 0
    """Newest entries that are safe."""
    pin_prompt: bool = False
    """Whether all tokens of the prompt are safe."""

    def policy(self, budget: int | None) -> Policy:
        policy = self.base.policy(budget)
        edges = Edges(self.sinks, self.recent, self.pin_prompt)
        return replace(policy, protect=policy.protect.also(edges))


def check_option(method: type[Method], option: str, value: Any) -> None:
    """Raise ValueError or TypeError unless an option may have a value."""
    hint = type_hints(method)[option]
    if typing.get_origin(hint) is Literal:
        check_choice(typing.get_args(hint), **{option: value})
    elif not _accepts(hint, value):
        expected = getattr(hint, "__name__", str(hint))
        raise TypeError(f"{option} = {value!r} of {method.name} must be {expected}")


@cache
def type_hints(method: type[Method]) -> Mapping[str, Any]:
    """Return the types of a method's options, by name."""
    hints = typing.get_type_hints(method)
    return {field.name: hints[field.name] for field in fields(method)}  # type: ignore[arg-type]


def _accepts(hint: Any, value: Any) -> bool:
    kind = typing.get_origin(hint) or hint
    if kind in (typing.Union, types.UnionType):
        return any(_accepts(part, value) for part in typing.get_args(hint))
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def require_budget(name: str, budget: int | None) -> int:
    """Return the budget.

    Raises:
        ValueError: if none was given or it is below one entry.
    """
    if budget is None:
        raise ValueError(f"{name} needs a budget: a number of entries, at least 1")
    if budget < 1:
        raise ValueError(f"budget = {budget} must be at least 1")
    return budget


def refuse_budget(name: str, budget: int | None) -> None:
    """Raise ValueError if a budget was given to a method that evicts nothing."""
    if budget is not None:
        raise ValueError(f"{name} evicts nothing and takes no budget, got budget = {budget}")


def field_docstrings(kind: type) -> dict[str, str]:
    """Return what stands below the fields of a dataclass, inherited ones included, by name.

    Raises:
        OSError: if its source is not to be had.
    """
    found = {}
    for each in reversed(kind.__mro__):
        if not is_dataclass(each):
            continue
        (definition,) = ast.parse(dedent(inspect.getsource(each))).body
        assert isinstance(definition, ast.ClassDef)
        for pair in pairwise(definition.body):
            match pair:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    found[name] = " ".join(text.split())
    return found
