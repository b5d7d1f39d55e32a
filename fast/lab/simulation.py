"""Methods replayed on a recorded generation: what each would have kept, and what that costs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvlab.fast.lab.evaluate.controls import after_eviction
from kvlab.fast.lab.loop import run_all
from kvlab.fast.lab.points import (
    After,
    MeasuredRow,
    check_any,
    measure_points,
    most_entries,
    points,
    reason,
)
from kvlab.fast.lab.store import Store
from kvlab.fast.lab.terminal import OnProgress
from kvlab.reference import methods
from kvlab.reference.checks import check_at_least, check_share
from kvlab.reference.policy import Policy
from kvlab.reference.selection import budget_entries
from kvlab.reference.simulator.judge import Judgement, judge, skill
from kvlab.reference.simulator.replay import check_replay
from kvlab.reference.simulator.trace import Trace
from kvlab.reference.streams import Source, random_stream, run_stream


@dataclass(frozen=True, kw_only=True)
class SimulatedRow(MeasuredRow):
    """Figures over layers, KV heads and generated tokens."""

    entries: float | None = None
    """As `most_entries` says, over the recorded layers."""
    kilobytes: float | None = None
    """Most KiB of keys and values after a generated token, all recorded layers and heads."""
    mass: float | None = None
    """Mean share of the full cache's attention that falls on the entries that are there."""
    skill: float | None = None
    """Place of ``mass`` between evicting at random, 0, and the best keep sets, 1."""
    regret: float | None = None
    """Mass that the best keep sets, of each layer's most entries, hold and this method lost."""
    error: float | None = None
    """Mean relative error of the attention output."""
    hits: float | None = None
    """Share of entries that were there when they regained importance; None if none did."""
    premature: float | None = None
    """Share of the evicted entries that a later token activated; None if none was evicted."""


@dataclass(frozen=True)
class Simulation:
    """What `simulate` found."""

    trace: Trace
    rows: tuple[SimulatedRow, ...]


def simulate(
    trace: Trace,
    specs: Sequence[str],
    budgets: Sequence[int | str] = ("50%", "70%"),
    *,
    block_size: int | None = None,
    threshold: float = 0.01,
    gap: int = 16,
    exact: bool | None = None,
    workers: int = 1,
    progress: OnProgress = lambda done, total, what: None,
    store: Store | None = None,
) -> Simulation:
    """Replay a trace under methods and budgets: entries, or percent of the trace's tokens.

    A method that cannot work with the trace is refused in its row. The options that follow are
    those of `kvlab.reference.simulator.judge.judge`; ``store`` keeps what was found of each layer.
    """
    check_share(threshold=threshold)
    check_at_least(0, gap=gap)
    check_at_least(1, block_size=block_size)
    tokens = trace.shape[3]
    if trace.prompt == tokens:
        raise ValueError(f"the trace holds a prompt of {tokens} tokens and nothing generated")
    entries = sorted({budget_entries(text, tokens) for text in budgets})
    asked, policies = _asked(trace, specs, entries, block_size)

    def judged(some: list[Policy]) -> Iterator[Sequence[Judgement]]:
        how = block_size, workers, threshold, gap, exact
        return _judge_layers(trace, some, how, progress, store)

    def alone(row: SimulatedRow, policy: Policy) -> SimulatedRow:
        try:
            return _sum_up(trace, row, next(judged([policy])))
        except Exception as error:
            return replace(row, **reason(error))

    waiting = [row for row in asked if row.refusal is None]
    try:
        made = [_sum_up(trace, *each) for each in zip(waiting, judged(policies), strict=True)]
    except Exception:  # a method failed in the middle
        made = [alone(*each) for each in zip(waiting, policies, strict=True)]
    check_any(made)
    rows = iter(made)
    return Simulation(trace, tuple(row if row.refusal else next(rows) for row in asked))


@dataclass(frozen=True)
class _Layer:
    """A recorded layer, which all policies replay."""

    id: str
    number: int
    label = "layers"


def _judge_layers(
    trace: Trace,
    policies: Sequence[Policy],
    how: Sequence[Any],
    progress: OnProgress,
    store: Store | None,
) -> Iterator[Sequence[Judgement]]:
    """Return what was found of each policy in all layers, those that were done before included."""

    def engine(layers: Iterator[_Layer]) -> Iterator[tuple[_Layer, list[Judgement]]]:
        some = list(layers)
        rest = only_layers(trace, [each.number for each in some])
        yield from zip(some, judge(rest, policies, *how), strict=True)

    names = "; ".join(map(repr, policies))
    layers = [_Layer(f"{number}: {names}", number) for number in range(trace.shape[0])]
    found = run_all(layers, store, engine, list[Judgement], progress)
    return zip(*found.values(), strict=True)


def only_layers(trace: Trace, numbers: Sequence[int]) -> Trace:
    """Return a trace with some of the recorded layers."""
    names = ("queries", "keys", "values")
    arrays = {name: getattr(trace, name)[list(numbers)] for name in names}
    layers = tuple(trace.metadata.layers[number] for number in numbers)
    return replace(trace, **arrays, metadata=replace(trace.metadata, layers=layers))


def _asked(
    trace: Trace, specs: Sequence[str], budgets: Sequence[int], block_size: int | None
) -> tuple[tuple[SimulatedRow, ...], list[Policy]]:
    """Return a row for each method at each budget, and the policies of rows that are no refusal."""
    policies: list[Policy] = []

    def ask(spec: str, budget: int | None) -> SimulatedRow:
        policy = methods.get(spec, budget)
        check_replay(trace, [policy], block_size)
        token = random_stream(Source("a token"), d=trace.shape[4], prompt=1, generated=0)
        list(run_stream(policy, token))  # refuses channels that groups of codes do not divide
        policies.append(policy)
        return SimulatedRow(method=spec, budget=budget)

    return measure_points(points(specs, budgets), ask, SimulatedRow), policies


def _sum_up(trace: Trace, row: SimulatedRow, judged: Sequence[Judgement]) -> SimulatedRow:
    generated, heads = slice(trace.prompt, None), trace.shape[1]
    kept = np.stack([each.fate.entries[max(0, trace.prompt - 1) :] for each in judged])
    bits = np.sum([each.fate.bits[generated] for each in judged], axis=0) * heads
    regained, hits, evicted, premature = (
        sum(getattr(each, name) for each in judged)
        for name in ("regained", "hits", "evicted", "premature")
    )
    achieved = skill(judged)
    after = np.any([each.fate.after_eviction[generated] for each in judged], axis=0)
    return replace(
        row,
        after_eviction=after_eviction(row.method, After(int(after.sum()), len(after), "tokens")),
        entries=most_entries(kept),
        kilobytes=float(bits.max()) / 8 / 1024,
        mass=float(np.mean([each.mass for each in judged])),
        skill=None if np.isnan(achieved) else achieved,
        regret=float(np.mean([each.regret for each in judged])),
        error=float(np.mean([each.error for each in judged])),
        hits=hits / regained if regained else None,
        premature=premature / evicted if evicted else None,
    )


def title(trace: Trace) -> str:
    """Say what was recorded."""
    tokens = trace.shape[3]
    return f"{trace.metadata.model}: {trace.prompt} tokens given, {tokens - trace.prompt} generated"
