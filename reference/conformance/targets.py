"""Names of what can be tested: ``attend``, or a method's step such as ``caote:h2o.score``."""

from functools import lru_cache

from kvlab.reference import methods
from kvlab.reference.cache import Column
from kvlab.reference.conformance import blocks, stages, whole_cache
from kvlab.reference.conformance.case import Case
from kvlab.reference.conformance.groups import composition, examples_of
from kvlab.reference.conformance.operation import Operation

OPERATIONS = {**blocks.OPERATIONS, **stages.STEPS, **whole_cache.OPERATIONS}
"""Building blocks, then the steps of a method, without what a score remembers of each entry."""


def target_of(name: str, method: str | None) -> str:
    """Return the name of a building block, or of a method's step; options are left out."""
    return name if method is None else f"{composition(method)}.{name}"


def described(case: Case) -> Operation:
    """Return the operation that a case asks for."""
    return operation(case.operation, case.method, case.parameters.get("budget"))


@lru_cache(maxsize=512)
def operation(name: str, method: str | None, budget: int | None) -> Operation:
    """Return a building block, or a step of a method in registry syntax."""
    if method is None:
        return blocks.OPERATIONS[name]
    if name in whole_cache.OPERATIONS:
        return whole_cache.OPERATIONS[name]
    return stages.operations(methods.get(method, budget).score.columns)[name]


def operation_of(target: str) -> Operation:
    """Return the operation behind a target, with the columns of all examples of its method.

    Raises:
        ValueError: if there is no such operation.
    """
    method, _, name = target.rpartition(".")
    found = OPERATIONS.get(name)
    if found is None or found.of_method != bool(method):
        raise ValueError(f"target = {target!r} must be {allowed()}")
    if not method or name in whole_cache.OPERATIONS:
        return found
    methods.parse(method)
    columns: dict[str, Column] = {}
    for example in examples_of(method):
        columns |= methods.get(example.spec, example.budget).score.columns
    return stages.operations(columns)[name]


def allowed() -> str:
    """Say what a target can be."""
    own = ", ".join(blocks.OPERATIONS)
    steps = ", ".join([*stages.STEPS, *whole_cache.OPERATIONS])
    return f"one of {own}, or a method and one of {steps}, as in 'h2o.score'"
