"""What another reading of a paper changes on the embedded reasoner.

    python -m kvlab.fast.lab.evaluate.readings --problems 64 --out readings.json

Every option that a paper's divergences name runs on the same problems as the default reading.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from kvlab.fast.lab.benchmarks.machine import versions
from kvlab.fast.lab.evaluate.backends import default_backend
from kvlab.fast.lab.evaluate.compare import DEFAULT_BUDGETS, run_in_memory
from kvlab.fast.lab.evaluate.statistics import Interval, paired_difference
from kvlab.fast.lab.files import write_text
from kvlab.fast.lab.sweep.configuration import Sweep
from kvlab.fast.lab.sweep.summary import Point, TaskSummary, summarise
from kvlab.fast.lab.terminal import print_line, reporting
from kvlab.reference import methods
from kvlab.reference.methods import takes_budget
from kvlab.reference.proofs import PAPERS

CONDITIONS = {
    "lazy_eviction": "window=16,threshold=0.01",
    "caote:snapkv": "window=16",
    "desirekv": "interval=32,selector=8,group=32",
    "ahakv": "recent=16",
}
"""Periods and windows that fit traces of about 200 tokens, the same for both readings."""

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


@dataclass(frozen=True)
class Difference:
    """What another reading changes on the embedded reasoner: its figure minus the default's."""

    option: str
    """The other reading, in registry syntax, as its divergence lists it."""
    default_run: str
    """What was run: the default reading."""
    option_run: str
    """What was run: the other reading."""
    budget: int | None
    solved_default: float
    solved: Interval
    """Share of problems solved."""
    output_error: Interval
    kl: Interval


@dataclass(frozen=True)
class Differences:
    """A measurement of all readings."""

    problems: int
    conditions: str
    """Model, seed and budget, in words."""
    rows: tuple[Difference, ...]

    def of(self, option: str) -> list[Difference]:
        """Return what was measured of an option."""
        return [row for row in self.rows if row.option == option]


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


def differences(summary: TaskSummary, compared: Sequence[Pair]) -> Iterator[Difference]:
    """Relate both readings of every pair, problem by problem, at every budget.

    Raises:
        ValueError: if a reading did not run on every problem.
    """
    for each in compared:
        budgets = sorted(set(summary.budgets.values()))
        for budget in budgets if takes_budget(each.option_run) else [None]:
            default = summary.point(each.default_run, budget)
            other = summary.point(each.option_run, budget)
            if refusal := default.refusal or other.refusal:
                raise ValueError(f"{each.option_run} did not run on every problem: {refusal}")
            solved, error, kl = (
                Interval(*paired_difference(read(default), read(other))) for read in FIGURES
            )
            share = float(np.mean(default.outcomes))
            yield Difference(
                each.option, each.default_run, each.option_run, budget, share, solved, error, kl
            )


FIGURES: tuple[Callable[[Point], Sequence[float]], ...] = (
    lambda point: [float(solved) for solved in point.outcomes],
    lambda point: point.figures["output_error"],
    lambda point: point.figures["kl"],
)
"""Problem by problem: solved or not, output error, divergence from the full cache."""


def stored_differences() -> Differences:
    """Return the measurement that lies in the package."""
    path = files("kvlab.fast.lab.evaluate") / "results" / "readings.json"
    stored = json.loads(path.read_text(encoding="utf-8"))
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
    sweep = Sweep(
        methods=tuple(specs),
        budgets=tuple(budget or DEFAULT_BUDGETS),
        problems=problems,
        models=("reasoner",),
        tasks=("reasoning",),
        seeds=(seed,),
        measured=problems,
        backend=default_backend(),
    )
    with reporting() as report:
        (summary,) = summarise(run_in_memory(sweep, workers, report))
    stated = ", ".join(f"{text} = {entries}" for text, entries in summary.budgets.items())
    rows = [asdict(row) for row in differences(summary, compared)]
    result = {
        "problems": problems,
        "conditions": f"seed {seed}, budgets {stated} entries per KV head and layer",
        "backend": sweep.backend,
        "versions": versions(),
        "rows": rows,
    }
    write_text(out, json.dumps(result, indent=1) + "\n")
    print_line(f"{len(rows)} differences: {out}")


if __name__ == "__main__":
    typer.run(main)
