"""What a comparison or a sweep asks for, and the jobs that this takes.

A job is a piece of work that can be done anywhere, in any order, any number of times.
"""

import hashlib
import json
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from kvlab.fast.lab.evaluate import backends
from kvlab.fast.lab.evaluate.controls import controls_of, matched
from kvlab.fast.lab.evaluate.pairs import check_pairs
from kvlab.fast.lab.evaluate.statistics import too_few
from kvlab.fast.lab.evaluate.tasks import Encode, Question, Rated, find_task
from kvlab.fast.lab.points import ORACLE, built
from kvlab.fast.models import check_loading, model_location
from kvlab.reference import methods
from kvlab.reference.checks import check_at_least, check_choice
from kvlab.reference.methods import takes_budget
from kvlab.reference.models import EMBEDDED
from kvlab.reference.selection import budget_entries

MODEL, TASK = next(iter(EMBEDDED.items()))

FORMAT = 1
"""Version of the results of a job; with a new number all old results count as missing."""

AS_IT_COMES = ("auto", None, None)
"""How a model is loaded where a sweep does not say: its own number format, on one device."""

BETWEEN_BATCHES = 1009
"""Step of a method's seed from one problem to the next: more than a sweep has seeds."""


@dataclass(frozen=True)
class Part:
    """One task of a sweep. What its table does not state is as in `Sweep`.

    A task that rates texts measures nothing else and reads in blocks of its own size (`Plan.blocks`
    where it rates in blocks), unless its table says so; if it draws nothing, its only seed is 0.
    """

    task: str
    models: tuple[str, ...]
    seeds: tuple[int, ...]
    problems: int
    batch: int
    measured: int
    to_first_error: bool
    block_size: int | None
    drafts: bool

    def __post_init__(self) -> None:
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
        block_size = task.block_size if sweep.block_size is None else sweep.block_size
        usual |= {"measured": 0, "to_first_error": False, "block_size": block_size}
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
        asked = [(part.task, model) for part in self.parts for model in part.models]
        if twice := [task for task, model in asked if asked.count((task, model)) > 1]:
            raise ValueError(f"tasks names {twice[0]!r} twice")
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
        named = (self.device or "").count(",")
        return named + 1 if named else 0

    @cached_property
    def runs(self) -> tuple[str, ...]:
        """The methods, and the controls that are added to them."""
        return (*self.methods, *(controls_of(self.methods) if self.controls else ()))

    def too_few(self, joined: bool = False) -> Iterator[str]:
        """Say of each task, or of all of them ``joined``, where no test can be significant."""
        families = ("gains over controls", matched(self.methods, self.runs)), ("pairs", self.pairs)
        for part in self.parts[: 1 if joined else None]:
            units = part.problems * len(part.seeds) * (len(self.parts) if joined else 1)
            drawn = part.drafts or isinstance(find_task(part.task), Rated)
            for name, pairs in families:
                tests = sum(len(self.budgets) if any(map(budgeted, x)) else 1 for x in pairs)
                if why := too_few(units, tests, drawn):
                    where = "" if joined else f" on {part.task}"
                    yield f"no {name}{where} can be significant: {why}"

    def _check_lists(self) -> None:
        for name in ("methods", "models", "tasks", "seeds", "budgets", "pairs", "curves"):
            values = getattr(self, name)
            if not values and name in ("methods", "models", "tasks", "seeds"):
                raise ValueError(f"{name} must name at least one {name[:-1]}")
            if twice := [value for value in values if values.count(value) > 1]:
                raise ValueError(f"{name} names {twice[0]!r} twice")
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
            raise ValueError(f"task {part.task!r} rates texts, which needs backend 'fast'")
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


def _from_outside(spec: str) -> bool:
    return spec != ORACLE and methods.read(spec).from_outside


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


