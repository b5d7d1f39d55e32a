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
from kvlab.fast.lab.evaluate.tasks import Encode, Rated, find_task, rates_texts
from kvlab.fast.lab.points import ORACLE, built
from kvlab.fast.lab.sweep.design import AS_IT_COMES, Part, Sweep, budgeted
from kvlab.fast.models import model_location
from kvlab.reference import methods
from kvlab.reference.selection import budget_entries

FORMAT = 1
"""Version of the results of a job; with a new number all old results count as missing."""

BETWEEN_BATCHES = 1009
"""By how much the seed of what is drawn grows per problem, where batches begin. Seeds of a sweep
that differ by a multiple of it draw what another batch draws."""


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
    """Whether the full cache's own answers take the place of solutions, and the method is rated on
    them: as if it had drafted each, of which the full cache accepts what it would write itself."""
    kvlab: str = ""
    outside: str = ""
    text: str = ""
    """A hash, as in `Subject`, and no text: this name is in the ids of stored results."""
    device: str = ""
    dtype: str = ""
    """As in `Subject`."""
    versions: str = ""
    library: str = ""
    """This, and ``kvlab``, ``outside``, ``device`` and ``versions`` above, as in `Plan`."""
    loading: tuple[str, str | None, str | None] = AS_IT_COMES
    """As in `Sweep`; results depend on what was found: ``device`` and ``dtype``."""

    @cached_property
    def id(self) -> str:
        """Hash of all that the results depend on, without the sweep's name of the model.

        A field with a default came later: left out where it is empty, it renames no older result.
        """
        later = {each.name for each in fields(self) if each.default is not MISSING}
        content = {name: x for name, x in asdict(self).items() if x or name not in later}
        content["format"] = FORMAT
        del content["model"], content["loading"]  # which is never empty
        return hash_of(json.dumps(content, sort_keys=True).encode())

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
    def rates(self) -> bool:
        """Whether the method rates a task's texts, or drafts in their place, and writes nothing."""
        return self.drafts or rates_texts(self.task)

    @property
    def label(self) -> str:
        """What a progress bar shows."""
        budget = "" if self.budget is None else f" · {self.budget}"
        return f"{self.method}{budget} · {self.task} · seed {self.seed}"


@dataclass(frozen=True)
class Subject:
    """A model on a task, with what its jobs need looked up."""

    model: str
    """As the sweep names it."""
    part: Part
    fingerprint: str
    dtype: str
    """Number format in which the model is loaded; empty where that was not noted yet."""
    length: float
    """Mean tokens of prompt and solution."""
    budgets: dict[str, int]
    """As the sweep states them, and in entries."""
    block_size: int | None = None
    """Tokens of a block: the part's, or what `Rated.block_for` chooses; None reads at once."""
    text: str = ""
    """Hash of the file that the task reads, if it reads one."""


