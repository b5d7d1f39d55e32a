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

from kvlab.reference.checks import Limit, check_choice, check_limits
from kvlab.reference.files import Divergence
from kvlab.reference.granularity import (
    KVHeads,
    OfPages,
    OneForAllHeads,
    OneForAllLayers,
    Pages,
    PageScore,
    WholePages,
    with_score,
)
from kvlab.reference.policy import Budget, Edges, Entries, Full, Policy, Protect, Schedule, Score
from kvlab.reference.precisions import precisions
from kvlab.reference.selection import budget_entries

ANY_BUDGET = 10**9
"""A budget with which every method can be built, to ask what no budget changes."""


@dataclass(frozen=True)
class Example:
    """Options under which a method evicts often on streams of 36 tokens.

    The tests shared by all methods run it, and test vectors are made of it.
    """

    spec: str
    """The method in registry syntax."""
    budget: int | None = 12
    """Entries that are kept at most; None where the method sizes itself."""
    shared: bool = True
    """Whether the tests that all methods share run it; if it takes a budget, it must work with any
    budget of at least six entries."""


class Method(ABC):
    """Hyper-parameters of one method, as fields of a frozen dataclass.

    Field names are the option names of the registry syntax ``name@field=value``. A file that
    defines a method says everything about it; the defaults below are right for every method.
    """

    name: ClassVar[str]
    source: ClassVar[str] = "no paper"
    """Paper, arXiv identifier, sections."""
    published: ClassVar[str] = "unpublished"
    """Year and month, as in ``2023-06``: tables list methods in this order. Empty for controls,
    which come first."""
    equations: ClassVar[tuple[str, ...]] = ()
    """Tags of the equations that the file implements, each tagged once in its code."""
    variants: ClassVar[Mapping[str, str]] = {}
    """Names of the papers' ablations and variants, and what they are in registry syntax."""
    divergences: ClassVar[tuple[Divergence, ...]] = ()
    """Where paper, code and re-implementations differ; of kvlab's own methods ``divergences.toml``
    beside the method's file says it."""
    budgeted: ClassVar[bool] = True
    """Whether a budget has to be given; the others state their memory by their own parameters.
    Where an option decides, `needs_budget` is overridden."""
    examples: ClassVar[tuple[Example, ...]] = ()
    """Cases for tests and test vectors, main interpretation first; if empty, the defaults."""
    compared: ClassVar[tuple[str, ...]] = ()
    """Specifications for comparisons on texts of some 200 tokens, as those of the embedded model;
    empty: the method with its defaults."""
    seeded_by: ClassVar[str] = "seed"
    """The option, if there is one of this name, that a run gives its seed unless it is stated."""
    limits: ClassVar[Mapping[str, Limit]] = {}
    """Options that have a least value, or that and a largest one; ``odd``: kernels of a pooling."""
    before_another: ClassVar["type[Wrapper] | None"] = None
    """What the method's name means before another method, as in ``random:h2o``."""

    def __post_init__(self) -> None:
        check_options(type(self), self.name, vars(self))
        check_limits(self, self.limits)

    @property
    def needs_budget(self) -> bool:
        """Whether a budget has to be given under these options."""
        return self.budgeted

    @property
    def parts(self) -> tuple["Method", ...]:
        """The method and, behind it, those that it wraps."""
        return (self,)

    @property
    def note(self) -> str:
        """What the specification does not say and a reader has to know."""
        return ""

    @property
    def timing(self) -> Schedule:
        """When it evicts, under a budget of any size."""
        return self.policy(ANY_BUDGET if self.needs_budget else None).schedule

    @classmethod
    def tracker(cls, threshold: float) -> Score | None:
        """Return a score that observes every method's run for a recording; None for most methods.

        An entry counts as activated from the attention ``threshold`` on.
        """
        return None

    def composed(
        self, score: Score, schedule: Schedule, protect: Protect, budget: int | None
    ) -> Policy:
        """Return a policy of this name that keeps a budget of entries; ValueError without one."""
        kept = Entries(require_budget(self.name, budget))
        return Policy(self.name, score, schedule, protect, kept)

    @abstractmethod
    def policy(self, budget: int | None) -> Policy:
        """Compose the four answers for a budget of entries per KV head and layer.

        Raises:
            ValueError: if a budget is missing or not allowed, or too small for what is protected.
        """


@dataclass(frozen=True)
class Wrapper(Method):
    """A method applied to the score of another, as in ``caote:h2o``."""

    base: Method

    @property
    def parts(self) -> tuple[Method, ...]:
        return (self, *self.base.parts)

    @property
    def note(self) -> str:
        return self.base.note


