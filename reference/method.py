"""What a file in ``methods/`` has to offer: hyper-parameters that make a policy, and its papers."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from kvlab.reference.policy import Policy


@dataclass(frozen=True)
class Divergence:
    """One point on which the paper, its authors' code and popular re-implementations differ."""

    topic: str
    paper: str
    elsewhere: str
    default: str
    option: str
    """The options, in registry syntax, that give the other readings; or words."""

    @property
    def specifications(self) -> tuple[str, ...]:
        """The options that can be typed as they stand."""
        return tuple(SPECIFICATION.findall(self.option))


SPECIFICATION = re.compile(r"\w+(?::\w+)?@\w+=[\w.]+(?:,\w+=[\w.]+)*|\w+:\w+")
"""``name@option=value,...``, or a wrapper and its base."""


class Method(ABC):
    """Hyper-parameters of one method, as fields of a frozen dataclass.

    Field names are the option names of the registry syntax ``name@field=value``.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    """Paper, arXiv identifier, sections."""
    equations: ClassVar[tuple[str, ...]]
    """Tags of the equations that the file implements, each tagged once in its code."""
    variants: ClassVar[Mapping[str, str]] = {}
    """Names of the papers' ablations and variants, and what they are in registry syntax."""
    divergences: ClassVar[tuple[Divergence, ...]] = ()
    budgeted: ClassVar[bool] = True
    """Whether a budget has to be given; the others state their memory by their own parameters."""

    @abstractmethod
    def policy(self, budget: int | None) -> Policy:
        """Compose the four answers for a budget of entries per KV head and layer."""


def require_budget(name: str, budget: int | None) -> int:
    """Return the budget.

    Raises:
        ValueError: if none was given or it is below one entry.
    """
    if budget is None:
        raise ValueError(f"{name} needs a budget: a number of entries, at least 1")
    if budget < 1:
        raise ValueError(f"budget = {budget} must be at least 1")
    return budget


def refuse_budget(name: str, budget: int | None) -> None:
    """Raise ValueError if a budget was given to a method that evicts nothing."""
    if budget is not None:
        raise ValueError(f"{name} evicts nothing and takes no budget, got budget = {budget}")