@dataclass(frozen=True)
class Plan:
    """A sweep with everything that its jobs need looked up."""

    sweep: Sweep
    subjects: tuple[Subject, ...]
    """Task by task of every model."""
    kvlab: str = ""
    outside: str = ""
    """Hash of the source of the methods from outside; empty for other methods."""
    device: str = ""
    """What computes: ``cpu``, or a GPU by its name; empty where that was not noted yet."""
    versions: str = ""
    """The packages that compute, besides kvlab."""
    libraries: dict[str, str] = field(default_factory=dict)
    """Per method from outside, the library that it comes from, with its version."""

    @cached_property
    def models(self) -> dict[str, list[Subject]]:
        """The models, each with its subjects."""
        models = dict.fromkeys(each.model for each in self.subjects)
        return {name: [each for each in self.subjects if each.model == name] for name in models}

    @property
    def provenance(self) -> dict[str, str]:
        """Say where and with what results were computed, by names for people."""
        known = {"device": self.device, "computed with": self.versions}
        known |= {f"number format of {name}": own[0].dtype for name, own in self.models.items()}
        return {name: value or "not recorded" for name, value in known.items()}

    def jobs(self) -> Iterator[Job]:
        """Yield the jobs, seed by seed, so that reports can begin, and batch by batch."""
        for own in self.models.values():
            for seed in dict.fromkeys(seed for each in own for seed in each.part.seeds):
                for each in own:
                    if seed in each.part.seeds:
                        yield from self._jobs_of(each, seed)

    def _jobs_of(self, subject: Subject, seed: int) -> Iterator[Job]:
        part = subject.part
        for first in range(0, part.problems, part.batch):
            count = min(part.batch, part.problems - first)
            for method, budget in self.points(subject):
                yield Job(
                    backend=self.sweep.backend,
                    model=subject.model,
                    fingerprint=subject.fingerprint,
                    task=part.task,
                    seed=seed,
                    method=method,
                    budget=budget,
                    first=first,
                    count=count,
                    measured=min(count, max(0, part.measured - first)),
                    to_first_error=part.to_first_error,
                    block_size=subject.block_size or part.block_size,  # as older plans have it
                    drafts=part.drafts,
                    kvlab=self.kvlab,
                    outside=self.outside if _from_outside(method) else "",
                    text=subject.text,
                    device=self.device,
                    dtype=subject.dtype,
                    versions=self.versions,
                    library=self.libraries.get(method, ""),
                    loading=self.sweep.loading,
                )

    def points(self, subject: Subject) -> Iterator[tuple[str, int | None]]:
        """Yield methods and budgets: first the methods that take no budget."""
        yield from ((each, None) for each in self.sweep.runs if not budgeted(each))
        for entries in sorted(set(subject.budgets.values())):
            yield from ((each, entries) for each in self.sweep.runs if budgeted(each))

    def check_methods(self) -> None:
        """Raise ValueError if a method cannot be built with the largest budget."""
        entries = [entries for each in self.subjects for entries in each.budgets.values()]
        for spec in self.sweep.methods:
            row = built(spec, max(entries, default=None) if budgeted(spec) else None)
            if spec != ORACLE and row.refusal and not row.failed:
                raise ValueError(f"methods: {spec}: {row.refusal}")


def make_plan(sweep: Sweep, device: str | None = None) -> Plan:
    """Look up models and lengths; ``device`` None is that of this machine."""
    subjects: list[Subject] = []
    for model in dict.fromkeys(model for part in sweep.parts for model in part.models):
        location = model_location(model, hub=sweep.backend == "fast")
        encode = backends.load_encoder(location, sweep.backend)
        mark = backends.fingerprint(location)
        if twin := [each.model for each in subjects if each.fingerprint == mark]:
            raise ValueError(f"models names one model twice: {twin[0]!r} and {model!r}")
        for part in sweep.parts:
            if model in part.models:
                subjects.append(_subject(sweep, part, model, location, encode, mark))
    return Plan(
        sweep,
        tuple(subjects),
        version("kvlab"),
        outside=methods.discover() if any(map(_from_outside, sweep.methods)) else "",
        device=device or backends.device_here(sweep.backend, sweep.device),
        versions=backends.versions_of(sweep.backend),
        libraries={spec: methods.read(spec).library for spec in filter(_from_outside, sweep.runs)},
    )


def hash_of(content: bytes) -> str:
    """Return a hash of what results depend on, as plans and rows of the board hold it."""
    return hashlib.sha256(content).hexdigest()[:24]


def _subject(
    sweep: Sweep, part: Part, model: str, location: str, encode: Encode, fingerprint: str
) -> Subject:
    """Look up what jobs of a model on a task need; lengths are means over what all seeds ask."""
    task, tokenizer = find_task(part.task), None
    if isinstance(task, Rated):
        from kvlab.fast.models.loading import load_tokenizer_of

        tokenizer = load_tokenizer_of(location)
    questions = [
        each
        for seed in part.seeds
        for each in task.questions(tokenizer, encode, part.problems, seed)
    ]
    length = fmean(map(len, questions))
    budgets = {text: budget_entries(text, round(length)) for text in sweep.budgets}
    block_size = part.block_size
    if isinstance(task, Rated) and block_size is None:
        block_size = task.block_for(questions, budgets.values())
    return Subject(
        model=model,
        part=part,
        fingerprint=fingerprint,
        dtype=backends.dtype_of(location, sweep.backend, sweep.dtype),
        length=length,
        budgets=budgets,
        block_size=block_size,
        text=hash_of(Path(task.text).read_bytes()) if task.text else "",
    )
