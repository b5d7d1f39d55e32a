"""Needle in a haystack: a fact stated somewhere in a text, asked for at its end.

For models that read any text, the needle is a number in a sentence (after Kamradt, 2023; CAOTE
Fig. 2). Several needles can share a text: then each is asked for in a problem of its own, and a
policy that compresses the text does not know which question will come. The embedded model knows
definitions alone: there each definition of a problem is a needle, asked for when the solution comes
to it.
"""

import re
from dataclasses import dataclass
from itertools import accumulate, pairwise, zip_longest

import numpy as np

from kvlab.reference.checks import check_at_least, check_between, check_share
from kvlab.reference.tasks import english, reasoning

CITIES = ("Oslo", "Lima", "Accra", "Hanoi", "Quito", "Turin", "Perth", "Kyoto", "Dakar", "Minsk")
"""Cities whose secret numbers are hidden."""

KINDS = (
    ("The secret number of {} is", "What is the secret number of {}?", CITIES),
    ("The code of the {} safe is", "What is the code of the {} safe?", ("blue", "red", "green")),
    (
        "The telephone number of the {} is",
        "What is the telephone number of the {}?",
        ("baker", "doctor", "painter"),
    ),
    ("The price of the {} was", "What was the price of the {}?", ("boat", "clock", "piano")),
    (
        "The votes for {} in the election were",
        "How many were the votes for {} in the election?",
        ("Carla", "Ivan", "Noor"),
    ),
)
"""Needles that share a text: opening of the sentence, question, and whom they may be about. All are
of different kinds, since small models confuse needles that are alike."""


@dataclass(frozen=True)
class Needle:
    """A sentence to hide, the question for it, and what has to follow the question."""

    sentence: str
    question: str
    opening: str
    """How an answer begins."""
    answer: str
    """Text that has to follow the opening directly."""

    @property
    def topic(self) -> str:
        """What the sentence is about: the code of the blue safe."""
        words = self.opening.rpartition(" ")[0]
        return words[0].lower() + words[1:]


def draw(rng: np.random.Generator, kind: int = 0) -> Needle:
    """Draw whom a needle of one of the `KINDS` is about, and its number of six digits."""
    opening, question, owners = KINDS[kind]
    owner = owners[int(rng.integers(len(owners)))]
    number = int(rng.integers(100_000, 1_000_000))
    opening = opening.format(owner)
    return Needle(f"{opening} {number}.", question.format(owner), opening, f" {number}")


@dataclass(frozen=True)
class Problem:
    """A text with needles, and the question for one of them."""

    context: str
    """The text."""
    question: str
    """What follows the text: the question, and how its answer begins."""
    solution: str
    depth: float
    """Share of the text before the needle, 0 to 1; of several needles, before the last one."""

    @property
    def prompt(self) -> str:
        """The text and the question."""
        return self.context + self.question


def haystacks(count: int, seed: int, words: int, needles: int) -> list[Problem]:
    """Hide needles in passages of the novel, each at another depth, and ask for every one.

    So many problems share a passage; the first problems are the same for every ``count``.
    """
    _check(count, seed, needles=needles)
    problems: list[Problem] = []
    while len(problems) < count:
        text, hidden, depths = _haystack(seed, words, needles, len(problems))
        problems += [
            Problem(text, f"\n\n{each.question} {each.opening}", f"{each.answer}.", depth)
            for each, depth in zip(hidden, depths, strict=True)
        ]
    return problems[:count]


def readings(count: int, seed: int, words: int, facts: int) -> list[Problem]:
    """Hide facts in passages of the novel, and ask for all facts of a passage at once.

    To continue a right beginning, the model has to go back to another place of the text. The first
    problems are the same for every ``count``.
    """
    _check(count, seed, facts=facts)
    problems = []
    for number in range(count):
        text, hidden, depths = _haystack(seed, words, facts, number)
        topics = " and ".join(each.topic for each in hidden)
        question = f"\n\nWrite the sentences about {topics}.\n\n{hidden[0].opening}"
        first, *others = hidden
        solution = "\n".join([f"{first.answer}.", *(each.sentence for each in others)])
        problems.append(Problem(text, question, solution, depths[-1]))
    return problems


def _check(count: int, seed: int, **needles: int) -> None:
    check_at_least(0, count=count, seed=seed)
    check_between(1, len(KINDS), **needles)


def _haystack(
    seed: int, words: int, needles: int, number: int
) -> tuple[str, list[Needle], list[float]]:
    rng = np.random.default_rng([seed, words, needles, number])
    text = english.passage(rng, words)
    hidden = [draw(rng, int(kind)) for kind in rng.permutation(len(KINDS))[:needles]]
    depths = [(place + 0.5) / needles for place in range(needles)]
    for needle, depth in zip(hidden, depths, strict=True):
        text = hide(text, needle.sentence, depth)
    return text, hidden, depths


def is_found(problem: Problem, text: str) -> bool:
    """Say whether the right number was written."""
    return text.strip() == problem.solution.strip()


def numbers_found(problem: Problem, text: str) -> list[bool]:
    """Say of each number of the solution whether it was written at its place among the numbers."""
    wanted, written = (re.findall(r"\d+", each) for each in (problem.solution, text))
    return [number == one for number, one in zip_longest(wanted, written[: len(wanted)])]


def hide(hay: str, sentence: str, depth: float) -> str:
    """Put a sentence between two sentences of a text, as near to a depth as their ends allow.

    Depth is the share of the text that comes before, 0 to 1.
    """
    check_share(depth=depth)
    inside = (found.end() for found in re.finditer(r"[.!?](?=\s)", hay))
    borders = sorted({0, *inside, len(hay)})
    place = min(borders, key=lambda end: abs(end - depth * len(hay)))
    parts = hay[:place].strip(), sentence, hay[place:].strip()
    return " ".join(part for part in parts if part)


def steps(problem: reasoning.Problem) -> list[slice]:
    """Return where the solution's tokens work out each definition, in the order of definitions."""
    lengths = [len(step.split(" ")) + 1 for step in problem.solution.split(" ; ")[:-1]]
    ends = [0, *accumulate(lengths)]
    return [slice(first, last) for first, last in pairwise(ends)]
