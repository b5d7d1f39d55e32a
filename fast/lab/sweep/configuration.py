"""What a comparison or a sweep asks for, and the TOML file that says it."""

import json
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from kvlab.fast.lab.evaluate import backends
from kvlab.fast.lab.evaluate.tasks import find_task
from kvlab.reference import methods
from kvlab.reference.checks import check_at_least, check_choice
from kvlab.reference.methods import takes_budget
from kvlab.reference.models import EMBEDDED
from kvlab.reference.selection import MOST_ENTRIES, budget_entries

MOST = {"problems": 2**31 - 1, "seeds": 2**63 - 1}
"""What the columns of the data set can hold."""

ORACLE = "oracle"
"""Name, among a sweep's methods, of the policy that knows what the rest of a run will need."""

MODEL, TASK = next(iter(EMBEDDED.items()))
"""Default model and task of a sweep."""


@dataclass(frozen=True)
class Sweep:
    """What to run: methods × budgets × tasks × models × seeds.

    Raises:
        ValueError: if a value is not allowed. Models are looked up when jobs are made of the sweep.
        TypeError: if an option of a method has the wrong type.
    """

    methods: tuple[str, ...]
    """Registry syntax, or ``oracle`` (fast backend, where the task has one). A method that draws at
    random is given the seed of the problems."""
    budgets: tuple[str, ...]
    """Entries, or percent of the mean tokens of prompt and solution, for methods that take a
    budget."""
    problems: int
    """Problems per task and seed."""
    models: tuple[str, ...] = (MODEL,)
    """Short names of embedded models, directories, or (fast backend) ids on the hub."""
    tasks: tuple[str, ...] = (TASK,)
    seeds: tuple[int, ...] = (0,)
    """Seeds of the problems: every seed draws other problems."""
    batch: int = 32
    """Problems that run together: one piece of work. Rounding depends on the batch, so another
    batch size gives other results."""
    measured: int = 0
    """The first problems of every seed on which output error, divergence and memory are
    measured."""
    backend: str = "fast"
    to_first_error: bool = False
    """Whether an answer ends at its first wrong token, which saves time. It needs tasks with one
    right answer each. The final answer after a wrong step is then not known."""
    block_size: int | None = None
    """Tokens per block of a prompt; None reads prompts at once."""
    pairs: tuple[tuple[str, str], ...] = ()
    """Methods that the report tests against each other, chosen before anything is run."""
    curves: tuple[str, ...] = ()
    """Methods that the report draws; it draws all if none is named."""

    def __post_init__(self) -> None:
        check_at_least(1, problems=self.problems, batch=self.batch)
        check_at_least(0, measured=self.measured)
        for seed in self.seeds:
            check_at_least(0, seed=seed)
        if self.problems > MOST["problems"]:
            raise ValueError(f"problems = {self.problems} must be at most {MOST['problems']}")
        if self.measured > self.problems:
            raise ValueError(
                f"measured = {self.measured} must not exceed problems = {self.problems}"
            )
        check_choice(backends.NAMES, backend=self.backend)
        if self.block_size is not None:
            check_at_least(1, block_size=self.block_size)
            if self.measured:
                raise ValueError("measured must be 0 with block_size: prompts are measured at once")
        self._check_lists()
        for spec in self.tasks:
            self._check_task(spec)
        self._check_methods()

    def _check_lists(self) -> None:
        for name in ("methods", "models", "tasks", "seeds"):
            if not getattr(self, name):
                raise ValueError(f"{name} must name at least one {name[:-1]}")
        for name in ("methods", "models", "tasks", "seeds", "budgets", "pairs", "curves"):
            values = getattr(self, name)
            if twice := [value for value in values if values.count(value) > 1]:
                raise ValueError(f"{name} names {twice[0]!r} twice")
        for name, specs in (("pairs", sum(self.pairs, ())), ("curves", self.curves)):
            if unknown := [spec for spec in specs if spec not in self.methods]:
                raise ValueError(f"{name} names {unknown[0]!r}, which is not among the methods")

    def _check_task(self, spec: str) -> None:
        task = find_task(spec)
        if task.asks_after and (self.measured or self.backend != "fast"):
            raise ValueError(
                f"task {spec!r} asks after the text is compressed, which needs backend 'fast' and "
                f"measured = 0, got {self.backend!r} and {self.measured}"
            )
        if self.to_first_error and not task.one_answer:
            raise ValueError(f"to_first_error needs one right answer each, which {spec} has not")
        if ORACLE in self.methods and (task.recent is None or self.backend != "fast"):
            raise ValueError(
                f"methods: {ORACLE} needs backend 'fast' and a task that knows what is needed, "
                f"got backend {self.backend!r} and task {spec!r}"
            )

    def _check_methods(self) -> None:
        for spec in self.methods:
            if spec == ORACLE:
                continue
            try:
                methods.parse(spec)
            except (ValueError, TypeError) as error:
                raise type(error)(f"methods: {spec}: {error}") from None
        if not self.budgets and (needing := [m for m in self.methods if budgeted(m)]):
            raise ValueError(f"budgets must name at least one: {needing[0]} takes a budget")
        for text in self.budgets:
            try:
                budget_entries(text, 100)
            except ValueError as error:
                raise ValueError(f"budgets: {error}") from None


