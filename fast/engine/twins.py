"""PyTorch implementations of the parts of a policy: each mirrors a part of the reference.

They are in the module of `kvlab.fast` that has the name of the parts' module in `kvlab.reference`,
or in `kvlab.fast.engine` for modules of the reference's core; it is imported when a part is first
asked for. ``class X(Score[reference.X])`` implements X; a class of another name, such as outside of
kvlab, in a file or module that ``KVLAB_METHODS`` names, too, is marked with `twin_of`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Generic, TypeVar, get_args

REFERENCE, FAST, ENGINE = "kvlab.reference.", "kvlab.fast.", "kvlab.fast.engine."

TWINS: dict[type, type] = {}
"""Part of a policy in the reference → the same part in tensors."""

Spec = TypeVar("Spec")
Kind = TypeVar("Kind", bound=type)


@dataclass(frozen=True)
class Twin(Generic[Spec]):
    """A part of the reference in tensors."""

    spec: Spec
    """The part in the reference: its options and what it declares of itself hold here, too."""

    runs_the_reference = False
    tensors_alone = False
    """Whether it computes with tensors alone, and with nothing that the host counts."""

    def __init_subclass__(cls) -> None:
        """Note whose implementation a class is that has its name and names it in brackets."""
        for base in vars(cls).get("__orig_bases__", ()):
            for part in get_args(base):
                if part.__name__ == cls.__name__:
                    twin_of(part)(cls)

    @property
    def on_host(self) -> bool:
        """Whether the reference computes it, or a part inside of it."""
        inner = (part.on_host for part in vars(self).values() if isinstance(part, Twin))
        return self.runs_the_reference or any(inner)


def twin_of(part: type) -> Callable[[Kind], Kind]:
    """Mark a class as the PyTorch implementation of a part of the reference.

    Its fields besides ``spec`` are given the PyTorch implementations of the part's fields of these
    names, such as a score inside of another.
    """

    def register(twin: Kind) -> Kind:
        TWINS[part] = twin
        twin.twin_of = part  # by which the registry of methods knows it
        return twin

    return register


def find_twin(part: type) -> type | None:
    """Return the PyTorch implementation of a part of the reference; None if it has none."""
    if part not in TWINS and part.__module__.startswith(REFERENCE):
        inner = part.__module__.removeprefix(REFERENCE)
        package = FAST if "." in inner or find_spec(f"{FAST}{inner}") else ENGINE
        module = f"{package}{inner}"
        if find_spec(module) is not None:
            import_module(module)
    return TWINS.get(part)
