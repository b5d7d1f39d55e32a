"""The jobs that a comparison or a sweep takes.

A job is a piece of work that can be done anywhere, in any order, any number of times.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from statistics import fmean

from kvlab.fast.lab.evaluate import backends
from kvlab.fast.lab.evaluate.tasks import Encode, Question, Rated, find_task
from kvlab.fast.lab.points import ORACLE, built
from kvlab.fast.lab.sweep.design import AS_IT_COMES, Part, Sweep, budgeted
from kvlab.fast.models import model_location
from kvlab.reference import methods
from kvlab.reference.selection import budget_entries

FORMAT = 1
"""Version of the results of a job; with a new number all old results count as missing."""

BETWEEN_BATCHES = 1009
"""Step of a method's seed from one problem to the next: more than a sweep has seeds."""


def _from_outside(spec: str) -> bool:
    return spec != ORACLE and methods.read(spec).from_outside


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
