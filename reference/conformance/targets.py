"""Names of what can be tested: ``attend``, or a method's step such as ``caote:h2o.score``."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np

from kvlab.reference import methods
from kvlab.reference.cache import Column
from kvlab.reference.conformance import blocks, events, serving, stages, whole_cache
from kvlab.reference.conformance.operation import DESCRIBED, OPERATIONS, Field, Operation
from kvlab.reference.conformance.vectors import Case, Expected, compared
from kvlab.reference.method import Example
from kvlab.reference.notation import Array

ANSWERED = (blocks, serving, events, stages, whole_cache)
"""Files that answer operations, in the order in which these are listed."""

STEPS = tuple(name for name, each in OPERATIONS.items() if each.of_method)
"""Names of the steps of a method."""

WIDE = {np.dtype(np.float32): np.float64, np.dtype(np.int32): np.int64}
"""Number formats that the reference computes with in place of those of the files."""


def has_vectors(name: str) -> bool:
    """Whether a method can be tested: vectors hold nothing that only models hand over."""
    policies = (methods.get(each.spec, each.budget) for each in methods.examples_of(name))
    return not any(policy.score.needs.of_models for policy in policies)


def composition(spec: str) -> str:
    """Return a method without its options, in registry syntax."""
    return methods.variants().get(spec, spec).partition("@")[0]


def examples_of(method: str) -> list[Example]:
    """Return the examples of a method without options, such as ``caote:h2o``."""
    given = methods.examples_of(method.partition(":")[0])
    return [example for example in given if composition(example.spec) == method]


def answer(case: Case) -> Mapping[str, Expected]:
    """Return what the reference expects of a case."""
    given = {name: x.astype(WIDE.get(x.dtype, x.dtype)) for name, x in case.inputs.items()}
    method = {} if case.method is None else {"method": case.method}
    with np.errstate(all="ignore"):
        return operation_of(case.target).compute(**given, **case.parameters, **method)


def mistake_and_margin(
    case: Case, found: Mapping[str, Array], precision: str = "float32"
) -> tuple[str | None, float | None]:
    """Return what is wrong with the first wrong output; if none is, the least margin of all.

    Shapes are compared first, then survivors, because numbers follow from them. The operation's
    ``judge`` comes last, because it looks at all outputs together.
    """
    operation, margins = operation_of(case.target), list[float]()
    for name, expected in case.expected.items():
        if name in found and found[name].shape != expected.value.shape:
            return f"{name} {compared(expected, found[name])[0]}", None
        if name not in found and not operation.outputs[name].optional:
            return f"{name} was not returned", None
    for name in sorted(case.expected, key=lambda name: case.expected[name].kind == "numbers"):
        if name in found:
            axes = operation.outputs[name].axes
            reason, margin = compared(case.expected[name], found[name], precision, axes)
            if reason is not None:
                return f"{name} {reason}", None
            margins += [] if margin is None else [margin]
    reason = None if operation.judge is None else operation.judge(found, case.parameters)
    if reason is not None:
        return f"{next(iter(case.expected))} {reason}", None
    return None, min(margins, default=None)


@lru_cache(maxsize=512)
def operation_of(target: str) -> Operation:
    """Return the operation behind a target, with what the method remembers of every entry."""
    method, _, name = target.rpartition(".")
    found = OPERATIONS.get(name)
    if found is None or found.of_method != bool(method):
        own = ", ".join(each for each in DESCRIBED["operations"] if each not in STEPS)
        allowed = f"one of {own}, or a method and one of {', '.join(STEPS)}, as in 'h2o.score'"
        raise ValueError(f"target = {target!r} must be {allowed}")
    if not method:
        return found
    methods.parse(method)
    if not has_vectors(methods.base_name(method)):
        raise ValueError(f"target = {target!r} must read no more of a model than vectors hold")
    columns: dict[str, Column] = {}
    for example in examples_of(method):
        columns |= methods.get(example.spec, example.budget).score.columns
    state = {each: _state_field(column, True) for each, column in columns.items()}
    if name == "observe":
        asked = {each: _state_field(x, not x.compared) for each, x in columns.items()}
        return replace(found, inputs={**found.inputs, **state}, outputs=asked)
    if name == "run":
        return replace(found, outputs={**found.outputs, **state})
    if name in ("score", "select"):
        return replace(found, inputs={**found.inputs, **state})
    return found


def _state_field(column: Column, optional: bool) -> Field:
    meaning = f"{column.meaning}; a new entry comes with {column.start:g}"
    return Field(("G", "n"), "int" if column.integer else "float", meaning, optional)
