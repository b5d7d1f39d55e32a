"""Translates a policy of the reference part by part: in PyTorch, or with parts on the host."""

from dataclasses import fields
from typing import Any

from kvlab.fast.engine.host import HostBudget, HostProtect, HostScore, say_once
from kvlab.fast.engine.policy import Policy
from kvlab.fast.engine.twins import find_twin
from kvlab.reference import policy as reference

ON_HOST = {
    reference.Score: HostScore,
    reference.Protect: HostProtect,
    reference.Budget: HostBudget,
}
"""Kind of a part → what runs a part without a PyTorch implementation."""


def port(policy: reference.Policy) -> Policy:
    """Translate a policy of the reference; ValueError if its precision has no PyTorch one.

    Other parts without one run on the host, which is slow; a warning says so.
    """
    return Policy(
        policy,
        port_part(policy.score),
        port_part(policy.protect),
        port_part(policy.budget),
        port_part(policy.precision),
    )


def port_part(part: Any) -> Any:
    """Return a part of a policy in PyTorch, or the part on the host."""
    twin = find_twin(type(part))
    if twin is not None:
        inner = [field.name for field in fields(twin) if field.name != "spec"]
        return twin(part, **{name: port_part(getattr(part, name)) for name in inner})
    for kind, on_host in ON_HOST.items():
        if isinstance(part, kind):
            say_once(part)
            return on_host(part)
    name = type(part).__name__
    raise ValueError(
        f"precision {name} has no PyTorch implementation: write a Precision of "
        f"kvlab.fast.engine.policy that stores what `store` says, and mark it @twin_of({name}); "
        "kvlab.fast.methods.kivi is an example"
    )
