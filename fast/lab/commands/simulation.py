"""What ``kvlab simulate`` found of each method, and how it is written."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvlab.reference.traces.judge import Judgement, skill
from kvlab.reference.traces.trace import Recording


@dataclass(frozen=True)
class Row:
    """One method at one budget, over layers, KV heads and generated tokens."""

    method: str
    budget: int | None
    refusal: str | None = None
    """Why the method cannot run at this budget; the figures below are then None."""
    entries: int | None = None
    """Largest number per KV head after a token."""
    kilobytes: float | None = None
    """Of keys and values at that time, all recorded layers and heads."""
    mass: float | None = None
    """Mean share of the full cache's attention that falls on what is there."""
    skill: float | None = None
    """How far ``mass`` is from that of evicting at random, 0, to the best keep sets', 1; None where
    nothing had to leave."""
    regret: float | None = None
    """Mass that the best keep sets of ``entries`` entries hold and this method lost."""
    error: float | None = None
    """Mean relative error of the attention output."""
    hits: float | None = None
    """Share of entries that were there when they regained importance; None if none did."""
    premature: float | None = None
    """Share of the evicted entries that a later token activated; None if none was evicted."""


def summed_up(trace: Recording, row: Row, judged: Sequence[Judgement]) -> Row:
    """Sum one policy up over the layers."""
    generated, heads = slice(trace.prompt, None), trace.shape[1]
    bits = np.sum([each.fate.bits[generated] for each in judged], axis=0) * heads
    totals = {
        name: int(sum(getattr(each.recall, name).sum() for each in judged))
        for name in ("regained", "hits", "evicted", "premature")
    }
    achieved = skill(judged)
    return Row(
        row.method,
        row.budget,
        entries=max(each.size for each in judged),
        kilobytes=float(bits.max()) / 8 / 1024,
        mass=float(np.mean([each.mass for each in judged])),
        skill=None if np.isnan(achieved) else achieved,
        regret=float(np.mean([each.regret for each in judged])),
        error=float(np.mean([each.error for each in judged])),
        hits=totals["hits"] / totals["regained"] if totals["regained"] else None,
        premature=totals["premature"] / totals["evicted"] if totals["evicted"] else None,
    )


COLUMNS = ("budget", "entries", "KiB", "mass", "skill", "error", "hits", "early")


def cells(row: Row) -> list[str]:
    """Format the figures of a row, or its refusal."""

    def percent(share: float | None, digits: int = 0) -> str:
        return "–" if share is None else f"{100 * share:.{digits}f}"

    budget = "own rule" if row.budget is None else str(row.budget)
    if row.refusal is not None:
        return [row.refusal]
    return [
        budget,
        f"{row.entries}",
        f"{row.kilobytes:.0f}",
        percent(row.mass, 1),
        percent(row.skill),
        f"{row.error:.3f}",
        percent(row.hits),
        percent(row.premature),
    ]


def title(trace: Recording) -> str:
    """Say what was recorded."""
    tokens = trace.shape[3]
    return f"{trace.metadata.model}: {trace.prompt} tokens given, {tokens - trace.prompt} generated"
