"""What another reading of a paper changes on the embedded reasoner.

    python -m kvlab.fast.lab.evaluate.readings --problems 64 --out readings.json

Every option that a paper's divergences name runs on the same problems as the default reading.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from kvlab.fast.lab.benchmarks.machine import versions
from kvlab.fast.lab.commands.terminal import console, progress
from kvlab.fast.lab.evaluate.backends import default_backend
from kvlab.fast.lab.evaluate.compare import Run, Settings, run_all, takes_budget
from kvlab.fast.lab.evaluate.statistics import paired_difference
from kvlab.fast.models import reasoner_directory
from kvlab.reference import methods
from kvlab.reference.proofs import PAPERS
from kvlab.reference.proofs.errata import Difference, Differences, Interval

CONDITIONS = {
    "lazy_eviction": "window=16,threshold=0.01",
    "caote:snapkv": "window=16",
    "desirekv": "interval=32,selector=8,group=32",
    "ahakv": "recent=16",
}
"""Periods and windows that fit traces of about 200 tokens; the same for both readings."""

MANY_AT_ONCE = {"several": "every=16"}
"""Options that only matter when several entries leave at once."""

BARE = {"caote:tova": "caote:h2o"}
"""Compositions that are another reading of a composition."""


@dataclass(frozen=True)
class Pair:
    """Two readings of one point."""

    option: str
    """As the divergence lists it."""
    default_run: str
    option_run: str


def pairs() -> Iterator[Pair]:
    """Yield what to compare, for every paper."""
    for name in PAPERS:
        for divergence in methods.divergences(name):
            yield from map(pair, divergence.specifications)


def pair(option: str) -> Pair:
    """Return the two runs that show what an option changes."""
    composition, _, written = option.partition("@")
    if not written:
        return Pair(option, BARE[composition], composition)
    extra = [MANY_AT_ONCE[key] for key in MANY_AT_ONCE if f"{key}=" in written]
    shared = [each for each in (CONDITIONS.get(composition), *extra) if each]
    return Pair(option, specification(composition, shared), specification(option, shared))


def specification(start: str, options: Sequence[str]) -> str:
    """Append options in registry syntax."""
    if not options:
        return start
    return f"{start}{',' if '@' in start else '@'}{','.join(options)}"


def differences(
    runs: Sequence[Run], compared: Sequence[Pair], budgets: Sequence[int]
) -> Iterator[Difference]:
    """Relate the runs of every pair, problem by problem."""
    for each in compared:
        for budget in budgets if takes_budget(each.option_run) else [None]:
            default = _of(runs, each.default_run, budget)
            other = _of(runs, each.option_run, budget)
            if len(default) != len(other):
                raise ValueError(f"{each.option_run} did not run on every problem")
            solved, error, kl = (_difference(default, other, read) for read in FIGURES)
            share = float(np.mean([FIGURES[0](run) for run in default]))
            yield Difference(
                each.option, each.default_run, each.option_run, budget, share, solved, error, kl
            )


FIGURES: tuple[Callable[[Run], float], ...] = (
    lambda run: float(run.solved),
    lambda run: float(run.measurement.output_error.mean()),
    lambda run: float(run.measurement.kl.mean()),
)


def _of(runs: Sequence[Run], spec: str, budget: int | None) -> list[Run]:
    own = [run for run in runs if (run.spec, run.budget) == (spec, budget)]
    return sorted(own, key=lambda run: run.problem)


def _difference(
    default: Sequence[Run], other: Sequence[Run], read: Callable[[Run], float]
) -> Interval:
    return Interval(*paired_difference([*map(read, default)], [*map(read, other)]))


def stored_differences() -> Differences:
    """Return the measurement that lies in the package."""
    text = (files("kvlab.fast.lab.evaluate") / "results" / "readings.json").read_text("utf-8")
    stored = json.loads(text)
    rows = tuple(map(_read_difference, stored["rows"]))
    return Differences(stored["problems"], stored["conditions"], rows)


def _read_difference(row: dict[str, Any]) -> Difference:
    intervals = ("solved", "output_error", "kl")
    fields: dict[str, Any] = {
        name: Interval(**value) if name in intervals else value for name, value in row.items()
    }
    return Difference(**fields)


def main(
    out: Annotated[Path, typer.Option(help="JSON file to write.")],
    problems: Annotated[int, typer.Option(min=2, help="Held-out problems.")] = 64,
    seed: Annotated[int, typer.Option(help="Seed of the held-out problems.")] = 0,
    budget: Annotated[
        list[str] | None, typer.Option(help="Entries, or percent of the mean length.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = os.cpu_count() or 1,
) -> None:
    """Measure what the other readings change."""
    compared = list(pairs())
    specs = dict.fromkeys(spec for each in compared for spec in (each.default_run, each.option_run))
    settings = Settings(
        model=reasoner_directory(),
        specs=tuple(specs),
        budgets=tuple(budget or ("70%", "85%")),
        problems=problems,
        seed=seed,
        workers=workers,
        backend=default_backend(),
    )
    with progress() as bar:
        task = bar.add_task("starting", total=None)
        found = run_all(
            settings,
            lambda done, total, what: bar.update(
                task, completed=done, total=total, description=what
            ),
        )
    if refused := [str(each) for each in found.runs if not isinstance(each, Run)]:
        raise ValueError(f"{len(refused)} runs failed: {refused[0]}")
    runs = [run for run in found.runs if isinstance(run, Run)]
    rows = differences(runs, compared, sorted(set(found.budgets.values())))
    stated = ", ".join(f"{text} = {entries}" for text, entries in found.budgets.items())
    result = {
        "problems": problems,
        "conditions": f"seed {seed}, budgets {stated} entries per KV head and layer",
        "backend": settings.backend,
        "versions": versions(),
        "rows": [asdict(row) for row in rows],
    }
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    console.print(f"{len(result['rows'])} differences: {out}", highlight=False)


if __name__ == "__main__":
    sys.exit(typer.run(main))
