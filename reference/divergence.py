"""Where a paper, its authors' code and popular re-implementations differ."""

import re
from dataclasses import dataclass

SPECIFICATION = re.compile(r"\w+(?::\w+)?@\w+=[\w.]+(?:,\w+=[\w.]+)*|\w+:\w+")
"""``name@option=value,...``, or a wrapper and its base."""


@dataclass(frozen=True)
class Divergence:
    """One point on which the paper, its authors' code and popular re-implementations differ."""

    topic: str
    paper: str
    default: str
    """What kvlab does."""
    elsewhere: str = "no code"
    """What the authors' code and re-implementations do."""
    option: str = "none"
    """The options, in registry syntax, that give the other readings; or words."""

    @property
    def specifications(self) -> tuple[str, ...]:
        """The options that can be typed as they stand."""
        return tuple(SPECIFICATION.findall(self.option))
