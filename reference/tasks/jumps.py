"""Jump programs: the result of every line says which line runs next.

A problem states the registers, a program in shuffled order, and the line that runs first. The
solution writes the run down, step by step, until line ``L0``, which halts::

    \\n d4 e9 a3 f7 h7 c1 L7 c . + f . = . . L1 c . + h . = . . ... \\n L4          prompt
    f f7 + h h7 = 4 f4 L4 f f4 + h h7 = 1 f1 L1 c c1 + h h7 = 8 c8 ... L0 \\n      solution

Line ``L4`` adds register ``h`` to register ``f``, modulo 10, and the sum is the number of the next
line. A step has as many tokens as its line: a point stands where the step has a number.

With ``copies=3`` registers and lines are stated three times, in new orders, and so is the result of
every step: ``c c1 + h h7 = 8 c8 c8 c8 L8``. The program is the same.

Everything that a step copies was written before, at distances that depend on the run: the names of
its registers where its line stands or last ran, and each value where its register was last read or
written. Old copies of a value are wrong as soon as the register is written again.

Registers come in groups of eight letters, and each group has ten labels of its own: a sum in one of
``a`` to ``h`` leads to ``L0`` to ``L9``, in one of ``i`` to ``p`` to ``M0`` to ``M9``, in one of
``q`` to ``x`` to ``N0`` to ``N9``. Only ``L0`` halts; every other label has a line.
"""

import string
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import numpy as np

from kvlab.reference.checks import check_at_least, check_between
from kvlab.reference.notation import Array, Int
from kvlab.reference.tasks import Grade

END = "\n"
"""Opens a problem, separates prompt from solution, and ends the solution."""
BLANK = "."
"""Stands in a line of the program where a step has a number."""

GROUP = 8
"""Letters of a group of registers."""
REGISTERS = tuple(string.ascii_lowercase[: 3 * GROUP])
LABELS = tuple(f"{letter}{digit}" for letter in "LMN" for digit in range(10))
MOST_GROUPS = len(REGISTERS) // GROUP
HALT = 0
"""Number of the label that has no line."""

STEP = 9
"""Tokens of a step, and of a line of the program, that state a result once."""
X, X_VALUE, Y, Y_VALUE, SUM, RESULT = 1, 2, 4, 5, 7, 8
"""Places of the parts of a step; the label is at place 0."""
FACTS = X, X_VALUE, Y, Y_VALUE
"""Places of what a step copies from anywhere in the text."""

_DRAWN = 4096
"""Programs that are drawn at once: most of them halt too early or never."""
_MOST_DRAWS = 100
_HELD_OUT_SHARE = 4
"""One in so many problems is held out of training."""
_DRILLED = np.exp(-0.3 * np.arange(10)) / np.exp(-0.3 * np.arange(10)).sum()
"""How often a drill draws each digit."""


@dataclass(frozen=True)
class Size:
    """How large problems are."""

    groups: int = 1
    """Groups of registers; a program has ten lines for each, less the one that would be ``L0``."""
    registers: int = 6
    """Registers of each group."""
    fewest: int = 45
    """Steps of the shortest run."""
    most: int = 65
    """Steps of the longest run."""
    copies: int = 1
    """How often registers, lines and results are stated."""

    def __post_init__(self) -> None:
        check_at_least(1, copies=self.copies)
        check_between(1, MOST_GROUPS, groups=self.groups)
        check_between(2, GROUP, registers=self.registers)
        if not 1 <= self.fewest <= self.most:
            raise ValueError(
                f"fewest = {self.fewest} and most = {self.most} must satisfy 1 <= fewest <= most"
            )

    @property
    def lines(self) -> int:
        """Lines of the program."""
        return 10 * self.groups - 1


SIZES = {
    250: Size(fewest=18, most=22),
    600: Size(),
    1000: Size(2, 6, 80, 100),
    2000: Size(3, 6, 180, 210),
}
"""Sizes by the number of tokens that their problems have, roughly."""


class Line(NamedTuple):
    """A line of the program: it adds register y to register x. All are indices of names."""

    label: int
    x: int
    y: int


class Step(NamedTuple):
    """One line's turn in a run."""

    line: Line
    x: int
    """Value of register x before the step."""
    y: int
    result: int
    following: int
    """Label that comes next."""

    def text(self, copies: int = 1) -> str:
        """Return what the step writes after its own label, the next label included."""
        x, y, following = REGISTERS[self.line.x], REGISTERS[self.line.y], LABELS[self.following]
        results = f" {x}{self.result}" * copies
        return f"{x} {x}{self.x} + {y} {y}{self.y} = {self.result}{results} {following}"


