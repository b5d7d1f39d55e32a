"""What can be asked of a model: problems that are drawn by seed, and graded, or texts to rate.

A task is written in registry syntax, ``reasoning@variables=16``. A new kind of task is a class with
the two methods of `Task` or with ``questions`` of `Rated`, and its line in `TASKS`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Int

from kvlab.fast.lab.evaluate.own import COMPARED, OwnProblem, lines_of, passage
from kvlab.fast.lab.points import tokens_after
from kvlab.reference.checks import check_at_least, check_between, check_choice
from kvlab.reference.method import check_options
from kvlab.reference.methods import read_options
from kvlab.reference.notation import Array
from kvlab.reference.tasks import english, jumps, jumps_oracle, needle, reasoning


@dataclass(frozen=True)
class Outcome:
    """How an answer was graded."""

    solved: bool
    """Whether the problem counts as solved in the accuracy."""
    answer_correct: bool
    """Whether the final answer is right, however it was reached."""


Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Question:
    """A problem, or a text to rate, as token ids."""

    number: int
    problem: Any
    prompt: Sequence[int]
    solution: Sequence[int]
    """A right answer, or the tokens whose likelihood is rated."""
    shared: int = 0
    """Tokens at the start of the prompt that are compressed before the others are known."""
    asked: slice | None = None
    """The rated tokens that solve the problem if each is the likeliest; None: all."""

    def __len__(self) -> int:
        return len(self.prompt) + len(self.solution)

    @property
    def stop(self) -> int | None:
        """Last token of the solution, which ends an answer; None if the solution has it twice."""
        *others, last = self.solution
        return None if last in others else last

    @property
    def limit(self) -> int:
        """Tokens after which an answer is cut: a quarter more than the solution has."""
        return len(self.solution) * 5 // 4


class Task(ABC):
    """A source of problems; a frozen dataclass whose fields are its options."""

    one_answer: ClassVar[bool] = False
    """Whether a problem is solved only by its right answer, token by token."""
    text: Any = None
    """Name of the file that the task reads, if it reads one."""

    @property
    def recent(self) -> int | None:
        """Newest entries that the oracle keeps; None: the task has no oracle."""
        return None

    @property
    def asks_after(self) -> bool:
        """Whether a prompt's text is compressed before the question about it is known.

        Such problems have ``context`` and ``question``; neighbours of one context share a cache.
        """
        return False

    @abstractmethod
    def problems(self, count: int, seed: int) -> Sequence[Any]:
        """Draw problems, each with a ``prompt`` and a ``solution`` whose last token ends an answer.

        The first ones are the same for every ``count``. ValueError if there cannot be so many.
        """

    @abstractmethod
    def grade(self, problem: Any, text: str) -> Outcome:
        """Grade what was written after the prompt of one of the problems."""

    def questions(self, tokenizer: Any, encode: Encode, count: int, seed: int) -> list[Question]:
        """Put problems into token ids; only a `Rated` task needs the ``tokenizer``."""
        found = []
        for number, problem in enumerate(self.problems(count, seed)):
            each: Any = problem
            before = encode(each.context) if self.asks_after else []
            after = encode(each.question if self.asks_after else each.prompt)
            solution = encode(each.solution)
            found.append(Question(number, each, [*before, *after], solution, len(before)))
        return found

    def counts(self, tokens: int) -> Bool[Array, " t"]:
        """Return which tokens of a draft count, of so many."""
        return np.ones(tokens, dtype=bool)

    def next_use(self, problem: Any) -> Int[Array, "t t"]:
        """Return for every moment and every entry which query uses the entry next."""
        raise ValueError(f"task {type(self).__name__.lower()} has no oracle")


@dataclass(frozen=True)
class Reasoning(Task):
    """Chained arithmetic that the embedded reasoner solves (`kvlab.reference.tasks.reasoning`)."""

    one_answer = True

    variables: int | None = None
    """Variables of every problem; None: the mixture of `reasoning.HELD_OUT_VARIABLES`."""

    def problems(self, count: int, seed: int) -> Sequence[reasoning.Problem]:
        return reasoning.held_out(count, seed, self.variables)

    def grade(self, problem: reasoning.Problem, text: str) -> Outcome:
        """Count a problem as solved if its whole solution was written."""
        grade = reasoning.grade(problem, text)
        return Outcome(grade.answer_correct and grade.solution_correct, grade.answer_correct)


@dataclass(frozen=True)
class Jumps(jumps.Size, Task):
    """Jump programs (`kvlab.reference.tasks.jumps`) of a size."""

    one_answer = True

    facts: bool = False
    """Whether of a drafted step only the names of its registers and their values count."""

    @property
    def recent(self) -> int:
        return jumps.STEP - 1 + self.copies

    def problems(self, count: int, seed: int) -> Sequence[jumps.Problem]:
        size = {name: value for name, value in vars(self).items() if name != "facts"}
        return jumps.held_out(count, seed, jumps.Size(**size))

    def counts(self, tokens: int) -> Bool[Array, " t"]:
        """Return which tokens of a run count in drafts: all, or those that state facts."""
        facts = np.isin((1 + np.arange(tokens)) % self.recent, jumps.FACTS)
        facts[-1:] = False  # the last token ends the run
        return facts | (not self.facts)

    def grade(self, problem: jumps.Problem, text: str) -> Outcome:
        """Count a problem as solved if its whole run was written."""
        grade = jumps.grade(problem, text)
        return Outcome(grade.solution_correct, grade.answer_correct)

    def next_use(self, problem: jumps.Problem) -> Int[Array, "t t"]:
        return jumps_oracle.next_use(problem)


@dataclass(frozen=True)
class InNovel(Task):
    """What is hidden in a novel, for models that read English (`kvlab.reference.tasks.needle`)."""

    words: int = 700
    """Words of the text."""
    question: str = "after"
    """Whether a text is compressed before its questions are known (``after``), or ``known``."""

    def __post_init__(self) -> None:
        check_choice(("after", "known"), question=self.question)

    @property
    def asks_after(self) -> bool:
        return self.question == "after"


@dataclass(frozen=True)
class Needle(InNovel):
    """Numbers hidden in a novel, each asked for in a problem of its own."""

    one_answer = True

    needles: int = 5
    """Needles in each text."""

    def problems(self, count: int, seed: int) -> Sequence[needle.Problem]:
        return needle.haystacks(count, seed, self.words, self.needles)

    def grade(self, problem: needle.Problem, text: str) -> Outcome:
        """Count a problem as solved if the right number was written, and nothing else."""
        found = needle.is_found(problem, text)
        return Outcome(found, found)


@dataclass(frozen=True)
class Reading(InNovel):
    """Facts from several places of a novel, asked for at once."""

    facts: int = 2
    """Facts that one answer must contain, in the order of the question."""

    def problems(self, count: int, seed: int) -> Sequence[needle.Problem]:
        return needle.readings(count, seed, self.words, self.facts)

    def grade(self, problem: needle.Problem, text: str) -> Outcome:
        """Count a problem as solved if every number was written; the first one is the answer."""
        found = needle.numbers_found(problem, text)
        return Outcome(all(found), found[0])


@dataclass(frozen=True)
class OpenQuestion(Question):
    """A problem whose answer ends only with the tokens that it may have."""

    tokens: int = 0

    @property
    def stop(self) -> None:
        return None

    @property
    def limit(self) -> int:
        return self.tokens


@dataclass(frozen=True)
class Own(Task):
    """Problems of one's own, in an order drawn by seed.

    Each line of the file is a JSON object with ``prompt``, ``answer`` and ``compare``, one of
    `COMPARED` and ``exact`` by default.
    """

    text: str = ""
    """The file."""
    tokens: int = 64
    """Tokens of an answer, at most."""

    def __post_init__(self) -> None:
        check_at_least(1, tokens=self.tokens)

    def lines(self) -> list[OwnProblem]:
        """Return all problems, as the file orders them."""
        try:
            content = Path(self.text).read_text("utf-8")
        except OSError as error:
            raise ValueError(f"text = {self.text!r} cannot be read: {error.strerror}") from None
        return [OwnProblem.read(line, place) for place, line in lines_of(self.text, content)]

    def problems(self, count: int, seed: int) -> Sequence[OwnProblem]:
        found = self.lines()
        check_between(1, len(found), **{f"problems of {self.text}": count})
        return [found[n] for n in np.random.default_rng(seed).permutation(len(found))[:count]]

    def questions(self, tokenizer: Any, encode: Encode, count: int, seed: int) -> list[Question]:
        return [
            OpenQuestion(
                number, each, encode(each.prompt), encode(each.solution), tokens=self.tokens
            )
            for number, each in enumerate(self.problems(count, seed))
        ]

    def graded(self, problem: OwnProblem, tokens: Sequence[int], decode: Any) -> Sequence[int]:
        """Return the tokens that decide: where the first line is compared, those up to its end."""
        ends = (n for n in range(1, len(tokens)) if "\n" in decode(tokens[:n]).lstrip())
        return tokens[: next(ends, None)] if problem.compare == "exact" else tokens

    def grade(self, problem: OwnProblem, text: str) -> Outcome:
        right = COMPARED[problem.compare](problem.solution, text)
        return Outcome(right, right)


MOST = 0.9
"""Share of what could be rated after an eviction that `Rated.block_for` asks for."""


@dataclass(frozen=True)
class Rated(Task):
    """Texts of which a part is rated; nothing is written.

    With `one_answer`, a text counts as solved if every token that it asks for is the likeliest.
    """

    drawn: ClassVar[bool] = True
    """Whether every seed draws other texts."""
    block_size: ClassVar[int] = 128
    """Tokens of a block, unless a sweep says another number or `block_for` chooses fewer."""
    only_drafts: ClassVar[bool] = False
    """Whether there is no text to rate but what the full cache writes."""

    feed: str = "blocks"
    """How rated tokens are fed: one by one as if written (steps), or as a prompt (blocks)."""

    def __post_init__(self) -> None:
        check_choice(("steps", "blocks"), feed=self.feed)
        options = vars(self).items()
        check_at_least(1, **{name: value for name, value in options if type(value) is int})

    def problems(self, count: int, seed: int) -> Sequence[Any]:
        return ()

    def grade(self, problem: Any, text: str) -> Outcome:
        raise ValueError("nothing is written that could be graded")

    def block_for(self, questions: Sequence[Question], budgets: Collection[int]) -> int:
        """Return the largest block in which `MOST` of the tokens come after an eviction."""

        def after(budget: int, size: int) -> int:
            first = (budget // size + 1) * size
            return sum(tokens_after(first, len(q.prompt), len(q.solution)) for q in questions)

        wanted = {budget: MOST * after(budget, 1) for budget in budgets}
        return next(
            size
            for size in range(self.block_size, 0, -1)
            if all(after(budget, size) >= most for budget, most in wanted.items())
        )


@dataclass(frozen=True)
class Windows(Rated):
    """Windows of a text, as ``kvlab perplexity`` reads them."""

    drawn = False

    text: str | None = None
    """UTF-8 file; None: the novel in the package."""
    window: int = 4096
    """Tokens of a window."""
    prompt: int = 1
    """Tokens at the start of a window that are not rated."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(2, window=self.window)
        check_between(1, self.window - 1, prompt=self.prompt)

    def questions(self, tokenizer: Any, encode: Encode, count: int, seed: int) -> list[Question]:
        """Cut windows from the start; ValueError if the text has too few."""
        from kvlab.fast.lab.evaluate.likelihood import cut_windows
        from kvlab.fast.lab.generation import token_ids

        cut = cut_windows(token_ids(tokenizer, passage(self.text)), self.window, self.prompt, count)
        if len(cut) < count:
            raise ValueError(f"problems = {count} must be at most the {len(cut)} windows of a text")
        return [Question(number, None, each.prompt, each.rated) for number, each in enumerate(cut)]


