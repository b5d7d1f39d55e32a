"""The registry: method names, and the syntax in which compositions are written.

``name``, ``wrapper:name``, ``name@option=value,option=value``: ``"lazy_eviction"``,
``"caote:snapkv"``, ``"h2o@every=25"``, ``"caote:h2o@every=25,recent=8"``. Options of a wrapped
method are written behind the same ``@``. An option is a field of the method's dataclass, or one of
`OF_EVERY_METHOD`, which fit every method: ``"tova@recent=16"``, ``"caote:h2o@pin_prompt=true"``.

A method is found by itself: the registry looks through the modules of this package, and through
the modules and Python files that the environment variable ``KVLAB_METHODS`` names, separated as in
``PATH``. `register` adds a method that is defined elsewhere, such as in a notebook.
"""

import importlib
import inspect
import os
import pkgutil
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, get_args

from kvlab.reference.files import Divergence, divergences_in, import_file
from kvlab.reference.method import (
    CommonOptions,
    Example,
    Method,
    Wrapper,
    check_options,
    type_hints,
)
from kvlab.reference.policy import Policy

OUTSIDE = "KVLAB_METHODS"
"""Environment variable that names modules and files with further methods."""

OF_EVERY_METHOD = {
    field.name: field.default for field in fields(CommonOptions) if field.name != "base"
}
"""Options of every method, with their defaults."""

MethodClass = TypeVar("MethodClass", bound=type[Method])

_registered: dict[str, type[Method]] = {}


# --- discovery -----------------------------------------------------------------------------------


class Methods(Mapping[str, type[Method]]):
    """Methods by name, in the order in which they were published; found when first asked for."""

    def __init__(self, kind: type[Method], other_than: tuple[type[Method], ...] = ()) -> None:
        self.kind, self.other_than = kind, other_than

    def found(self) -> dict[str, type[Method]]:
        """Return the methods of this kind."""
        discover()
        return _in_order(self.kind, self.other_than, tuple(_registered.values()))

    def __getitem__(self, name: str) -> type[Method]:
        return self.found()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.found())

    def __len__(self) -> int:
        return len(self.found())


@lru_cache(maxsize=2)
def _in_order(
    kind: type[Method], other_than: tuple[type[Method], ...], registered: tuple[type[Method], ...]
) -> dict[str, type[Method]]:
    suitable = (
        method
        for method in registered
        if issubclass(method, kind) and not issubclass(method, other_than)
    )
    ordered = sorted(suitable, key=lambda method: (method.published, method.name))
    return {method.name: method for method in ordered}


METHODS = Methods(Method, other_than=(Wrapper,))
"""Methods that stand alone."""

WRAPPERS = Methods(Wrapper)
"""Methods that wrap the score of another: ``caote:h2o``."""


def register(method: MethodClass) -> MethodClass:
    """Add a method to the registry; also a decorator of its class.

    A class that is defined anew, as by a notebook cell that is run again, replaces the older one.

    Raises:
        TypeError: if it is no method.
        ValueError: if its name is no word, or another method or variant has it.
    """
    if not (inspect.isclass(method) and issubclass(method, Method)):
        raise TypeError(f"method = {method!r} must be a class that derives from Method")
    name = getattr(method, "name", None)
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError(
            f"name = {name!r} of {method.__qualname__} must be a word of lower-case letters, "
            "digits and underscores"
        )
    for other in _registered.values():
        if (other.__module__, other.__qualname__) == (method.__module__, method.__qualname__):
            continue
        if clash := {name, *method.variants} & {other.name, *other.variants}:
            raise ValueError(
                f"method {min(clash)!r} is defined twice: by {other.__qualname__} of "
                f"{_source_of(other)} and by {method.__qualname__} of {_source_of(method)}"
            )
    _registered[name] = method
    return method


def _source_of(method: type[Method]) -> str:
    module = inspect.getmodule(method)
    return getattr(module, "__file__", None) or method.__module__


@cache
def discover() -> None:
    """Import the modules of this package and the ones that `OUTSIDE` names; register their methods.

    Raises:
        ValueError: if a module or file that `OUTSIDE` names cannot be imported or defines no
            method, or a name is defined twice.
    """
    for module in pkgutil.iter_modules(__path__):
        _register_all(importlib.import_module(f"{__name__}.{module.name}"))
    for named in filter(None, os.environ.get(OUTSIDE, "").split(os.pathsep)):
        known = len(_registered)
        module = _import_named(named)
        _register_all(module)
        if len(_registered) == known and not _holds_method(module):
            raise ValueError(
                f"{OUTSIDE}: {named} defines no method, a class that derives from Method"
            )


