"""Operations that can be tested: named arrays in and out, and the function that answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from kvlab.reference.conformance.vectors import Expected
from kvlab.reference.files import read_data
from kvlab.reference.notation import Array

Kind = Literal["float", "int", "bool", "code"]

DTYPES: Mapping[Kind, type] = {
    "float": np.float32,
    "int": np.int64,
    "bool": np.bool_,
    "code": np.uint8,
}
"""What implementations are given for each kind of number."""

DESCRIBED = read_data("conformance/operations.toml")


@dataclass(frozen=True)
class Field:
    """One array that goes in or comes out."""

    axes: tuple[str, ...]
    kind: Kind
    meaning: str
    optional: bool = False
    """Inputs: only some methods need it. Outputs: an implementation need not return it."""


Compute = Callable[..., Mapping[str, Expected]]
Judge = Callable[[Mapping[str, Array], Mapping[str, Any]], str | None]


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
    of_method: bool
    """Whether it is a step of a method, as in ``h2o.score``."""
    compute: Compute
    """The reference's answer to inputs and parameters by name."""
    judge: Judge | None
    """Says what is wrong with outputs, besides their distance to the expected ones."""

    def input(self, name: str, x: Array) -> Field:
        """Describe an input; an array that a score remembers or draws may have any name."""
        kinds: Mapping[str, Kind] = {"f": "float", "i": "int", "b": "bool"}
        axes = tuple(f"{name}_{axis}" for axis in range(x.ndim))
        return self.inputs.get(name) or Field(
            axes, kinds[x.dtype.kind], "remembered or drawn by the score"
        )


OPERATIONS: dict[str, Operation] = {}
"""Building blocks, then the steps of a method, as their files are imported."""


def answers(name: str, judge: Judge | None = None) -> Callable[[Compute], Compute]:
    """Mark the function that answers an operation of ``operations.toml``."""
    told = DESCRIBED["operations"][name]
    meanings = {**DESCRIBED["parameters"], **told.get("meanings", {})}

    def described_fields(kind: str) -> dict[str, Field]:
        own = told.get("arrays", {}).get(kind, {})
        found = {}
        for array in told[kind]:
            axes, number, meaning = own.get(array) or DESCRIBED["arrays"][array]
            optional = f"{kind}.{array}" in told.get("optional", ())
            found[array] = Field(tuple(axes.split()), number, meaning, optional)
        return found

    def add(compute: Compute) -> Compute:
        parameters = {each: meanings[each] for each in told.get("parameters", ())}
        fields = *map(described_fields, ("inputs", "outputs")), parameters
        said = [name, told["summary"], told["source"], *fields, told.get("of_method", False)]
        OPERATIONS[name] = Operation(*said, compute=compute, judge=judge)
        return compute

    return add