@dataclass(frozen=True)
class Solutions(Rated):
    """Solutions of another task, as ``kvlab perplexity`` rates those of an embedded model."""

    block_size = 16

    of: str = "reasoning"
    """The task, with at most one option."""

    def __post_init__(self) -> None:
        super().__post_init__()
        find_task(self.of)

    def questions(self, tokenizer: Any, encode: Encode, count: int, seed: int) -> list[Question]:
        return find_task(self.of).questions(tokenizer, encode, count, seed)


@dataclass(frozen=True)
class Haystack(Rated):
    """Numbers in a text, each hidden and asked for as in ``kvlab needle``."""

    one_answer = True

    feed: str = "steps"
    text: str | None = None
    """UTF-8 file; None: the novel in the package."""
    length: int = 1024
    """Tokens of the whole prompt, at most."""
    depths: int = 5
    """Depths, evenly spaced from the start to the end; problems take them in turn."""
    chat: bool = False
    """Apply the chat template."""

    def questions(self, tokenizer: Any, encode: Encode, count: int, seed: int) -> list[Question]:
        from kvlab.fast.lab.evaluate.needle import haystack

        hay, depths = passage(self.text), np.linspace(0, 1, self.depths).tolist()
        found = []
        for number in range(count):
            trial, place = divmod(number, self.depths)
            drawn = (seed, 0, place, trial)
            asked = haystack(tokenizer, hay, self.length, depths[place], drawn, self.chat)
            found.append(Question(number, None, *asked))
        return found


