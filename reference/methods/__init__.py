"""The registry: method names, and the syntax in which compositions are written.

``name``, ``wrapper:name``, ``name@option=value,option=value``: ``"lazy_eviction"``,
``"caote:snapkv"``, ``"h2o@every=25"``, ``"caote:h2o@every=25,recent=8"``. Options of a wrapped
method are written behind the same ``@``. An option is a field of the method's dataclass.
"""

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any, Literal

from kvlab.reference.method import Divergence, Method
from kvlab.reference.methods.ahakv import AhaKV
from kvlab.reference.methods.caote import Caote
from kvlab.reference.methods.ddks import DDKS
from kvlab.reference.methods.desirekv import DesireKV
from kvlab.reference.methods.full import FullCache
from kvlab.reference.methods.h2o import H2O
from kvlab.reference.methods.kivi import KIVI
from kvlab.reference.methods.lazy_eviction import LazyEviction
from kvlab.reference.methods.nacl import NACL
from kvlab.reference.methods.raas import RaaS
from kvlab.reference.methods.rkv import RKV
from kvlab.reference.methods.rpc import RPC
from kvlab.reference.methods.snapkv import SnapKV
from kvlab.reference.methods.streaming_llm import StreamingLLM
from kvlab.reference.methods.tova import TOVA
from kvlab.reference.policy import Policy
from kvlab.reference.windows import check_choice

METHODS: Mapping[str, type[Method]] = {
    method.name: method
    for method in (
        FullCache,
        StreamingLLM,
        H2O,
        TOVA,
        SnapKV,
        RaaS,
        RKV,
        NACL,
        RPC,
        KIVI,
        DDKS,
        LazyEviction,
        DesireKV,
        AhaKV,
    )
}
"""Methods that stand alone, in the order in which tables show them."""

WRAPPERS: Mapping[str, Callable[..., Method]] = {
    "caote": Caote,
    "fast_caote": partial(Caote, fast=True),
}
"""Methods that wrap the score of another: ``caote:h2o``."""


def names() -> tuple[str, ...]:
    """Return every method's name; those of `WRAPPERS` need a base, as in ``caote:h2o``."""
    return (*METHODS, *WRAPPERS)


def variants() -> dict[str, str]:
    """Return the named ablations and variants of the papers, and their registry syntax."""
    return {name: spec for method in METHODS.values() for name, spec in method.variants.items()}


def describe() -> dict[str, dict[str, Any]]:
    """Return source, options with defaults, and equations of every method."""
    classes = {**METHODS, **dict.fromkeys(WRAPPERS, Caote)}
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
        for name, method in classes.items()
    }


def base_name(spec: str) -> str:
    """Return the name of the method that ``spec`` or a variant is made of, options left out."""
    return variants().get(spec, spec).partition("@")[0].partition(":")[0]


def divergences(name: str) -> tuple[Divergence, ...]:
    """Return where paper, authors' code and re-implementations of a method differ.

    Raises:
        ValueError: if the method is unknown.
    """
    if name in WRAPPERS:
        return Caote.divergences
    return _lookup(name).divergences


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
    composition, _, written = spec.partition("@")
    options = {**read_options(spec, written), **options}
    name, _, base = composition.partition(":")
    if name not in WRAPPERS:
        if base:
            raise ValueError(f"method {name!r} wraps nothing; wrappers are {', '.join(WRAPPERS)}")
        return _build(name, _lookup(name), options)
    if not base:
        raise ValueError(f"{name} wraps another method, as in '{name}:h2o'")
    base_class = _lookup(base)
    own = {key: options.pop(key) for key in _options(Caote) if key in options}
    if unknown := options.keys() - _options(base_class):
        allowed = sorted(_options(Caote) | _options(base_class))
        raise ValueError(_unknown_option(composition, min(unknown), allowed))
    wrapped = _build(base, base_class, options)
    _check_types(name, Caote, own)
    return WRAPPERS[name](base=wrapped, **own)


def with_seed(spec: str, seed: int) -> str:
    """Give a method that draws at random a seed, unless ``spec`` states one; others stay as is.

    Raises:
        ValueError: if the method, an option or a value is not allowed.
        TypeError: if an option has the wrong type.
    """
    method = parse(spec)
    spec = variants().get(spec, spec)
    written = spec.partition("@")[2]
    drawing = "seed" in _options(type(getattr(method, "base", method)))
    if not drawing or "seed" in read_options(spec, written):
        return spec
    return f"{spec}{',' if written else '@'}seed={seed}"


def _lookup(name: str) -> type[Method]:
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}; known are {', '.join(names())}")
    return METHODS[name]


def _build(name: str, method: type[Method], options: Mapping[str, Any]) -> Method:
    if unknown := options.keys() - _options(method):
        raise ValueError(_unknown_option(name, min(unknown), sorted(_options(method))))
    _check_types(name, method, options)
    return method(**options)


def _options(method: type[Method]) -> set[str]:
    return {field.name for field in fields(method)} - {"base", "fast"}  # type: ignore[arg-type]


def _unknown_option(name: str, option: str, allowed: list[str]) -> str:
    choices = ", ".join(allowed) or "none"
    return f"unknown option {option!r} of {name}; allowed are {choices}"


def read_options(spec: str, written: str) -> dict[str, Any]:
    """Return the options in ``written``, the part of ``spec`` behind the ``@``.

    Raises:
        ValueError: if one has not the form ``option=value``.
    """
    pairs = [pair for pair in written.split(",") if pair]
    if malformed := [pair for pair in pairs if "=" not in pair]:
        raise ValueError(f"{malformed[0]!r} in {spec!r} must have the form option=value")
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


def _check_types(name: str, method: type[Method], options: Mapping[str, Any]) -> None:
    hints = typing.get_type_hints(method)
    for option, value in options.items():
        hint = hints[option]
        if typing.get_origin(hint) is Literal:
            check_choice(typing.get_args(hint), **{option: value})
        elif not _accepts(hint, value):
            raise TypeError(f"{option} = {value!r} of {name} must be {_describe(hint)}")


def _accepts(hint: Any, value: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_accepts(part, value) for part in typing.get_args(hint))
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else hint)


def _describe(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint))
