"""The registry: method names, and the syntax in which compositions are written.

| form | example | meaning |
|---|---|---|
| ``name`` | ``lazy_eviction`` | the method with its own options |
| ``name@option=value,…`` | ``h2o@every=25,recent=8`` | with other options |
| ``wrapper:name`` | ``caote:snapkv@window=16`` | a method that is applied to another |
| ``library:name`` | ``kvpress:ExpectedAttentionPress`` | a method of another library |

Options of a wrapped method are written behind the same ``@``. An option is a field of the method's
dataclass, or one of `OF_EVERY_METHOD`, such as ``pin_prompt=true``.

A method is found by itself: the registry looks through the modules of this package, and through
the modules and Python files that the environment variable ``KVLAB_METHODS`` names, separated as in
``PATH``. `register` adds a method that is defined elsewhere, such as in a notebook.
"""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache, cached_property
from importlib.metadata import version
from types import ModuleType
from typing import Any, TypeVar, get_args

from kvlab.reference.files import Divergence, divergences_in
from kvlab.reference.method import (
    CommonOptions,
    Example,
    Method,
    Wrapper,
    check_options,
    type_hints,
)
from kvlab.reference.outside import (
    LIBRARIES,
    OUTSIDE,
    import_bridge,
    import_named,
    named,
    source_hash,
)
from kvlab.reference.policy import Policy

MethodClass = TypeVar("MethodClass", bound=type[Method])

_registered: dict[str, type[Method]] = {}


# --- discovery -----------------------------------------------------------------------------------


@cache
def known() -> Mapping[str, type[Method]]:
    """Return every method by name: in the order of publication, those that wrap another last.

    Raises:
        ValueError: if a module or file that `OUTSIDE` names cannot be imported or defines nothing
            of a method, or a name is defined twice.
    """
    discover()
    in_order = sorted(
        _registered.values(),
        key=lambda method: (issubclass(method, Wrapper), method.published, method.name),
    )
    return {method.name: method for method in in_order}


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
    _look_up_again()
    return method


def _look_up_again() -> None:
    known.cache_clear()
    read.cache_clear()


def discover_again() -> None:
    """Let the next call look for methods anew, because what `OUTSIDE` names has changed."""
    discover.cache_clear()
    _look_up_again()


def _source_of(method: type[Method]) -> str:
    module = inspect.getmodule(method)
    return getattr(module, "__file__", None) or method.__module__


@cache
def discover() -> str:
    """Import the modules of this package and the ones that `OUTSIDE` names; register their methods.

    Return the hash of the source from outside as it was imported. Errors are those of `known`.
    """
    for module in pkgutil.iter_modules(__path__):
        _register_all(importlib.import_module(f"{__name__}.{module.name}"))
    for name in named():
        module = import_named(name)
        _register_all(module)
        if not any(map(_is_from_outside, vars(module).values())):
            raise ValueError(
                f"{OUTSIDE}: {name} defines no method, a class that derives from Method, no "
                "PyTorch implementation of a part, a class that is marked @twin_of, and no press, "
                "a class that derives from one of kvpress"
            )
    return source_hash()


def _is_from_outside(value: Any) -> bool:
    """Say whether a value is a method, a part's implementation or a press from outside."""
    if not inspect.isclass(value) or value.__module__.startswith("kvlab."):
        return False
    homes = [each.__module__.partition(".")[0] for each in value.__mro__]
    press = homes[0] not in LIBRARIES and not LIBRARIES.keys().isdisjoint(homes)
    return press or value in _registered.values() or hasattr(value, "twin_of")


def _register_all(module: ModuleType) -> None:
    """Register the methods that a module defines; methods that it imports are left out."""
    for value in vars(module).values():
        defined = inspect.isclass(value) and value.__module__ == module.__name__
        public = defined and not value.__name__.startswith("_")
        if public and issubclass(value, Method) and not inspect.isabstract(value):
            if not is_dataclass(value):
                raise TypeError(f"{value.__name__} of {_source_of(value)} must be a dataclass")
            register(value)


# --- what methods say of themselves --------------------------------------------------------------


def names() -> tuple[str, ...]:
    """Return every method's name; wrappers need a base, as in ``caote:h2o``."""
    return tuple(known())