@dataclass(frozen=True)
class Problem:
    """A program with its registers, and its run."""

    registers: tuple[tuple[int, int], ...]
    """Numbers of the registers' names, and their first values, in the order of the prompt."""
    lines: tuple[Line, ...]
    """Lines of the program, in the order of the prompt."""
    steps: tuple[Step, ...]
    copies: int = 1
    """How often registers, lines and results are stated."""

    @property
    def step(self) -> int:
        """Tokens of a step, and of a line of the program."""
        return STEP - 1 + self.copies

    @property
    def stated(self) -> tuple[list[tuple[int, int]], list[Line]]:
        """Registers and lines as the prompt states them; the program decides each new order."""
        rng = np.random.default_rng(zlib.crc32(repr((self.registers, self.lines)).encode()))
        registers, lines = [*self.registers], [*self.lines]
        for _ in range(1, self.copies):
            registers += [self.registers[i] for i in rng.permutation(len(self.registers))]
            lines += [self.lines[i] for i in rng.permutation(len(self.lines))]
        return registers, lines

    @property
    def prompt(self) -> str:
        """What is given, as tokens separated by single blanks."""
        registers, lines = self.stated
        blanks = " ." * self.copies
        return " ".join(
            [
                END,
                *[f"{REGISTERS[name]}{value}" for name, value in registers],
                *[
                    f"{LABELS[k]} {REGISTERS[x]} . + {REGISTERS[y]} . = .{blanks}"
                    for k, x, y in lines
                ],
                END,
                LABELS[self.steps[0].line.label],
            ]
        )

    @property
    def solution(self) -> str:
        """What has to be written, in the same form."""
        return " ".join([*[step.text(self.copies) for step in self.steps], END])

    @property
    def text(self) -> str:
        """Prompt and solution."""
        return f"{self.prompt} {self.solution}"

    @property
    def tokens(self) -> int:
        """Tokens of prompt and solution together."""
        prompt = self.copies * (len(self.registers) + self.step * len(self.lines))
        return prompt + self.step * len(self.steps) + 4


def vocabulary() -> tuple[str, ...]:
    """Return every token of the task; a register with its value, such as ``c9``, is one token."""
    digits = tuple(str(digit) for digit in range(10))
    facts = tuple(f"{name}{digit}" for name in REGISTERS for digit in range(10))
    return (END, BLANK, "+", "=", *digits, *LABELS, *REGISTERS, *facts)


_WORDS = frozenset(vocabulary())


def read_tokens(texts: Sequence[str]) -> list[str]:
    """Return what people read in the place of each token; joined, they are lines.

    ``L3 a . + h . = . .`` becomes ``L3 a = a + h, then go to L<a>``, and a written step
    ``L3 a (1) + h (2) = 3 → a=3``, as on the playground. Texts with a token that is none of the
    task's stay as they are.
    """
    words = [text.strip(" ") for text in texts]
    if not _WORDS.issuperset(words):
        return [*texts]
    found, place, label, register = [], -len(words) - 1, "", ""
    for at, word in enumerate(words):
        place = -len(words) if word == END else 0 if word in LABELS else place + 1
        label = word if place == 0 else label
        register = word if place == X else register
        text, between = "" if word == END else word, "\n" if place == 0 else " "
        if place == 0 and words[max(0, at - 1)] == END:
            text = f"start at {word}"
        elif word[0] in REGISTERS and len(word) > 1:
            given = {X_VALUE: f"({word[1]})", Y_VALUE: f"({word[1]})"}
            text = given.get(place, f"{'→ ' * (place == RESULT)}{word[0]}={word[1]}")
        elif place >= X_VALUE and words[at - place + X_VALUE :][:1] == [BLANK]:
            meant = {X_VALUE: f"= {register}", Y_VALUE: ", then", Y_VALUE + 1: "go", SUM: "to"}
            text = (meant | {RESULT: f"{label[0]}<{register}>"}).get(place, word)
        found.append(text if text[:1] in ("", ",") or not any(found) else between + text)
    return found


def grade(problem: Problem, text: str) -> Grade:
    """Compare a written run with the right one, step by step."""
    expected, written = problem.solution.split(" "), text.strip(" ").split(" ")
    correct, length = 0, problem.step
    for step, turn in enumerate(problem.steps):
        if " ".join(written[step * length : (step + 1) * length]) != turn.text(problem.copies):
            break
        correct += 1
    return Grade(
        answer_correct=written[-length - 1 :] == expected[-length - 1 :],
        solution_correct=written == expected,
        correct_steps=correct,
    )


