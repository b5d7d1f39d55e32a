"""What a sweep asks for: a TOML file."""

import json
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from kvlab.fast.lab.evaluate import backends
from kvlab.fast.lab.evaluate.compare import takes_budget
from kvlab.fast.lab.evaluate.tasks import find_task
from kvlab.fast.models import reasoner_directory
from kvlab.reference import methods
from kvlab.reference.selection import MOST_ENTRIES, budget_entries

MOST = {"problems": 2**31 - 1, "seeds": 2**63 - 1}
"""What the columns of the data set can hold."""

EMBEDDED = "reasoner"
"""How a sweep names the embedded model."""


@dataclass(frozen=True)
class Sweep:
    """A sweep, as its file states it."""

    methods: tuple[str, ...]
    """Registry syntax; a method that draws at random is given the seed of the problems, too."""
    budgets: tuple[str, ...]
    """Entries, or percent of the mean tokens of prompt and solution; only for methods that take
    one."""
    problems: int
    """Per task and seed."""
    models: tuple[str, ...] = (EMBEDDED,)
    """``reasoner``, Hugging Face directories, or (fast backend) ids on the hub."""
    tasks: tuple[str, ...] = ("reasoning",)
    seeds: tuple[int, ...] = (0,)
    """Of the problems: every seed draws others."""
    batch: int = 32
    """Problems that run together: one piece of work. Rounding depends on it, so it is part of what
    a result is a result of."""
    measured: int = 0
    """Of these first problems of every seed, output error, divergence and memory are measured."""
    backend: str = "fast"
    pairs: tuple[tuple[str, str], ...] = ()
    """Methods that the report tests against each other, settled before anything is run."""
    curves: tuple[str, ...] = ()
    """Methods that the report draws; none: all."""


def read_sweep(path: Path) -> Sweep:
    """Read and check a sweep; models are looked up when jobs are made of it.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is no TOML, a key is unknown or missing, or a value is not allowed.
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
    """Make a sweep of plain data; errors are those of `read_sweep`."""
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
        "backend": _word,
        "seeds": _seeds,
        "budgets": _budgets,
        "pairs": _pairs,
    }
    values = {name: readers.get(name, _words)(name, value) for name, value in written.items()}
    sweep = Sweep(**values)
    _check(sweep)
    return sweep


def to_toml(sweep: Sweep) -> str:
    """Write a sweep as the file that `read_sweep` reads."""
    lines = []
    for name, value in asdict(sweep).items():
        if isinstance(value, tuple) and value and not isinstance(value[0], int):
            entries = "".join(f"  {json.dumps(each, ensure_ascii=False)},\n" for each in value)
            lines.append(f"{name} = [\n{entries}]\n")
        else:
            lines.append(f"{name} = {json.dumps(value)}\n")
    return "".join(lines)


def model_location(model: str) -> str:
    """Return the directory or id that a sweep's name of a model stands for."""
    return str(reasoner_directory()) if model == EMBEDDED else model


def check_methods(specs: Sequence[str], budgets: Collection[int]) -> None:
    """Raise ValueError if a method can be built with none of the budgets, in entries.

    One that can be built with some is run; the report says why the others have no figures.
    """
    for spec in specs:
        tried = budgets if takes_budget(spec) else (None,)
        refusals = [reason for budget in tried if (reason := _refusal(spec, budget))]
        if tried and len(refusals) == len(tried):
            raise ValueError(f"methods: {spec}: {refusals[0]}")


def _refusal(spec: str, budget: int | None) -> str | None:
    try:
        methods.get(spec, budget)
    except ValueError as error:
        return str(error)
    return None


def _check(sweep: Sweep) -> None:
    for name, least in (("problems", 1), ("batch", 1), ("measured", 0)):
        if getattr(sweep, name) < least:
            raise ValueError(f"{name} = {getattr(sweep, name)} must be at least {least}")
    if sweep.problems > MOST["problems"]:
        raise ValueError(f"problems = {sweep.problems} must be at most {MOST['problems']}")
    if sweep.measured > sweep.problems:
        raise ValueError(f"measured = {sweep.measured} must not exceed problems = {sweep.problems}")
    if sweep.backend not in backends.NAMES:
        allowed = ", ".join(map(repr, backends.NAMES))
        raise ValueError(f"backend = {sweep.backend!r} must be one of {allowed}")
    for name in ("methods", "models", "tasks", "seeds"):
        if not getattr(sweep, name):
            raise ValueError(f"{name} must name at least one")
    for name in ("methods", "models", "tasks", "seeds", "budgets", "pairs", "curves"):
        values = getattr(sweep, name)
        if twice := [value for value in values if values.count(value) > 1]:
            raise ValueError(f"{name} names {twice[0]!r} twice")
    for spec in sweep.tasks:
        find_task(spec)
    for spec in sweep.methods:
        try:
            methods.parse(spec)
        except (ValueError, TypeError) as error:
            raise type(error)(f"methods: {spec}: {error}") from None
    if not sweep.budgets and (needing := [m for m in sweep.methods if takes_budget(m)]):
        raise ValueError(f"budgets must name at least one: {needing[0]} takes a budget")
    check_methods(sweep.methods, [_most_entries(text) for text in sweep.budgets])
    for name, specs in (("pairs", sum(sweep.pairs, ())), ("curves", sweep.curves)):
        if unknown := [spec for spec in specs if spec not in sweep.methods]:
            raise ValueError(f"{name} names {unknown[0]!r}, which is not among the methods")


def _most_entries(text: str) -> int:
    """Return the entries of a budget; a percentage may be any number, which the tokens will tell.

    Raises:
        ValueError: if the budget is not allowed, whatever the tokens.
    """
    try:
        entries = budget_entries(text, 100)
    except ValueError as error:
        raise ValueError(f"budgets: {error}") from None
    return MOST_ENTRIES if text.strip().endswith("%") else entries


def _word(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} = {value!r} must be a text")
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