def wrappers() -> tuple[str, ...]:
    """Return the names of the methods that wrap another."""
    return tuple(name for name, method in known().items() if issubclass(method, Wrapper))


def variants() -> dict[str, str]:
    """Return the named ablations and variants of the papers, and their registry syntax."""
    return {name: spec for method in known().values() for name, spec in method.variants.items()}


def describe() -> dict[str, dict[str, Any]]:
    """Return source, options with defaults, and equations of every method."""
    return {
        name: {
            "source": method.source,
            "equations": list(method.equations),
            "options": dict(_options(method)),
        }
        for name, method in known().items()
    }


def divergences(name: str) -> tuple[Divergence, ...]:
    """Return where paper, authors' code and re-implementations of a method differ."""
    method = lookup(name)
    of_files = divergences_in("methods")
    return method.divergences or of_files.get(method.__module__.removeprefix(f"{__name__}."), ())


def examples() -> tuple[Example, ...]:
    """Return the examples of every method, for tests and test vectors."""
    return tuple(example for name in names() for example in examples_of(name))


def examples_of(name: str) -> tuple[Example, ...]:
    """Return a method's examples, or the method with its defaults if it gives none."""
    spec = _with_defaults(name)
    budget = Example.budget if takes_budget(spec) else None
    return lookup(name).examples or (Example(spec, budget),)


def compared() -> tuple[str, ...]:
    """Return the specifications for comparisons; methods that take no budget come first."""
    specs = [spec for name in names() for spec in lookup(name).compared or (_with_defaults(name),)]
    return tuple(sorted(specs, key=takes_budget))


def takes_budget(spec: str) -> bool:
    """Say whether a method has to be told how many entries may be kept."""
    return read(spec).takes_budget


def notes(specs: Iterable[str]) -> tuple[str, ...]:
    """Return what has to be known of specifications, each note once; what is refused has none."""
    found = []
    for spec in specs:
        with suppress(ValueError, TypeError):
            found.append(read(spec).method.note)
    return tuple(dict.fromkeys(filter(None, found)))


def base_name(spec: str) -> str:
    """Return the name of the method that ``spec`` or a variant is made of, options left out."""
    composition = variants().get(spec, spec).partition("@")[0]
    name = composition.partition(":")[0]
    return composition if name in LIBRARIES else name


def _with_defaults(name: str) -> str:
    return f"{name}:h2o" if issubclass(lookup(name), Wrapper) else name


# --- syntax --------------------------------------------------------------------------------------


def get(spec: str, budget: int | None = None, **options: Any) -> Policy:
    """Build the policy that ``spec`` names: registry syntax, or the name of a variant.

    ``budget`` counts entries kept per KV head and layer, where the method takes one; ``options``
    are hyper-parameters besides those written in ``spec``.

    Raises:
        ValueError: if the method, an option or a value is not allowed.
        TypeError: if ``budget`` or an option has the wrong type.
    """
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int)):
        raise TypeError(f"budget = {budget!r} must be a whole number of entries")
    return replace(parse(spec, **options).policy(budget), name=spec)


def parse(spec: str, **options: Any) -> Method:
    """Return the method, with its options, that ``spec`` names; errors are those of `get`."""
    return _composed(spec, options) if options else read(spec).method


@dataclass(frozen=True)
class Spec:
    """A specification such as ``caote:h2o@recent=8``, in its parts."""

    text: str
    method: Method

    @cached_property
    def takes_budget(self) -> bool:
        """Whether it has to be told how many entries may be kept."""
        return self.method.parts[-1].needs_budget

    @cached_property
    def from_outside(self) -> bool:
        """Whether a part of the composition is defined outside of kvlab."""
        return not all(type(each).__module__.startswith("kvlab.") for each in self.method.parts)

    @property
    def library(self) -> str:
        """The library that a part comes from, with its version; empty if none does."""
        found = {each.name.partition(":")[0] for each in self.method.parts} & LIBRARIES.keys()
        return ", ".join(f"{each} {version(each)}" for each in sorted(found))

    def seeded(self, seed: int) -> str:
        """Return it with the seeds of what draws at random, unless its text states them."""
        spec = variants().get(self.text, self.text)
        written = spec.partition("@")[2]
        known = {
            each.seeded_by for each in self.method.parts if each.seeded_by in _options(type(each))
        }
        seeds = [f"{name}={seed}" for name in sorted(known - read_options(spec, written).keys())]
        return f"{spec}{',' if written else '@'}{','.join(seeds)}" if seeds else spec