def read_sweep(path: Path) -> Sweep:
    """Read and check a sweep.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is no TOML, a key is unknown or missing, or a value is not allowed.
        TypeError: if a value has the wrong type.
    """
    if not path.is_file():
        raise FileNotFoundError(f"sweep = {path} does not exist")
    try:
        written = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"sweep = {path} is not valid TOML: {error}") from None
    return make_sweep(written)


def make_sweep(written: Mapping[str, Any]) -> Sweep:
    """Make a sweep of plain data; the errors are those of `read_sweep`."""
    known = {field.name: field for field in fields(Sweep)}
    if unknown := written.keys() - known:
        raise ValueError(f"unknown key {min(unknown)!r} in a sweep; allowed are {', '.join(known)}")
    required = [name for name, field in known.items() if field.default is MISSING]
    if missing := [name for name in required if name not in written]:
        raise ValueError(f"key {missing[0]!r} is missing in the sweep")
    readers = {
        "problems": _count,
        "batch": _count,
        "measured": _count,
        "block_size": _count,
        "backend": _word,
        "to_first_error": _flag,
        "seeds": _seeds,
        "budgets": _budgets,
        "pairs": _pairs,
    }
    sweep = Sweep(
        **{name: readers.get(name, _words)(name, value) for name, value in written.items()}
    )
    check_methods(sweep.methods, [_most_entries(text) for text in sweep.budgets])
    return sweep


def to_plain(sweep: Sweep) -> dict[str, Any]:
    """Return a sweep as plain data, as `make_sweep` reads it: what is None is left out."""
    return {name: value for name, value in asdict(sweep).items() if value is not None}


def to_toml(sweep: Sweep) -> str:
    """Write a sweep as the file that `read_sweep` reads."""
    lines = []
    for name, value in to_plain(sweep).items():
        if isinstance(value, tuple) and value and not isinstance(value[0], int):
            entries = "".join(f"  {json.dumps(each, ensure_ascii=False)},\n" for each in value)
            lines.append(f"{name} = [\n{entries}]\n")
        else:
            lines.append(f"{name} = {json.dumps(value)}\n")
    return "".join(lines)


def budgeted(spec: str) -> bool:
    """Say whether one of a sweep's methods, or the oracle, takes a budget."""
    return spec == ORACLE or takes_budget(spec)


def check_methods(specs: Sequence[str], budgets: Collection[int]) -> None:
    """Raise ValueError if a method can be built with none of the budgets, in entries.

    A method that can be built with some of them is run; the report says why the other points have
    no figures.
    """
    for spec in specs:
        tried = budgets if budgeted(spec) else (None,)
        refusals = [reason for budget in tried if (reason := _refusal(spec, budget))]
        if tried and len(refusals) == len(tried):
            raise ValueError(f"methods: {spec}: {refusals[0]}")


def _refusal(spec: str, budget: int | None) -> str | None:
    if spec == ORACLE:
        return None
    try:
        methods.get(spec, budget)
    except ValueError as error:
        return str(error)
    return None


def _most_entries(text: str) -> int:
    """Return the most entries that a budget can be: for a percentage, the tokens decide."""
    return MOST_ENTRIES if text.strip().endswith("%") else budget_entries(text, 100)


# --- values of the file --------------------------------------------------------------------------


def _word(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} = {value!r} must be a text")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} = {value!r} must be true or false")
    return value


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} = {value!r} must be a whole number")
    return value


def _sequence(name: str, value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{name} = {value!r} must be a list")
    return value


def _words(name: str, value: Any) -> tuple[str, ...]:
    return tuple(_word(f"an entry of {name}", each) for each in _sequence(name, value))


def _seeds(name: str, value: Any) -> tuple[int, ...]:
    seeds = tuple(_count(f"an entry of {name}", each) for each in _sequence(name, value))
    if wrong := [seed for seed in seeds if not 0 <= seed <= MOST[name]]:
        raise ValueError(f"an entry of seeds = {wrong[0]} must be between 0 and {MOST[name]}")
    return seeds


def _budgets(name: str, value: Any) -> tuple[str, ...]:
    budgets = []
    for each in _sequence(name, value):
        if isinstance(each, bool) or not isinstance(each, int | str):
            raise TypeError(f"an entry of {name} = {each!r} must be a whole number or a percentage")
        budgets.append(str(each))
    return tuple(budgets)


def _pairs(name: str, value: Any) -> tuple[tuple[str, str], ...]:
    pairs = []
    for each in _sequence(name, value):
        words = _words(f"an entry of {name}", each)
        if len(words) != 2 or words[0] == words[1]:
            raise ValueError(f"an entry of {name} = {each!r} must name two methods")
        pairs.append((words[0], words[1]))
    return tuple(pairs)
