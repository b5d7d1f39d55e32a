"""Needle in a haystack: a fact stated somewhere in a text, asked for at its end.

For models that read any text, the needle is a number in a sentence (after Kamradt, 2023; CAOTE
Fig. 2). The embedded model knows definitions alone: there each definition of a problem is a needle,
asked for when the solution comes to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from kvlab.reference.tasks import reasoning

CITIES = ("Oslo", "Lima", "Accra", "Hanoi", "Quito", "Turin", "Perth", "Kyoto", "Dakar", "Minsk")
"""Whose secret numbers are hidden."""


@dataclass(frozen=True)
class Needle:
    """A sentence to hide, the question for it, and what has to follow the question."""

    sentence: str
    question: str
    opening: str
    """How an answer begins."""
    answer: str
    """What has to follow directly."""


def secret_number(rng: np.random.Generator) -> Needle:
    """Draw a city and its number of six digits."""
    city = CITIES[int(rng.integers(len(CITIES)))]
    number = int(rng.integers(100_000, 1_000_000))
    return Needle(
        f"The secret number of {city} is {number}.",
        f"What is the secret number of {city}?",
        f"The secret number of {city} is",
        f" {number}",
    )


def hide(hay: str, sentence: str, depth: float) -> str:
    """Put a sentence between two sentences of a text, as near to a depth as their ends allow.

    Args:
        hay: the text.
        sentence: what to hide.
        depth: share of the text that comes before, 0 to 1.

    Raises:
        ValueError: if ``depth`` is not between 0 and 1.
    """
    if not 0 <= depth <= 1:
        raise ValueError(f"depth = {depth} must be between 0 and 1")
    borders = sentence_ends(hay)
    place = min(borders, key=lambda end: abs(end - depth * len(hay)))
    parts = hay[:place].strip(), sentence, hay[place:].strip()
    return " ".join(part for part in parts if part)


def sentence_ends(text: str) -> list[int]:
    """Return where sentences end, and both ends of the text."""
    inside = [
        number + 1
        for number, (one, after) in enumerate(pairwise(text))
        if one in ".!?" and after.isspace()
    ]
    return sorted({0, *inside, len(text)})


def definitions(count: int, variables: int, seed: int = 0) -> list[reasoning.Problem]:
    """Return held-out problems of one length, whose definitions are the needles.

    Raises:
        ValueError: if ``variables`` is no length of a held-out problem, or ``count`` or ``seed`` is
            negative.
    """
    if variables not in reasoning.HELD_OUT_VARIABLES:
        raise ValueError(
            f"variables = {variables} must be one of "
            f"{', '.join(map(str, reasoning.HELD_OUT_VARIABLES))}"
        )
    return reasoning.held_out(count, seed, variables)


def steps(problem: reasoning.Problem) -> list[slice]:
    """Return where the solution's tokens work out each definition, in the order of definitions."""
    lengths = [len(step.split(" ")) + 1 for step in problem.solution.split(" ; ")[:-1]]
    ends = [0, *accumulate(lengths)]
    return [slice(first, last) for first, last in pairwise(ends)]


def nearest(value: float, among: Sequence[float]) -> int:
    """Return the number of the value that is nearest; of two the first."""
    return int(np.argmin(np.abs(np.asarray(among) - value)))
