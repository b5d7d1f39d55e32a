"""A sweep as jobs: pieces of work that can be done anywhere, in any order, any number of times."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvlab.fast.lab.evaluate.backends import load_encoder
from kvlab.fast.lab.evaluate.tasks import find_task
from kvlab.fast.lab.sweep.configuration import ORACLE, Sweep, budgeted, check_methods, to_plain
from kvlab.fast.models import model_location
from kvlab.reference.methods import with_seed
from kvlab.reference.selection import budget_entries

FORMAT = 1
"""Version of the results of a job; with a new number all old results count as missing."""

BETWEEN_BATCHES = 1009
"""Step of a method's seed from one problem to the next: more than a sweep has seeds."""


@dataclass(frozen=True)
class Job:
    """One method at one budget on a batch of problems."""

    backend: str
    model: str
    """As the sweep names it."""
    fingerprint: str
    """Hash of the model's files; for an id on the hub, the id."""
    task: str
    seed: int
    method: str
    """As the sweep names it."""
    budget: int | None
    """Entries per KV head and layer."""
    first: int
    """Number of the first problem."""
    count: int
    measured: int
    """How many of the job's first problems are measured."""
    to_first_error: bool = False
    block_size: int | None = None

    @property
    def id(self) -> str:
        """Hash of all that the results depend on, without the sweep's name of the model."""
        content = {**asdict(self), "format": FORMAT}
        del content["model"]
        for name in ("to_first_error", "block_size"):
            if not content[name]:
                del content[name]  # so that results from before this field keep their names
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    @property
    def seeded(self) -> str:
        """The method as it is run: every seed and every batch draws anew."""
        if self.method == ORACLE:
            return ORACLE
        return with_seed(self.method, self.seed + BETWEEN_BATCHES * self.first)

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
    """Fingerprint of each model."""
    entries: dict[str, dict[str, dict[str, int]]]
    """Per model and task, the budgets in entries."""
    lengths: dict[str, dict[str, float]]
    """Per model and task, the mean tokens of prompt and solution."""

    def jobs(self) -> Iterator[Job]:
        """Yield the jobs; those of one model and seed follow each other, so that reports can begin.

        All methods on a batch follow each other, so that the full cache answers a batch once.
        """
        sweep = self.sweep
        for model in sweep.models:
            for seed in sweep.seeds:
                for task in sweep.tasks:
                    for first in range(0, sweep.problems, sweep.batch):
                        for method, budget in self.points(model, task):
                            yield self._job(model, seed, task, first, method, budget)

    def _job(
        self, model: str, seed: int, task: str, first: int, method: str, budget: int | None
    ) -> Job:
        count = min(self.sweep.batch, self.sweep.problems - first)
        return Job(
            backend=self.sweep.backend,
            model=model,
            fingerprint=self.fingerprints[model],
            task=task,
            seed=seed,
            method=method,
            budget=budget,
            first=first,
            count=count,
            measured=min(count, max(0, self.sweep.measured - first)),
            to_first_error=self.sweep.to_first_error,
            block_size=self.sweep.block_size,
        )

    def points(self, model: str, task: str) -> Iterator[tuple[str, int | None]]:
        """Yield methods and budgets: first the methods that take no budget."""
        yield from ((each, None) for each in self.sweep.methods if not budgeted(each))
        for entries in sorted(set(self.entries[model][task].values())):
            yield from ((each, entries) for each in self.sweep.methods if budgeted(each))

    def check_methods(self) -> None:
        """Raise ValueError if a method can be built with none of the budgets."""
        budgets = {
            entries
            for tasks in self.entries.values()
            for each in tasks.values()
            for entries in each.values()
        }
        check_methods(self.sweep.methods, sorted(budgets))

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "sweep": to_plain(self.sweep)}


def make_plan(sweep: Sweep) -> Plan:
    """Look up models and lengths.

    Raises:
        FileNotFoundError: if a model directory is incomplete.
        ValueError: if a model's tokenizer cannot be loaded, two names are of one model, or a budget
            is too large.
    """
    fingerprints, entries, lengths = {}, {}, {}
    for model in sweep.models:
        location = model_location(model)
        encode = load_encoder(location, sweep.backend)
        mark = fingerprint(location)
        if twin := [name for name, other in fingerprints.items() if other == mark]:
            raise ValueError(f"models names one model twice: {twin[0]!r} and {model!r}")
        fingerprints[model] = mark
        lengths[model] = {}
        for task in sweep.tasks:
            kind = find_task(task)
            drawn = [each for seed in sweep.seeds for each in kind.problems(sweep.problems, seed)]
            tokens = [len(encode(each.prompt)) + len(encode(each.solution)) for each in drawn]
            lengths[model][task] = sum(tokens) / len(tokens)
        entries[model] = {
            task: {text: budget_entries(text, round(length)) for text in sweep.budgets}
            for task, length in lengths[model].items()
        }
    return Plan(sweep, fingerprints, entries, lengths)


WHAT_MATTERS = ("config", "generation_config", "tokenizer", "special_tokens", "added_tokens")
"""Beginnings of the names of files, besides the weights, that change what a model writes."""


def fingerprint(location: str) -> str:
    """Hash model and tokenizer in a model directory; an id on the hub stays as it is."""
    directory = Path(location)
    if not directory.is_dir():
        return location
    total = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        if path.name.startswith(WHAT_MATTERS) or path.suffix == ".safetensors":
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            total.update(f"{path.name} {digest}\n".encode())
    return total.hexdigest()[:24]
