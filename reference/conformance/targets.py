"""Names of what can be tested: ``attend``, or a method's step such as ``caote:h2o.score``."""

from kvlab.reference import methods
from kvlab.reference.conformance import blocks, stages
from kvlab.reference.conformance.operation import Operation

OPERATIONS = {**blocks.OPERATIONS, **stages.OPERATIONS}
"""Building blocks, then the steps of a method."""


def target_of(operation: str, method: str | None) -> str:
    """Return the name of a building block, or of a method's step; options are left out."""
    return operation if method is None else f"{composition(method)}.{operation}"


def composition(method: str) -> str:
    """Return a method without its options, in registry syntax."""
    return methods.variants().get(method, method).partition("@")[0]


def operation_of(target: str) -> Operation:
    """Return what a target computes.

    Raises:
        ValueError: if there is no such operation.
    """
    method, _, name = target.rpartition(".")
    operation = OPERATIONS.get(name)
    if operation is None or operation.of_method != bool(method):
        raise ValueError(f"target = {target!r} must be {allowed()}")
    if method:
        methods.parse(method)
    return operation


def allowed() -> str:
    """Say what a target can be."""
    own = ", ".join(blocks.OPERATIONS)
    steps = ", ".join(stages.OPERATIONS)
    return f"one of {own}, or a method and one of {steps}, as in 'h2o.score'"