def _import_named(named: str) -> ModuleType:
    try:
        if named.endswith(".py"):
            return import_file(Path(named), f"kvlab_methods_{Path(named).stem}")
        return importlib.import_module(named)
    except Exception as error:  # whatever a user's module does wrong is bad input
        raise ValueError(f"{OUTSIDE}: {named} cannot be imported: {error}") from error


def _register_all(module: ModuleType) -> None:
    """Register the methods that a module defines; methods that it imports are left out."""
    for value in vars(module).values():
        defined = inspect.isclass(value) and value.__module__ == module.__name__
        if defined and issubclass(value, Method) and not inspect.isabstract(value):
            if not is_dataclass(value):
                raise TypeError(f"{value.__name__} of {_source_of(value)} must be a dataclass")
            register(value)


def _holds_method(module: ModuleType) -> bool:
    """Whether a module defines or imports a registered method from outside this package.

    Such a method was registered before if the module had been imported already.
    """
    held = {value for value in vars(module).values() if inspect.isclass(value)}
    return any(
        not each.__module__.startswith(f"{__name__}.") for each in held & {*_registered.values()}
    )


# --- what methods say of themselves --------------------------------------------------------------


def names() -> tuple[str, ...]:
    """Return every method's name; wrappers need a base, as in ``caote:h2o``."""
    return (*METHODS, *WRAPPERS)


def variants() -> dict[str, str]:
    """Return the named ablations and variants of the papers, and their registry syntax."""
    found = METHODS.found().values()
    return {name: spec for method in found for name, spec in method.variants.items()}


def describe() -> dict[str, dict[str, Any]]:
    """Return source, options with defaults, and equations of every method."""
    return {
        name: {
            "source": method.source,
            "equations": list(method.equations),
            "options": {
                field.name: field.default
                for field in fields(method)  # type: ignore[arg-type]
                if field.name in _options(method)
            },
        }
        for name, method in (*METHODS.items(), *WRAPPERS.items())
    }


def divergences(name: str) -> tuple[Divergence, ...]:
    """Return where paper, authors' code and re-implementations of a method differ.

    Raises:
        ValueError: if the method is unknown.
    """
    method = lookup(name)
    of_files = divergences_in("methods")
    return method.divergences or of_files.get(method.__module__.removeprefix(f"{__name__}."), ())


def examples() -> tuple[Example, ...]:
    """Return the examples of every method, for tests and test vectors."""
    return tuple(example for name in names() for example in examples_of(name))


def examples_of(name: str) -> tuple[Example, ...]:
    """Return a method's examples, or the method with its defaults if it gives none.

    Raises:
        ValueError: if the method is unknown.
    """
    spec = _with_defaults(name)
    budget = Example.budget if takes_budget(spec) else None
    return lookup(name).examples or (Example(spec, budget),)


def compared() -> tuple[str, ...]:
    """Return the specifications for comparisons; methods that take no budget come first."""
    specs = [spec for name in names() for spec in lookup(name).compared or (_with_defaults(name),)]
    return tuple(sorted(specs, key=takes_budget))


def takes_budget(spec: str) -> bool:
    """Whether a method has to be told how many entries may stay.

    Raises:
        ValueError: if the method, an option or a value is not allowed.
    """
    return innermost(spec).needs_budget


def innermost(spec: str) -> Method:
    """Return the method that ``spec`` names, without its wrappers.

    Raises:
        ValueError: if the method, an option or a value is not allowed.
    """
    method = parse(spec)
    return method.innermost if isinstance(method, Wrapper) else method


def base_name(spec: str) -> str:
    """Return the name of the method that ``spec`` or a variant is made of, options left out."""
    return variants().get(spec, spec).partition("@")[0].partition(":")[0]


def _with_defaults(name: str) -> str:
    return f"{name}:h2o" if name in WRAPPERS else name


# --- syntax --------------------------------------------------------------------------------------


