"""What a comparison or a sweep asks for, as a TOML file says it."""

import json
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from kvlab.fast.lab.evaluate import backends
from kvlab.fast.lab.evaluate.controls import controls_of, matched
from kvlab.fast.lab.evaluate.pairs import check_pairs
from kvlab.fast.lab.evaluate.statistics import too_few
from kvlab.fast.lab.evaluate.tasks import Rated, find_task, rates_texts
from kvlab.fast.lab.points import ORACLE
from kvlab.fast.models import check_loading
from kvlab.reference.checks import check_at_least, check_choice
from kvlab.reference.methods import takes_budget
from kvlab.reference.models import EMBEDDED
from kvlab.reference.selection import budget_entries

MODEL, TASK = next(iter(EMBEDDED.items()))

AS_IT_COMES = ("auto", None, None)
"""How a model is loaded where a sweep does not say: its own number format, on one device."""


@dataclass(frozen=True)
class Part:
    """One task of a sweep. What its table does not state is as in `Sweep`.

    A task that rates texts measures nothing else, unless its table says so; if it draws nothing,
    its only seed is 0.
    """

    task: str
    models: tuple[str, ...]
    seeds: tuple[int, ...]
    problems: int
    batch: int
    measured: int
    to_first_error: bool
    block_size: int | None
    """None reads prompts at once; texts that are rated in blocks have the `Subject`'s then."""
    drafts: bool

    def __post_init__(self) -> None:
        check_names("models", self.models)
        check_names("seeds", self.seeds)
        check_at_least(1, problems=self.problems, batch=self.batch, block_size=self.block_size)
        check_at_least(0, measured=self.measured, seed=min(self.seeds))
        if self.measured and self.block_size is not None:
            raise ValueError("measured must be 0 with block_size: prompts are measured at once")
        task = find_task(self.task)
        if self.to_first_error and (isinstance(task, Rated) or not task.one_answer):
            raise ValueError(
                f"to_first_error needs one right answer each, which {self.task} has not"
            )
        if self.drafts and (self.measured or self.to_first_error or task.asks_after):
            raise ValueError(
                f"drafts of {self.task} need measured = 0, to_first_error = false, and prompts "
                "that hold the question"
            )
        if isinstance(task, Rated) and task.only_drafts and not self.drafts:
            raise ValueError(f"drafts must be true: {self.task} has no text of its own to rate")
        if isinstance(task, Rated) and not task.drawn and self.seeds != (0,):
            raise ValueError(f"seeds = {list(self.seeds)} must be [0]: {self.task} draws nothing")


def check_names(name: str, values: Sequence[Any]) -> None:
    """Raise ValueError if one of a sweep's lists is empty, or names something twice."""
    if not values and name not in ("budgets", "pairs", "curves"):
        raise ValueError(f"{name} must name at least one {name[:-1]}")
    if twice := [value for value in values if values.count(value) > 1]:
        raise ValueError(f"{name} names {twice[0]!r} twice")


def _part(asked: "str | dict[str, Any]", sweep: "Sweep") -> Part:
    """Complete a task's table; keys that `Part` does not have are options of the task."""
    own = {"task": asked} if isinstance(asked, str) else dict(asked)
    hints = get_type_hints(Part)
    given = {name: _checked(name, own.pop(name), hints[name]) for name in hints if name in own}
    if "task" not in given:
        raise ValueError(f"a table of tasks = {asked} must have the key task")
    if wrong := own.keys() & {each.name for each in fields(Sweep)}:
        raise ValueError(
            f"key {min(wrong)!r} holds for all tasks of a sweep; a table of tasks may have "
            f"{', '.join(hints)}, and options of {given['task']}"
        )
    for name, value in own.items():
        given["task"] += f"{',' if '@' in given['task'] else '@'}{name}={value}"
    usual = {name: getattr(sweep, name) for name in hints if name != "task"}
    task = find_task(given["task"])
    if isinstance(task, Rated):
        chosen = task.feed == "blocks" and not given.get("drafts", sweep.drafts)
        usual |= {"measured": 0, "to_first_error": False}
        if sweep.block_size is None and not chosen:
            usual["block_size"] = task.block_size
        usual |= {} if task.drawn else {"seeds": (0,)}
    return Part(**(usual | given))


