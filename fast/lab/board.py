"""The board: methods that evict while a model writes, by one protocol (``board.toml``).

A file of the board holds one method on one task: its small sweep with the matched control and the
full cache, and the figures that follow from it. So anybody can derive the figures again, and do a
part of the work again (`check`).
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, isclose
from pathlib import Path
from typing import Any

import numpy as np

from kvlab.fast.lab.evaluate.controls import gain_of, matched
from kvlab.fast.lab.files import read_data, write_text
from kvlab.fast.lab.points import tokens_after
from kvlab.fast.lab.store import read_as, written
from kvlab.fast.lab.sweep.design import Sweep, make_sweep
from kvlab.fast.lab.sweep.jobs import Result, do_job
from kvlab.fast.lab.sweep.plan import Plan, hash_of, make_plan
from kvlab.fast.lab.sweep.run import Stored
from kvlab.fast.lab.sweep.summary import FULL, Results
from kvlab.fast.lab.terminal import OnProgress
from kvlab.reference import methods
from kvlab.reference.checks import check_choice

PROTOCOL = read_data("board.toml")
TASKS: Mapping[str, Any] = PROTOCOL["tasks"]
CLOSE = {"rel_tol": 1e-4, "abs_tol": 1e-6}


@dataclass(frozen=True, kw_only=True)
class Figures:
    """A method at one budget: what follows from the units of its file."""

    budget: str
    """As the protocol states it; ``own rule`` of a method that takes none."""
    entries: int | None
    units: int
    mean: float
    """Share of the units that are solved, or of the drafted tokens that the full cache accepts."""
    control: float
    gain: float
    """The first less the second, with the 95 % interval of the paired test."""
    low: float
    high: float
    p: float
    """Two-sided; a board of several rows corrects it over all of them."""
    after_eviction: float
    """Of the tokens behind the one that fills the budget, those that come after an eviction;
    without a budget, of all tokens."""
    tokens: float
    """Mean length of an answer."""
    full_tokens: float
    nbytes: float | None
    """Most bytes of keys and values, mean over what was measured; None where nothing was."""
    mean_nbytes: float | None
    """Bytes on average over the steps, by the entries of each."""
    full_nbytes: float | None

    def __str__(self) -> str:
        told = f"{self.budget}: {self.mean:.1%}, its control {self.control:.1%}, gain"
        return f"{told} {self.gain:+.1%} ({self.low:+.1%} to {self.high:+.1%}), p = {self.p:.2g}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a file of the board holds."""

    protocol: int
    task: str
    plan: Plan
    """The sweep of full cache, method and control, with the model's and an outside method's digest,
    the packages and the device."""
    run: dict[str, Any]
    """Command, versions and machine."""
    digest: str
    """Of the source of the method."""
    results: list[Result]
    figures: list[Figures]

    @property
    def method(self) -> str:
        """The method in registry syntax."""
        return self.plan.sweep.methods[1]


def sweep_of(task: str, asked: Sequence[str], model: str | None, text: str | None) -> Sweep:
    """Return the protocol's sweep of methods and their controls on one task.

    ``model`` None is the task's own; ``text``, a JSONL file, belongs to the task ``own``, and only
    to it. ValueError names a task, a text or a method that the board does not take.
    """
    check_choice(TASKS, task=task)
    if (text is None) != (task != "own"):
        raise ValueError(f"text = {text!r}: task own needs a JSONL file, and no other takes one")
    told = PROTOCOL["sweep"] | TASKS[task] | {"methods": [FULL, *asked], "controls": True}
    told |= {"models": [model]} if model else {}
    told |= {"tasks": [f"own@text={text}"]} if text else {}
    sweep = make_sweep(told)
    if idle := [spec for spec in asked if not matched([spec], sweep.runs)]:
        raise ValueError(f"methods: {idle[0]} evicts nothing, or only at random: it has no control")
    return sweep


def row_of(stored: Stored, task: str, method: str) -> Row:
    """Take one method's part out of a sweep that is complete; ValueError if it has no figures."""
    ((_, control),) = matched([method], stored.plan.sweep.runs)
    sweep = replace(stored.plan.sweep, methods=(FULL, method, control), controls=False)
    plan = replace(stored.plan, sweep=sweep)
    asked = {job.id for job in plan.jobs()}
    results = [each for each in stored.rows if each.job in asked]
    own = {"run": dict(stored.run), "digest": digest(method), "results": results}
    figures = figures_of(plan, results)
    return Row(protocol=PROTOCOL["protocol"], task=task, plan=plan, figures=figures, **own)


def digest(spec: str) -> str:
    """Return a hash of the files in which a method, and what it wraps, is specified."""
    kinds = [methods.lookup(each) for each in spec.partition("@")[0].split(":")]
    files = [Path(inspect.getfile(each)).read_bytes() for each in kinds]
    return hash_of(b"".join(files))