@cache
def read(spec: str) -> Spec:
    """Parse a specification, once; errors are those of `get`."""
    return Spec(spec, _composed(spec, {}))


def _composed(spec: str, options: Mapping[str, Any]) -> Method:
    spec = variants().get(spec, spec)
    if len(spec.split()) > 1:
        raise ValueError(f"method = {spec!r} must be one method")
    composition, _, written = spec.partition("@")
    parts = _parts(composition)
    given = {**read_options(spec, written), **options}
    taken = [
        (part, {name: given.pop(name) for name in _options(part).keys() & given.keys()})
        for part in (*parts, CommonOptions)
    ]
    if given:
        allowed = sorted({option for part in parts for option in _options(part)})
        raise ValueError(
            f"unknown option {min(given)!r} of {composition}; allowed are "
            f"{', '.join(allowed) or 'none'}, and of every method {', '.join(OF_EVERY_METHOD)}"
        )
    *wrapping, innermost, (_, common) = taken
    method = _build(*innermost)
    for part, own in reversed(wrapping):
        method = _build(part, own, base=method)
    return _build(CommonOptions, common, base=method) if common else method


def _parts(composition: str) -> list[type[Method]]:
    """Return the classes of ``wrapper:name``, in this order."""
    name, _, base = composition.partition(":")
    if name in LIBRARIES:
        return [lookup(composition)]
    part = lookup(name)
    if base and part.before_another:
        return [part.before_another, *_parts(base)]
    if not issubclass(part, Wrapper):
        if base:
            raise ValueError(f"method {name!r} wraps nothing; wrappers are {', '.join(wrappers())}")
        return [part]
    if not base or base in wrappers():
        raise ValueError(f"{name} wraps another method, as in '{_with_defaults(name)}'")
    return [part, lookup(base)]


class UnknownMethodError(ValueError):
    """There is no method of this name."""


def lookup(name: str) -> type[Method]:
    """Return the class of a method or wrapper; `UnknownMethodError` if there is none."""
    library, _, inner = name.partition(":")
    if library in LIBRARIES:
        return import_bridge(library).method_of(inner)
    found = known()
    if name not in found:
        close = get_close_matches(name.lower(), found, n=1)
        meant = f", did you mean {close[0]}?" if close else ""
        if set(name.split(",")) <= {*found}:
            meant = f": methods are separated by blanks, as in '{name.replace(',', ' ')}'"
        raise UnknownMethodError(
            f"unknown method {name!r}{meant}; known are {', '.join(found)}; {OUTSIDE} names files "
            "and modules that define others"
        )
    return found[name]


def _build(part: type[Method], options: dict[str, Any], **base: Method) -> Method:
    for option, value in options.items():
        may_be_none = type(None) in get_args(type_hints(part)[option])
        if may_be_none and str(value).lower() == "none":
            options[option] = None
    check_options(part, part.name, options)
    return part(**options, **base)


def summaries(specs: Iterable[str]) -> dict[str, str]:
    """Return what the first line of the docstring of each method and wrapper says, by name."""
    said = {}
    for spec in specs:
        for name in spec.partition("@")[0].split(":"):
            kind = known().get(name)
            if kind is not None:
                text = kind.__doc__ or ""
                said[name] = text.partition("\n")[0]
    return said


@cache
def _options(method: type[Method]) -> Mapping[str, Any]:
    """Return a method's options with their defaults."""
    own = (field for field in fields(method) if field.init)  # type: ignore[arg-type]
    return {field.name: field.default for field in own if field.name != "base"}


OF_EVERY_METHOD = _options(CommonOptions)
"""Options of every method, with their defaults."""


def read_options(spec: str, written: str) -> dict[str, Any]:
    """Return the options in ``written``, the part of ``spec`` behind the ``@``."""
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