@dataclass(frozen=True)
class Sweep:
    """What to run: methods × budgets × tasks × models × seeds."""

    methods: tuple[str, ...]
    """Registry syntax, or ``oracle`` (fast backend, where the task has one). A method that draws at
    random is given the seed of the problems."""
    budgets: tuple[str, ...]
    """Entries, or percent of the mean tokens of prompt and solution."""
    problems: int
    """Problems per task and seed."""
    models: tuple[str, ...] = (MODEL,)
    """Short names of embedded models, directories, or (fast backend) ids on the hub, perhaps with a
    revision: ``owner/name@revision``."""
    tasks: tuple[str | dict, ...] = (TASK,)
    """Registry syntax; or a table with ``task``, its options, and keys of `Part` for this task."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of the problems: every seed draws other problems."""
    batch: int = 32
    """Problems that run together; another batch size rounds otherwise."""
    measured: int = 0
    """The first problems of every seed on which error, divergence and memory are measured."""
    backend: str = "fast"
    dtype: str = "auto"
    """As `kvlab.fast.models.loading.load` has it; the fast backend takes this and the next two."""
    device: str | None = None
    """Several, which commas separate, are shared out to workers; None: all GPUs, or the CPU."""
    parallel: str | None = None
    to_first_error: bool = False
    """Whether an answer ends at its first wrong token; the final answer is then not known."""
    block_size: int | None = None
    """Tokens per block of a prompt; None reads prompts at once."""
    drafts: bool = False
    """Whether methods are fed what the full cache writes, and asked how much they would write."""
    controls: bool = False
    """Whether each method's matched control runs, too (`controls_of`)."""
    pairs: tuple[tuple[str, str], ...] = ()
    """Methods that the report tests against each other, chosen before anything is run."""
    curves: tuple[str, ...] = ()
    """Methods that the report draws; it draws all if none is named."""

    def __post_init__(self) -> None:
        self._check_lists()
        check_choice(backends.NAMES, backend=self.backend)
        check_loading(*self.loading)
        if self.backend != "fast" and self.loading != AS_IT_COMES:
            raise ValueError(f"dtype, device, parallel = {self.loading} need backend 'fast'")
        for part in self.parts:
            self._check_part(part)
        check_names("tasks", [f"{x.task} for model {m}" for x in self.parts for m in x.models])
        self._check_methods()

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The tasks, completed."""
        return tuple(_part(asked, self) for asked in self.tasks)

    @property
    def loading(self) -> tuple[str, str | None, str | None]:
        """Number format, devices, and how a model is spread."""
        return self.dtype, self.device, self.parallel

    @property
    def workers(self) -> int:
        """One for each device, if several are named; else 0: the process itself."""
        commas = (self.device or "").count(",")
        return commas + 1 if commas else 0

    @cached_property
    def runs(self) -> tuple[str, ...]:
        """The methods, and the controls that are added to them."""
        return (*self.methods, *(controls_of(self.methods) if self.controls else ()))

    def too_few(self, joined: bool = False) -> Iterator[str]:
        """Say of each task, or of all of them ``joined``, where no test can be significant."""
        families = ("gains over controls", matched(self.methods, self.runs)), ("pairs", self.pairs)
        for part in self.parts[: 1 if joined else None]:
            units = sum(x.problems * len(x.seeds) for x in (self.parts if joined else (part,)))
            drawn = part.drafts or rates_texts(part.task)
            for name, pairs in families:
                tests = sum(len(self.budgets) if any(map(budgeted, x)) else 1 for x in pairs)
                if why := too_few(units, tests, drawn):
                    where = "" if joined else f" on {part.task}"
                    yield f"no {name}{where} can be significant: {why}"

    def _check_lists(self) -> None:
        for name in ("methods", "tasks", "budgets", "pairs", "curves"):
            check_names(name, getattr(self, name))
        check_pairs(self.pairs, self.methods)
        if unknown := [spec for spec in self.curves if spec not in self.methods]:
            raise ValueError(f"curves names {unknown[0]!r}, which is not among the methods")

    def _check_part(self, part: Part) -> None:
        task = find_task(part.task)
        if task.asks_after and (part.measured or self.backend != "fast"):
            raise ValueError(
                f"task {part.task!r} asks after the text is compressed, which needs backend 'fast' "
                f"and measured = 0, got {self.backend!r} and {part.measured}"
            )
        if (isinstance(task, Rated) or part.drafts) and self.backend != "fast":
            raise ValueError(f"texts or drafts of {part.task!r} need backend 'fast'")
        if ORACLE in self.methods and (task.recent is None or self.backend != "fast"):
            raise ValueError(
                f"methods: {ORACLE} needs backend 'fast' and a task that knows what is needed, "
                f"got backend {self.backend!r} and task {part.task!r}"
            )

    def _check_methods(self) -> None:
        for spec in self.methods:
            try:
                needs_budget = budgeted(spec)
            except (ValueError, TypeError) as error:
                raise type(error)(f"methods: {spec}: {error}") from None
            if needs_budget and not self.budgets:
                raise ValueError(f"budgets must name at least one: {spec} takes a budget")
        for text in self.budgets:
            budget_entries(text, 100)


def budgeted(spec: str) -> bool:
    """Say whether one of a sweep's methods, or the oracle, takes a budget."""
    return spec == ORACLE or takes_budget(spec)


