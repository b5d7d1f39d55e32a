"""The registry: methods of `kvlab.reference.methods`, in tensors.

Names, options, defaults and checks are the reference's. A module of this package makes the method
of the same name fast: it implements its parts in PyTorch.
"""

from typing import Any

from kvlab.fast.engine.policy import Policy
from kvlab.fast.engine.port import port
from kvlab.reference import methods as reference

__all__ = ["get", "port"]


def get(spec: str, budget: int | None = None, **options: Any) -> Policy:
    """Build the policy that ``spec`` names; arguments and errors are the reference's."""
    return port(reference.get(spec, budget, **options))