def figures_of(plan: Plan, results: Sequence[Result]) -> list[Figures]:
    """Derive the figures of every budget; ValueError names one that has none, and says why."""
    found = Results(plan, results).summary
    full, (_, method, control) = found.point(FULL, None), plan.sweep.methods
    figures = []
    budgets = found.budgets if methods.takes_budget(method) else {"own rule": None}
    for budget, entries in budgets.items():
        own, gain = found.point(method, entries), gain_of(found.gains, method, entries)
        if gain is None:
            why = own.refusal or found.point(control, entries).refusal or "nothing was evicted"
            raise ValueError(f"{method} with a budget of {budget} is not for the board: {why}")
        possible = sum(
            tokens_after(entries or 0, each.prompt_tokens or 0, each.tokens or 0)
            for each in own.results
        )
        after = sum(each.after_eviction or 0 for each in own.results) / possible
        told = {"units": gain.units, "mean": gain.first_mean, "control": gain.second_mean}
        told |= {"gain": gain.difference.mean, "low": gain.difference.low, "p": gain.p}
        told |= {"high": gain.difference.high, "after_eviction": after}
        told |= {name: own.mean(name) for name in ("tokens", "nbytes", "mean_nbytes")}
        told |= {f"full_{name}": full.mean(name) for name in ("tokens", "nbytes")}
        figures.append(Figures(budget=budget, entries=entries, **told))
    return figures


def read(path: Path) -> Row:
    """Read a file of the board; ValueError if it is none."""
    try:
        return read_as(Row, path.read_text(encoding="utf-8"))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"file = {path} cannot be read as a row of the board: {error}") from None


def write(row: Row, folder: Path) -> Path:
    """Write a row's file into a folder, and return its path."""
    model = Path(row.plan.sweep.models[0]).name
    path = folder / f"{row.task}-{model}-{row.method.replace(':', '+')}.json"
    write_text(path, written(row) + "\n")
    return path


def faults(row: Row) -> Iterator[str]:
    """Say what keeps a row from the board, as far as the file alone shows it."""
    if row.protocol != PROTOCOL["protocol"]:
        yield f"protocol {row.protocol}, where today's is {PROTOCOL['protocol']}"
        return
    sweep, text = row.plan.sweep, row.plan.subjects[0].part.task.partition("own@text=")[2]
    own = sweep_of(row.task, sweep.methods[1:2], sweep.models[0], text or None)
    if not matched(sweep.methods[1:2], sweep.methods[2:]):
        yield f"{row.method} without its matched control, {own.runs[-1]}"
    elif replace(own, methods=sweep.methods, controls=False) != sweep:
        yield "a sweep that is not the protocol's"
    elif missing := Results(row.plan, row.results).missing():
        yield f"without results of {missing[0].label}"
    else:
        yield from _faults_of_figures(row)


def _faults_of_figures(row: Row) -> Iterator[str]:
    try:
        derived = figures_of(row.plan, row.results)
    except ValueError as error:
        yield str(error)
        return
    if len(derived) != len(row.figures):
        yield f"figures of {len(row.figures)} budgets, not of {len(derived)}"
    for told, found in zip(row.figures, derived, strict=False):
        for name, value in asdict(found).items():
            if value != (other := getattr(told, name)):
                yield f"{name} = {other} at {found.budget}, where its results give {value}"
        if found.after_eviction < PROTOCOL["least_after_eviction"]:
            share = f"{100 * found.after_eviction:.0f} %, not 90 %,"
            yield f"only {share} of the tokens come after an eviction at {found.budget}"
        if found.units < PROTOCOL["least_units"]:
            yield f"{found.units} units at {found.budget}; {PROTOCOL['least_units']} are asked"


def agrees(told: Any, again: Any) -> bool:
    """Say whether a figure of a unit was found again."""
    return told == again or (isinstance(told, float) and isclose(told, again or 0, **CLOSE))


def do_again(row: Row, share: float, progress: OnProgress) -> Iterator[str]:
    """Do a drawn share of a row's jobs again, and say which figure of which unit differs.

    Measures of errors differ with the number of threads: they may, by `CLOSE`.
    The model must be the row's; ValueError if it, or the source of an outside method, is another.
    """
    today = make_plan(row.plan.sweep)
    for name in ("fingerprint", "text"):
        if getattr(today.subjects[0], name) != getattr(row.plan.subjects[0], name):
            raise ValueError(f"another {name} than the row's: {today.subjects[0].model}")
    if today.outside != row.plan.outside:
        raise ValueError(f"{row.method} comes from another file than the row's")
    pairs = list(zip(row.plan.jobs(), today.jobs(), strict=True))
    drawn = np.random.default_rng().permutation(len(pairs))[: ceil(share * len(pairs))]
    known = {(each.job, each.problem): each for each in row.results}
    for done, place in enumerate(drawn, start=1):
        job, same = pairs[place]
        for new in do_job(same):
            found = known[job.id, new.problem], new
            old, again = (asdict(replace(x, job="", seconds_per_token=None)) for x in found)
            for name, value in old.items():
                if not agrees(value, again[name]):
                    unit = f"unit {new.problem} of {job.label}"
                    yield f"{name} = {value} of {unit}; again: {again[name]}"
        progress(done, len(drawn), job.label)