def held_out(count: int, seed: int = 0, size: Size = SIZES[600]) -> list[Problem]:
    """Return problems that training never draws; the first are the same for every ``count``."""
    check_at_least(0, count=count, seed=seed)
    drawn = draw(np.random.default_rng(seed), size)
    return list(islice(filter(is_held_out, drawn), count))


def training(rng: np.random.Generator, size: Size) -> Iterator[Problem]:
    """Yield problems that are not held out, without end; errors are those of `draw`."""
    return (problem for problem in draw(rng, size) if not is_held_out(problem))


def is_held_out(problem: Problem) -> bool:
    """Say whether a problem is kept for evaluation: a checksum of what it states once decides."""
    return zlib.crc32(replace(problem, copies=1).prompt.encode()) % _HELD_OUT_SHARE == 0


def draw(rng: np.random.Generator, size: Size) -> Iterator[Problem]:
    """Yield random programs whose runs have a length inside the size's range, without end."""
    without = 0
    while without < _MOST_DRAWS:
        found = _draw_many(rng, size)
        without = 0 if found else without + 1
        yield from found
    raise ValueError(f"runs of {size.fewest} to {size.most} steps are too rare with {size}")


def _draw_many(rng: np.random.Generator, size: Size) -> list[Problem]:
    """Draw programs and return those whose run has a length inside the range."""
    registers, labels = size.groups * size.registers, 10 * size.groups
    names = rng.permuted(np.tile(np.arange(GROUP), (_DRAWN, size.groups, 1)), axis=2)
    names = (names + GROUP * np.arange(size.groups)[:, None])[:, :, : size.registers]
    names = rng.permuted(names.reshape(_DRAWN, registers), axis=1)
    x = rng.integers(registers, size=(_DRAWN, labels))
    y = (x + rng.integers(1, registers, size=x.shape)) % registers
    program = np.stack([np.take_along_axis(names, operand, axis=1) for operand in (x, y)], axis=2)
    values = rng.integers(10, size=(_DRAWN, GROUP * size.groups))
    start = rng.integers(1, labels, size=_DRAWN)
    problems = []
    for i in np.flatnonzero(_lengths(program, values, start, size.most) >= size.fewest):
        order = 1 + rng.permutation(size.lines)
        lines = [Line(int(label), *map(int, program[i, label])) for label in order]
        stated = [(int(name), int(values[i, name])) for name in names[i]]
        problems.append(run(stated, lines, int(start[i]), size.copies))
    return problems


def _lengths(
    program: Int[Array, "programs labels 2"],
    values: Int[Array, "programs names"],
    start: Int[Array, " programs"],
    most: int,
) -> Int[Array, " programs"]:
    """Return how many steps each program runs; 0 where it does not halt within ``most`` steps."""
    values, steps = values.copy(), np.zeros(len(program), dtype=int)
    running, label = np.arange(len(program)), start
    for step in range(1, most + 1):
        x, y = program[running, label].T
        values[running, x] = (values[running, x] + values[running, y]) % 10
        label = 10 * (x // GROUP) + values[running, x]
        steps[running[label == HALT]] = step
        running, label = running[label != HALT], label[label != HALT]
    return steps


def run(
    registers: Sequence[tuple[int, int]], lines: Sequence[Line], start: int, copies: int = 1
) -> Problem:
    """Run a program until it halts; one that never halts runs for ever."""
    values, line_of = dict(registers), {line.label: line for line in lines}
    steps, label = [], start
    while label != HALT:
        line = line_of[label]
        x, y = values[line.x], values[line.y]
        values[line.x] = (x + y) % 10
        label = 10 * (line.x // GROUP) + values[line.x]
        steps.append(Step(line, x, y, values[line.x], label))
    return Problem(tuple(registers), tuple(lines), tuple(steps), copies)


def drill(rng: np.random.Generator, steps: int, groups: int = 1) -> list[str]:
    """Draw unrelated steps, as tokens: only sums and results follow from what stands before.

    Small digits are drawn more often: a table of sums is learned sooner from unequal shares.
    """
    tokens = []
    for _ in range(steps):
        x, y = (int(name) for name in rng.integers(GROUP * groups, size=2))
        a, b = (int(value) for value in rng.choice(10, size=2, p=_DRILLED))
        total = (a + b) % 10
        step = Step(Line(0, x, y), a, b, total, 10 * (x // GROUP) + total)
        tokens += [LABELS[int(rng.integers(10 * groups))], *step.text().split(" ")[:-1]]
    return tokens
