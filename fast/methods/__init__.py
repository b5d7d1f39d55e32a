"""The registry: methods of `kvlab.reference.methods`, in tensors.

Names, options, defaults and checks are the reference's. A module of this package makes the method
of the same name fast: it declares the twins of its parts.
"""

from typing import Any

from kvlab.fast.engine.policy import Policy
from kvlab.fast.engine.port import port
from kvlab.reference import methods as reference

__all__ = ["get", "port"]


def get(spec: str, budget: int | None = None, **options: Any) -> Policy:
    """Build the policy that ``spec`` names.

    Args:
        spec: registry syntax, or the name of a variant: see `kvlab.reference.methods`.
        budget: entries kept per KV head and layer, where the method takes one.
        options: hyper-parameters, besides those written in ``spec``.

    Raises:
        ValueError: if the method, an option or a value is not allowed.
        TypeError: if ``budget`` or an option has the wrong type.
    """
    return port(reference.get(spec, budget, **options))
