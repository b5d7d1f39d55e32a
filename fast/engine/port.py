"""Translates a policy of the reference part by part: by its twins, or with parts on the host.

The twins of a method's parts stand in the module of `kvlab.fast` that has the name of the parts'
module in `kvlab.reference`, or in `kvlab.fast.engine` for modules of the reference's core; it is
imported when a part is first asked for. Whoever writes a method in another package declares its
twins with `kvlab.fast.engine.policy.twin_of`.
"""

from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from kvlab.fast.engine.host import HostBudget, HostProtect, HostScore
from kvlab.fast.engine.policy import TWINS, Policy
from kvlab.reference import policy as reference

REFERENCE, FAST = "kvlab.reference.", "kvlab.fast."


def port(policy: reference.Policy) -> Policy:
    """Translate a policy of the reference.

    A score, protection or budget without a twin runs on the host, which is slow; a warning says so.

    Raises:
        ValueError: if its precision has no twin.
    """
    return Policy(
        policy,
        port_part(policy.score),
        port_part(policy.protect),
        port_part(policy.budget),
        port_part(policy.precision),
    )


def port_part(part: Any) -> Any:
    """Return the twin of a part of a policy, with the same parameters, or the part on the host.

    Raises:
        ValueError: if a precision has no twin.
    """
    twin = find_twin(type(part))
    if twin is not None:
        assert is_dataclass(part)
        ported = twin(**{f.name: port_part(getattr(part, f.name)) for f in fields(part)})
        object.__setattr__(ported, "specification", part)
        return ported
    if isinstance(part, reference.Score):
        return HostScore(part)
    if isinstance(part, reference.Protect):
        return HostProtect(part)
    if isinstance(part, reference.Budget):
        return HostBudget(part)
    if isinstance(part, reference.Precision):
        name = type(part).__name__
        raise ValueError(
            f"precision {name} has no twin in PyTorch: write a Precision of "
            "kvlab.fast.engine.policy that has the same fields and stores what `store` says, and "
            f"mark it @twin_of({name}); "
            "kvlab.fast.methods.kivi is an example"
        )
    return part


def find_twin(part: type) -> type | None:
    """Return the twin of a part of the reference; None if it has none."""
    if part not in TWINS and part.__module__.startswith(REFERENCE):
        inner = part.__module__.removeprefix(REFERENCE)
        module = f"{FAST}{inner}" if "." in inner else f"{FAST}engine.{inner}"
        if find_spec(module) is not None:
            import_module(module)
    return TWINS.get(part)