@dataclass(frozen=True)
class CommonOptions(Wrapper):
    """A method with the options of every method: what is protected, what is evicted together."""

    name = "every method"
    limits = {"page": 1}

    sinks: int = 0
    """First tokens of the text that are protected."""
    recent: int = 0
    """Newest entries that are protected."""
    pin_prompt: bool = False
    """Whether all tokens of the prompt are protected."""
    protected: str = "own"
    """What is protected instead of the method's own choice (``own``): ``nothing``, or ``first4``,
    ``newest16``, ``prompt``, joined by ``+``; ``newest50%``: of the budget, rounded up."""
    page: int = 1
    """Consecutive positions that are evicted together, as from an engine's block table."""
    page_score: PageScore = "mean"
    """How the scores of a page's entries are joined; sums rank complete pages as means do."""
    kv_heads: KVHeads = "head"
    """Who decides: each KV head; all heads of a ``layer`` by their mean score; the ``union`` of
    the heads' best candidates, which all heads keep; all heads and layers of the ``model`` by their
    mean score."""
    precision: str = "full"
    """The code in which every entry is stored once its block has been attended: a name of
    `kvlab.reference.precisions`; ``full``: as the method says."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(precisions(), precision=self.precision)

    def policy(self, budget: int | None) -> Policy:
        policy = self.base.policy(budget)
        if self.protected != "own":
            edges = protection(self.protected, policy.budget)
            policy = replace(policy, protect=policy.protect.replaced(edges))
        edges = Edges(self.sinks, self.recent, self.pin_prompt)
        policy = replace(policy, protect=policy.protect.with_edges(edges))
        if self.kv_heads != "head":
            join = "union" if self.kv_heads == "union" else "layer"
            score: Score = OneForAllHeads(policy.score, join)
            if self.kv_heads == "model":
                self._check_all_layers(policy)
                score = OneForAllLayers(score)
            policy = with_score(policy, score)
        if self.page != 1:
            policy = self._in_pages(policy)
        if self.precision == "full":
            return policy
        if not isinstance(policy.precision, Full):
            raise ValueError(
                f"precision = {self.precision!r} must be 'full' for "
                f"{self.parts[-1].name}, which has a precision of its own"
            )
        return replace(policy, precision=precisions()[self.precision])

    def _check_all_layers(self, policy: Policy) -> None:
        alike = type(policy.budget) is Entries and isinstance(policy.precision, Full)
        if not alike or policy.evict_before_attend:
            raise ValueError(
                f"kv_heads = 'model' must be 'head', 'layer' or 'union' for {self.base.name}: only "
                "methods that evict down to a budget of entries after attention, and quantise "
                "nothing, can keep the same entries in all layers"
            )

    def _in_pages(self, policy: Policy) -> Policy:
        if type(policy.budget) is not Entries or not isinstance(policy.precision, Full):
            raise ValueError(
                f"page = {self.page} must be 1 for {self.base.name}: only methods that evict down "
                "to a budget of entries, and quantise nothing, can evict whole pages"
            )
        return replace(
            policy,
            score=OfPages(policy.score, self.page, self.page_score),
            protect=WholePages(policy.protect, self.page),
            budget=Pages(policy.budget.budget, self.page),
        )


def protection(written: str, budget: Budget) -> Edges:
    """Return the protection that the option ``protected`` names; ValueError if it names none."""
    edges = Edges()
    for part in written.split("+"):
        if not (found := re.fullmatch(r"(first|newest)(\d+%?)|nothing|prompt", part)):
            raise ValueError(
                f"protected = {written!r} must be 'own', 'nothing', or first4, newest16, prompt or "
                "shares as newest50%, joined by +"
            )
        edge, amount = found.groups()
        if edge is None:
            edges = replace(edges, prompt=edges.prompt or part == "prompt")
            continue
        if amount.endswith("%"):
            if not isinstance(budget, Entries):
                raise ValueError(f"protected = {written!r} must be entries: there is no budget")
            if not 0 < int(amount[:-1]) <= 100:
                raise ValueError(
                    f"protected = {written!r} must have shares from 1 % to 100 % of the budget, "
                    f"not {part}"
                )
            amount = budget_entries(amount, budget.budget)
        edges = replace(edges, **{"sinks" if edge == "first" else "recent": int(amount)})
    return edges


KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a word",
    type(None): "none",
}
"""Types of options, as messages name them."""


def check_options(owner: type, name: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError or TypeError unless fields of a dataclass may have the values of options.

    Errors call the dataclass ``name``.
    """
    for option, value in options.items():
        hint = type_hints(owner)[option]
        if typing.get_origin(hint) is Literal:
            check_choice(typing.get_args(hint), **{option: value})
        elif not _accepts(hint, value):
            expected = " or ".join(KINDS[kind] for kind in typing.get_args(hint) or (hint,))
            raise TypeError(f"{option} = {value!r} of {name} must be {expected}")


@cache
def type_hints(owner: type) -> Mapping[str, Any]:
    """Return the types of a dataclass's options, by name."""
    hints = typing.get_type_hints(owner)
    return {field.name: hints[field.name] for field in fields(owner)}  # type: ignore[arg-type]


def _accepts(hint: Any, value: Any) -> bool:
    kind = typing.get_origin(hint) or hint
    if kind in (typing.Union, types.UnionType):
        return any(_accepts(part, value) for part in typing.get_args(hint))
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def require_budget(name: str, budget: int | None) -> int:
    """Return the budget; ValueError if none was given or it is below one entry."""
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
    """Return what stands below the fields of a dataclass, inherited ones included, by name."""
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