@dataclass(frozen=True)
class Job:
    """One method at one budget on a batch of problems."""

    backend: str
    model: str
    """As the sweep names it."""
    fingerprint: str
    task: str
    seed: int
    method: str
    budget: int | None
    """Entries per KV head and layer."""
    first: int
    count: int
    measured: int
    """How many of the job's first problems are measured."""
    to_first_error: bool = False
    block_size: int | None = None
    drafts: bool = False
    kvlab: str = ""
    outside: str = ""
    text: str = ""
    device: str = ""
    dtype: str = ""
    versions: str = ""
    library: str = ""
    """This and what stands above, from ``kvlab`` on, as in `Plan`."""
    loading: tuple[str, str | None, str | None] = AS_IT_COMES
    """As in `Sweep`; results depend on what was found: ``device`` and ``dtype``."""

    @cached_property
    def id(self) -> str:
        """Hash of all that the results depend on, without the sweep's name of the model."""
        content = {**asdict(self), "format": FORMAT}
        del content["model"], content["loading"]
        for each in fields(self):  # so that results from before a field keep their names
            if each.default is not MISSING and not content.get(each.name, True):
                del content[each.name]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]

    @property
    def point(self) -> tuple[str, str, str, int | None]:
        """Model, task, method and budget."""
        return self.model, self.task, self.method, self.budget

    @property
    def draw_seed(self) -> int:
        """Seed of all that is drawn while the job is done: every seed and batch draws anew."""
        return self.seed + BETWEEN_BATCHES * self.first

    @property
    def seeded(self) -> str:
        """The method as it is run, with the seed if it draws."""
        return ORACLE if self.method == ORACLE else methods.read(self.method).seeded(self.draw_seed)

    @property
    def label(self) -> str:
        """What a progress bar shows."""
        budget = "" if self.budget is None else f" · {self.budget}"
        return f"{self.method}{budget} · {self.task} · seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    """A sweep with everything that its jobs need looked up."""

    sweep: Sweep
    fingerprints: dict[str, str]
    entries: dict[str, dict[str, dict[str, int]]]
    """Per model and task, the budgets in entries."""
    lengths: dict[str, dict[str, float]]
    """Per model and task, the mean tokens of prompt and solution."""
    kvlab: str = ""
    outside: str = ""
    """Hash of the source of the methods from outside; empty for other methods."""
    texts: dict[str, str] = field(default_factory=dict)
    """Hash of the file that each task reads, if it reads one."""
    blocks: dict[str, dict[str, int]] = field(default_factory=dict)
    """Per model and task that is rated in blocks of no stated size, the size: `Rated.block_for`."""
    device: str = ""
    """What computes: ``cpu``, or a GPU by its name; empty where that was not noted yet."""
    dtypes: dict[str, str] = field(default_factory=dict)
    """Number format in which each model is loaded."""
    versions: str = ""
    """The packages that compute, besides kvlab."""
    libraries: dict[str, str] = field(default_factory=dict)
    """Per method from outside, the library that it comes from, with its version."""

    @property
    def provenance(self) -> dict[str, str]:
        """Say where and with what results were computed, by names for people."""
        formats = {
            f"number format of {model}": self.dtypes.get(model) for model in self.fingerprints
        }
        known = {"device": self.device, "computed with": self.versions, **formats}
        return {name: value or "not recorded" for name, value in known.items()}

    def jobs(self) -> Iterator[Job]:
        """Yield the jobs, seed by seed, so that reports can begin, and batch by batch."""
        for model in self.fingerprints:
            own = [part for part in self.sweep.parts if model in part.models]
            for seed in dict.fromkeys(seed for part in own for seed in part.seeds):
                for part in own:
                    if seed in part.seeds:
                        yield from self._jobs_of(part, model, seed)

    def _jobs_of(self, part: Part, model: str, seed: int) -> Iterator[Job]:
        for first in range(0, part.problems, part.batch):
            count = min(part.batch, part.problems - first)
            for method, budget in self.points(model, part.task):
                yield Job(
                    backend=self.sweep.backend,
                    model=model,
                    fingerprint=self.fingerprints[model],
                    task=part.task,
                    seed=seed,
                    method=method,
                    budget=budget,
                    first=first,
                    count=count,
                    measured=min(count, max(0, part.measured - first)),
                    to_first_error=part.to_first_error,
                    block_size=self.blocks.get(model, {}).get(part.task, part.block_size),
                    drafts=part.drafts,
                    kvlab=self.kvlab,
                    outside=self.outside if _from_outside(method) else "",
                    text=self.texts.get(part.task, ""),
                    device=self.device,
                    dtype=self.dtypes.get(model, ""),
                    versions=self.versions,
                    library=self.libraries.get(method, ""),
                    loading=self.sweep.loading,
                )

    def parts(self) -> Iterator[tuple[str, Part]]:
        """Yield models with their tasks."""
        for model in self.fingerprints:
            yield from ((model, part) for part in self.sweep.parts if model in part.models)

    def points(self, model: str, task: str) -> Iterator[tuple[str, int | None]]:
        """Yield methods and budgets: first the methods that take no budget."""
        yield from ((each, None) for each in self.sweep.runs if not budgeted(each))
        for entries in sorted(set(self.entries[model][task].values())):
            yield from ((each, entries) for each in self.sweep.runs if budgeted(each))

    def check_methods(self) -> None:
        """Raise ValueError if a method cannot be built with the largest budget."""
        tasks = [task for model in self.entries.values() for task in model.values()]
        largest = max((entries for task in tasks for entries in task.values()), default=None)
        for spec in self.sweep.methods:
            row = built(spec, largest if budgeted(spec) else None)
            if spec != ORACLE and row.refusal and not row.failed:
                raise ValueError(f"methods: {spec}: {row.refusal}")


def make_plan(sweep: Sweep, device: str | None = None) -> Plan:
    """Look up models and lengths; ``device`` None is that of this machine."""
    plan = Plan(
        sweep,
        {},
        {},
        {},
        version("kvlab"),
        outside=methods.discover() if any(map(_from_outside, sweep.methods)) else "",
        device=device or backends.device_here(sweep.backend, sweep.device),
        versions=backends.versions_of(sweep.backend),
        libraries={spec: methods.read(spec).library for spec in filter(_from_outside, sweep.runs)},
    )
    for model in dict.fromkeys(model for part in sweep.parts for model in part.models):
        location = model_location(model, hub=sweep.backend == "fast")
        encode = backends.load_encoder(location, sweep.backend)
        mark = backends.fingerprint(location)
        plan.dtypes[model] = backends.dtype_of(location, sweep.backend, sweep.dtype)
        if twin := [name for name, other in plan.fingerprints.items() if other == mark]:
            raise ValueError(f"models names one model twice: {twin[0]!r} and {model!r}")
        plan.fingerprints[model], plan.lengths[model], plan.entries[model] = mark, {}, {}
        for asked, part in zip(sweep.tasks, sweep.parts, strict=True):
            if model in part.models:
                questions = _questions(part, location, encode)
                length = fmean(map(len, questions))
                entries = {text: budget_entries(text, round(length)) for text in sweep.budgets}
                plan.lengths[model][part.task], plan.entries[model][part.task] = length, entries
                task, own = find_task(part.task), isinstance(asked, dict) and "block_size" in asked
                stated = part.drafts or own or sweep.block_size is not None
                if isinstance(task, Rated) and task.feed == "blocks" and not stated:
                    block = task.block_for(questions, entries.values())
                    plan.blocks.setdefault(model, {})[part.task] = block
    for part in sweep.parts:
        if file := getattr(find_task(part.task), "text", None):
            plan.texts[part.task] = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:24]
    return plan


def _questions(part: Part, location: str, encode: Encode) -> list[Question]:
    task, tokenizer = find_task(part.task), None
    if isinstance(task, Rated):
        from kvlab.fast.models.loading import load_tokenizer_of

        tokenizer = load_tokenizer_of(location)
    seeds, count = part.seeds, part.problems
    return [each for seed in seeds for each in task.questions(tokenizer, encode, count, seed)]