@dataclass(frozen=True)
class Definitions(Rated):
    """Definitions in problems of chained arithmetic; found if its step of the rated solution is."""

    one_answer = True

    feed: str = "steps"
    variables: int | None = None
    """Variables of every problem; None: the mixture of `reasoning.HELD_OUT_VARIABLES`."""
    depths: int = 5
    """Depths, evenly spaced from the first definition to the last; problems take them in turn."""

    def questions(self, tokenizer: Any, encode: Encode, count: int, seed: int) -> list[Question]:
        depths = np.linspace(0, 1, self.depths)
        found = []
        for number, problem in enumerate(reasoning.held_out(count, seed, self.variables)):
            places = needle.steps(problem)
            place = places[round(depths[number % self.depths] * (len(places) - 1))]
            tokens = encode(problem.prompt), encode(problem.solution)
            found.append(Question(number, None, *tokens, asked=place))
        return found


@dataclass(frozen=True)
class Chat(Rated):
    """Questions of everyday life, in the model's chat template; the full cache's answers count."""

    only_drafts = True

    tokens: int = 160
    """Tokens of an answer, at most."""

    def questions(self, tokenizer: Any, encode: Encode, count: int, seed: int) -> list[Question]:
        """Take questions in an order drawn by seed; ValueError if there are too few."""
        asked = english.questions()
        check_between(1, len(asked), problems=count)
        order = np.random.default_rng(seed).permutation(len(asked))[:count]
        return [
            Question(number, None, _in_chat(tokenizer, asked[place]), (0,) * self.tokens)
            for number, place in enumerate(order)
        ]