def get(spec: str, budget: int | None = None, **options: Any) -> Policy:
    """Build the policy that ``spec`` names.

    Args:
        spec: registry syntax, or the name of a variant.
        budget: entries kept per KV head and layer, where the method takes one.
        options: hyper-parameters, besides those written in ``spec``.

    Raises:
        ValueError: if the method, an option or a value is not allowed.
        TypeError: if ``budget`` or an option has the wrong type.
    """
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int)):
        raise TypeError(f"budget = {budget!r} must be a whole number of entries")
    return replace(parse(spec, **options).policy(budget), name=spec)


def parse(spec: str, **options: Any) -> Method:
    """Return the method, with its hyper-parameters, that ``spec`` names.

    Raises:
        ValueError: if the method, an option or a value is not allowed.
        TypeError: if an option has the wrong type.
    """
    spec = variants().get(spec, spec)
    if len(spec.split()) > 1:
        raise ValueError(f"method = {spec!r} must be one method")
    composition, _, written = spec.partition("@")
    options = {**read_options(spec, written), **options}
    name, _, base = composition.partition(":")
    if name not in WRAPPERS and base:
        raise ValueError(f"method {name!r} wraps nothing; wrappers are {', '.join(WRAPPERS)}")
    if name in WRAPPERS and (not base or base in WRAPPERS):
        raise ValueError(f"{name} wraps another method, as in '{_with_defaults(name)}'")
    parts = [lookup(name), *([lookup(base)] if base else [])]
    taken = [
        {option: options.pop(option) for option in _options(part) & options.keys()}
        for part in (*parts, CommonOptions)
    ]
    if options:
        allowed = sorted({option for part in parts for option in _options(part)})
        raise ValueError(
            f"unknown option {min(options)!r} of {composition}; allowed are "
            f"{', '.join(allowed) or 'none'}, and of every method {', '.join(OF_EVERY_METHOD)}"
        )
    safe = taken.pop()
    method = _build(parts.pop(), taken.pop())
    for wrapper, own in zip(parts, taken, strict=True):
        method = _build(wrapper, own, base=method)
    return _build(CommonOptions, safe, base=method) if safe else method


def with_seed(spec: str, seed: int) -> str:
    """Give a method that draws at random a seed, unless ``spec`` states one.

    Raises:
        ValueError: if the method, an option or a value is not allowed.
        TypeError: if an option has the wrong type.
    """
    drawing = "seed" in _options(type(innermost(spec)))
    spec = variants().get(spec, spec)
    written = spec.partition("@")[2]
    if not drawing or "seed" in read_options(spec, written):
        return spec
    return f"{spec}{',' if written else '@'}seed={seed}"


def lookup(name: str) -> type[Method]:
    """Return the class of a method or wrapper.

    Raises:
        ValueError: if the method is unknown.
    """
    found = METHODS.get(name) or WRAPPERS.get(name)
    if found is None:
        close = get_close_matches(name.lower(), names(), n=1)
        meant = f", did you mean {close[0]}?" if close else ""
        raise ValueError(f"unknown method {name!r}{meant}; known are {', '.join(names())}")
    return found


def _build(part: type[Method], options: dict[str, Any], **base: Method) -> Method:
    for option, value in options.items():
        may_be_none = type(None) in get_args(type_hints(part)[option])
        if may_be_none and str(value).lower() == "none":
            options[option] = None
    check_options(part, part.name, options)
    return part(**options, **base)


def _options(method: type[Method]) -> set[str]:
    own = (field for field in fields(method) if field.init)  # type: ignore[arg-type]
    return {field.name for field in own} - {"base"}


def read_options(spec: str, written: str) -> dict[str, Any]:
    """Return the options in ``written``, the part of ``spec`` behind the ``@``.

    Raises:
        ValueError: if one has not the form ``option=value``.
    """
    pairs = [pair for pair in written.split(",") if pair]
    if malformed := [pair for pair in pairs if "=" not in pair]:
        raise ValueError(f"{malformed[0]!r} in {spec!r} must have the form option=value")
    given = [pair.partition("=")[0] for pair in pairs]
    if twice := [option for option in given if given.count(option) > 1]:
        raise ValueError(f"option {twice[0]} is given twice in {spec!r}")
    return {key: _read_value(value) for key, _, value in (pair.partition("=") for pair in pairs)}


def _read_value(text: str) -> Any:
    words = {"true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
