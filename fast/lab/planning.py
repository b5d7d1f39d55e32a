"""Memory and time that a model needs under methods, from the cost model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kvlab.fast.lab.points import Row, measure_points, most_entries, points
from kvlab.fast.lab.tables import counted, percent
from kvlab.fast.lab.terminal import OnProgress
from kvlab.reference import methods
from kvlab.reference.checks import check_at_least, check_between
from kvlab.reference.selection import budget_entries
from kvlab.reference.simulator.cost import Plan, Runtime
from kvlab.reference.simulator.sizes import Hardware, Shape

GB = 1e9
MOST_TOKENS = 200_000
"""Most tokens of a prompt or an answer, because a policy is asked once per token."""


@dataclass(frozen=True)
class Serving:
    """What to plan for."""

    shape: Shape
    hardware: Hardware
    prompt: int
    """Tokens given."""
    length: int
    """Tokens written."""
    batch: int | None = None
    """Sequences at once; None takes as many as fit."""
    block_size: int | None = None
    """Tokens per block of the prompt; None reads the prompt at once."""
    runtime: Runtime = field(default_factory=Runtime)

    def __post_init__(self) -> None:
        check_at_least(1, batch=self.batch)
        check_between(1, MOST_TOKENS, prompt=self.prompt, length=self.length)


@dataclass(frozen=True, kw_only=True)
class PlannedRow(Row):
    """The figures of one method."""

    entries: float | None = None
    """As `most_entries` says."""
    bits: float | None = None
    """Mean bits per stored element after the last token."""
    sequence_gb: float | None = None
    """Cache and state that one sequence has allocated at its fullest, 10⁹ bytes."""
    logical_gb: float | None = None
    """The same without slots that no entry uses."""
    largest_batch: int | None = None
    batch: int | None = None
    memory_gb: float | None = None
    first_token_seconds: float | None = None
    step_milliseconds: float | None = None
    """Mean time of a step over the written tokens."""
    tokens_per_second: float | None = None
    """Tokens per second of the whole batch, the prompts' time included."""
    policy_share: float | None = None
    """Share of the decoding time that goes into observing, scoring, selecting and moving."""
    pays_from: int | None = None
    """Tokens from which on it has taken less time than the full cache at the same batch, if so."""


@dataclass(frozen=True)
class Planned:
    """What `plan_methods` found."""

    serving: Serving
    rows: tuple[PlannedRow, ...]
    pays: str
    """As `most_gained` says."""


def plan_methods(
    serving: Serving,
    specs: Sequence[str],
    budget: int | str,
    progress: OnProgress = lambda done, total, what: None,
    tell: Callable[[PlannedRow], object] = lambda row: None,
) -> Planned:
    """Plan memory and time of a model under methods; nothing is run.

    A method that cannot serve is refused in its row, and ``tell`` is called with each row as soon
    as it is there. The budget is entries, or percent of prompt and length together.
    """
    entries = budget_entries(budget, serving.prompt + serving.length)
    sizes = serving.prompt, serving.length, 1, serving.block_size
    full = Plan(serving.shape, serving.hardware, methods.get("full"), *sizes, serving.runtime)

    def measure(spec: str, budget: int | None) -> PlannedRow:
        plan = replace(full, policy=methods.get(spec, budget))
        plan = plan.with_batch(_fitting(plan, serving.batch))
        return PlannedRow(
            method=spec,
            budget=budget,
            entries=most_entries(plan.held.entries[None, plan.prompt - 1 :]),
            bits=float(plan.held.bits[-1]),
            sequence_gb=plan.sequence_bytes / GB,
            logical_gb=plan.logical_bytes / GB,
            largest_batch=plan.largest_batch,
            batch=plan.batch,
            memory_gb=plan.memory / GB,
            first_token_seconds=plan.prefill_seconds,
            step_milliseconds=1e3 * plan.decode_seconds / plan.generated,
            tokens_per_second=plan.tokens_per_second,
            policy_share=plan.eviction_share,
            pays_from=None if spec == "full" else pays_from(plan, full.with_batch(plan.batch)),
        )

    rows = measure_points(points(specs, [entries]), measure, PlannedRow, progress, tell)
    at_once = full.with_batch(serving.batch or max(1, full.largest_batch))
    return Planned(serving, rows, most_gained(at_once, entries))


def _fitting(plan: Plan, batch: int | None) -> int:
    most = plan.largest_batch
    if most < 1:
        raise ValueError(
            f"{plan.shape.name} with one sequence of {plan.prompt + plan.generated} tokens does "
            f"not fit on {plan.hardware.name}"
        )
    if batch is not None and batch > most:
        raise ValueError(f"batch = {batch} must be at most the {most} sequences that fit")
    return batch or most


def pays_from(plan: Plan, full: Plan) -> int | None:
    """Return from how many tokens on, prompt included, ``plan`` stays ahead of ``full``."""
    longer = np.flatnonzero(plan.step_seconds.cumsum() >= full.step_seconds.cumsum())
    written = int(longer[-1]) + 2 if len(longer) else 1
    return plan.prompt + written if written <= plan.generated else None


def most_gained(full: Plan, entries: int) -> str:
    """Say what share of a token's bytes the full cache is, and what eviction gains at most."""
    tokens, share = full.prompt + full.generated, full.cache_share
    times = 1 / (1 - share * (1 - min(1, entries / tokens)))
    return (
        f"After {tokens:,} tokens, the full cache is {percent(share)} of the bytes that a token of "
        f"{counted(full.batch, 'text')} has to read: with {entries:,} entries it can become at "
        f"most {times:.2f} times as fast."
    )


def title(serving: Serving) -> str:
    """Say what is planned for."""
    return (
        f"{serving.shape.name} on {serving.hardware.name}: {serving.prompt:,} tokens given, "
        f"{serving.length:,} written"
    )
