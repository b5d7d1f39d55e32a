"""A test vector: inputs, and the outputs that have to come out of them, with tolerances."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kvlab.reference.notation import Array

PRECISIONS = ("float32", "float16", "bfloat16")
"""Number formats in which an implementation works."""

ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Largest relative error of rounding to nearest."""

Parameters = Mapping[str, Any]
Inputs = Mapping[str, Array]


@dataclass(frozen=True)
class Tolerance:
    """How far a number x may be from the expected e: absolute + relative·\\|e\\|."""

    absolute: float
    relative: float


@dataclass(frozen=True)
class Expected:
    """One output of a case.

    ``numbers`` are compared within a tolerance, ``exact`` ones bit by bit; ``at_most`` is a bound
    of numbers above 0. A ``keep`` set is compared as a set: indices that ascend, as many as
    expected, equal to the expected ones but for the entries whose scores are too close to the
    threshold to say which entry is worth more.
    """

    kind: Literal["numbers", "exact", "keep", "at_most"]
    value: Array
    tolerance: Mapping[str, Tolerance] = field(default_factory=dict)
    """Tolerance of ``numbers``, by the implementation's precision."""
    where: Array | None = None
    """Elements that count; None: all."""
    slack: Array | None = None
    """Further absolute tolerance of each element, for example if two roundings are right."""
    either: Mapping[str, Array] = field(default_factory=dict)
    """By precision, marks ``[G, n]`` of entries that a ``keep`` set may hold or not."""


@dataclass(frozen=True)
class Case:
    """One test vector."""

    name: str
    """Unique: target, group and number."""
    target: str
    """What is tested: a building block, ``attend``, or one step of a method, ``h2o.score``."""
    group: str
    """What the case stresses."""
    method: str | None
    """The method in registry syntax, with all options that differ from its defaults."""
    parameters: Parameters
    inputs: Inputs
    expected: Mapping[str, Expected]

    @property
    def operation(self) -> str:
        """The target without its method."""
        return self.target.rpartition(".")[2]
