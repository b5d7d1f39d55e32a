"""What can be tested: a function with named arrays in and out, and the reference's answer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from kvlab.reference.conformance.case import Expected, Inputs, Parameters

Kind = Literal["float", "int", "bool", "code"]

DTYPES: Mapping[Kind, type] = {
    "float": np.float32,
    "int": np.int64,
    "bool": np.bool_,
    "code": np.uint8,
}
"""How each kind of number is stored."""

AXES = {
    "G": "KV heads",
    "rho": "query heads that share a KV head",
    "m": "queries of the block",
    "n": "entries of the cache",
    "d": "channels",
    "t": "tokens of the stream",
    "w": "remembered queries",
    "k": "rows of retention: query heads, or one",
    "kept": "entries that stay",
    "rows": "vectors",
    "length": "elements of a vector",
    "groups": "groups of elements that share a scale",
    "bytes": "bytes of packed codes",
    "blocks": "blocks of tokens",
}


@dataclass(frozen=True)
class Field:
    """One array that goes in or comes out."""

    axes: tuple[str, ...]
    kind: Kind
    meaning: str
    optional: bool = False
    """Inputs: only some methods need it. Outputs: an implementation need not return it."""


Compute = Callable[[Inputs, Parameters, str | None], Mapping[str, Expected]]
Derive = Callable[[Inputs, Parameters, str | None], Inputs]


def unchanged(inputs: Inputs, parameters: Parameters, method: str | None) -> Inputs:
    """Return the inputs: none follows from the others."""
    return inputs


@dataclass(frozen=True)
class Operation:
    """A function that implementations offer."""

    name: str
    summary: str
    source: str
    """Where the papers define it."""
    inputs: Mapping[str, Field]
    outputs: Mapping[str, Field]
    parameters: Mapping[str, str]
    compute: Compute
    """The reference's answer to any inputs."""
    derive: Derive = field(default=unchanged)
    """Inputs anew where some follow from others, such as attention from queries and keys."""
    of_method: bool = False
    """Whether it is a step of a method, as in ``h2o.score``."""


def floats(*axes: str, meaning: str, optional: bool = False) -> Field:
    """Describe an array of numbers."""
    return Field(axes, "float", meaning, optional)


def whole(*axes: str, meaning: str, optional: bool = False) -> Field:
    """Describe an array of whole numbers."""
    return Field(axes, "int", meaning, optional)


def marks(*axes: str, meaning: str, optional: bool = False) -> Field:
    """Describe an array of booleans."""
    return Field(axes, "bool", meaning, optional)


def codes(*axes: str, meaning: str, optional: bool = False) -> Field:
    """Describe an array of unsigned bytes."""
    return Field(axes, "code", meaning, optional)
