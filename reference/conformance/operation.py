"""Operations that can be tested: named arrays in and out, and the reference's answer."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from kvlab.reference.conformance.case import Expected, Inputs, Parameters
from kvlab.reference.notation import Array

Kind = Literal["float", "int", "bool", "code"]

DTYPES: Mapping[Kind, type] = {
    "float": np.float32,
    "int": np.int64,
    "bool": np.bool_,
    "code": np.uint8,
}
"""How each kind of number is stored."""

DESCRIBED: Mapping[str, Any] = tomllib.loads(
    Path(__file__).with_name("operations.toml").read_text(encoding="utf-8")
)

AXES: Mapping[str, str] = DESCRIBED["axes"]
"""What every axis counts."""


@dataclass(frozen=True)
class Field:
    """One array that goes in or comes out."""

    axes: tuple[str, ...]
    kind: Kind
    meaning: str
    optional: bool = False
    """Inputs: only some methods need it. Outputs: an implementation need not return it."""


Compute = Callable[[Inputs, Parameters, str | None], Mapping[str, Expected]]
Judge = Callable[[Mapping[str, Array], Parameters], str | None]
"""Says what is wrong with outputs, besides their distance to the expected ones."""
Derive = Callable[[Inputs, Parameters, str | None], Inputs]


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
    derive: Derive | None = None
    """Computes inputs that follow from other inputs, such as attention from queries and keys."""
    of_method: bool = False
    """Whether it is a step of a method, as in ``h2o.score``."""
    judge: Judge | None = None
    """Checks what all right answers have in common, if several are right."""

    def input(self, name: str, x: Array) -> Field:
        """Describe an input; an array that a score remembers or draws may have any name."""
        kinds: Mapping[str, Kind] = {"f": "float", "i": "int", "b": "bool"}
        return self.inputs.get(name) or Field(
            (), kinds[x.dtype.kind], "remembered or drawn by the score"
        )


def described_operation(
    name: str, compute: Compute, derive: Derive | None = None, judge: Judge | None = None
) -> Operation:
    """Return an operation as ``operations.toml`` describes it."""
    told = DESCRIBED["operations"][name]

    def described_fields(kind: str) -> dict[str, Field]:
        own = told.get("arrays", {}).get(kind, {})
        found = {}
        for array in told[kind]:
            axes, number, meaning = own.get(array) or DESCRIBED["arrays"][array]
            optional = f"{kind}.{array}" in told.get("optional", ())
            found[array] = Field(tuple(axes.split()), number, meaning, optional)
        return found

    meanings = {**DESCRIBED["parameters"], **told.get("meanings", {})}
    return Operation(
        name,
        told["summary"],
        told["source"],
        described_fields("inputs"),
        described_fields("outputs"),
        {parameter: meanings[parameter] for parameter in told.get("parameters", ())},
        compute,
        derive,
        told.get("of_method", False),
        judge,
    )