def read_sweep(path: Path) -> Sweep:
    """Read a sweep; a ValueError, TypeError or FileNotFoundError says what is not allowed."""
    if not path.is_file():
        raise FileNotFoundError(f"sweep = {path} does not exist")
    try:
        written = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"sweep = {path} is not valid TOML: {error}") from None
    return make_sweep(written)


def only(sweep: Sweep, chosen: Collection[str]) -> Sweep:
    """Return a sweep with some of its methods; ValueError if one is not among them."""
    if unknown := [spec for spec in chosen if spec not in sweep.methods]:
        raise ValueError(f"methods names {unknown[0]!r}, which is not among the sweep's")
    return replace(
        sweep,
        methods=tuple(spec for spec in sweep.methods if spec in chosen),
        pairs=tuple(pair for pair in sweep.pairs if set(pair) <= set(chosen)),
        curves=tuple(spec for spec in sweep.curves if spec in chosen),
    )


def make_sweep(written: Mapping[str, Any]) -> Sweep:
    """Make a sweep of plain data; the errors are those of `read_sweep`."""
    hints = get_type_hints(Sweep) | {"budgets": tuple[int | str, ...]}
    if unknown := written.keys() - hints:
        raise ValueError(f"unknown key {min(unknown)!r} in a sweep; allowed are {', '.join(hints)}")
    if missing := [name for name in ("methods", "budgets", "problems") if name not in written]:
        raise ValueError(f"key {missing[0]!r} is missing in the sweep")
    values: dict[str, Any] = {n: _checked(n, value, hints[n]) for n, value in written.items()}
    values["budgets"] = tuple(map(str, values["budgets"]))
    return Sweep(**values)


KINDS = {int: "a whole number", str: "a text", bool: "true or false", dict: "a table"}


def _checked(name: str, value: Any, hint: Any) -> Any:
    """Return a value of the file if it has its type; a list becomes a tuple."""
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise TypeError(f"{name} = {value!r} must be a list")
        return tuple(_checked(f"an entry of {name}", each, get_args(hint)[0]) for each in value)
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not NoneType]
    if type(value) not in kinds:
        raise TypeError(f"{name} = {value!r} must be {' or '.join(KINDS[kind] for kind in kinds)}")
    return value


def to_plain(sweep: Sweep) -> dict[str, Any]:
    """Return a sweep as plain data, as `make_sweep` reads it: what is None is left out."""
    return {name: value for name, value in asdict(sweep).items() if value is not None}


def to_toml(sweep: Sweep) -> str:
    """Write a sweep as the file that `read_sweep` reads."""
    lines = []
    for name, value in to_plain(sweep).items():
        if isinstance(value, tuple) and value and not isinstance(value[0], int):
            entries = "".join(f"  {_toml(each)},\n" for each in value)
            lines.append(f"{name} = [\n{entries}]\n")
        else:
            lines.append(f"{name} = {json.dumps(value)}\n")
    return "".join(lines)


def _toml(value: Any) -> str:
    if not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return f"{{ {', '.join(f'{name} = {_toml(each)}' for name, each in value.items())} }}"