def _in_chat(tokenizer: Any, question: str) -> list[int]:
    message = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


TASKS: Mapping[str, type[Task]] = {
    "reasoning": Reasoning,
    "jumps": Jumps,
    "needle": Needle,
    "reading": Reading,
    "perplexity": Windows,
    "likelihood": Solutions,
    "haystack": Haystack,
    "definition": Definitions,
    "chat": Chat,
    "own": Own,
}


@cache
def find_task(spec: str) -> Task:
    """Return the task that ``spec`` names; ``FILE.jsonl`` is ``own@text=FILE.jsonl``."""
    name, _, written = spec.partition("@")
    if name.endswith(".jsonl"):
        name, written = "own", ",".join(filter(None, [f"text={name}", written]))
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}; known are {', '.join(TASKS)}")
    kind, options = TASKS[name], read_options(spec, written)
    allowed = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    if unknown := options.keys() - allowed:
        raise ValueError(
            f"unknown option {min(unknown)!r} of task {name}; allowed are {', '.join(allowed)}"
        )
    try:
        check_options(kind, name, options)
        task = kind(**options)
        if not task.text:  # a report on answers needs no file, which may have moved
            task.problems(1, seed=0)
    except (ValueError, TypeError) as error:
        raise ValueError(f"task {spec!r} cannot be drawn: {error}") from None
    return task


def rates_texts(task: str) -> bool:
    """Return whether a task has texts of its own to rate; to any other a method writes answers."""
    return isinstance(find_task(task), Rated)
