"""Perplexity of a text under methods, against the full cache (CAOTE, Table 4)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from kvlab.fast import methods
from kvlab.fast.lab.evaluate.likelihood import (
    Likelihood,
    Passage,
    Reading,
    check_feed,
    likelihoods,
)
from kvlab.fast.lab.evaluate.pairs import Measure
from kvlab.fast.lab.evaluate.statistics import paired_difference, perplexity_of
from kvlab.fast.lab.generation import token_ids
from kvlab.fast.lab.points import (
    BUDGET_CAPTION,
    HeldRow,
    Told,
    marked_budget,
    measure_points,
    points,
)
from kvlab.fast.lab.tables import Column, counted
from kvlab.fast.lab.terminal import Report
from kvlab.fast.precisions import OnArrival
from kvlab.reference.accounting import ENTRIES
from kvlab.reference.checks import check_at_least
from kvlab.reference.selection import budget_entries
from kvlab.reference.tasks import reasoning

YARDSTICK = "full"
"""The method that all others are compared with."""


@dataclass(frozen=True, kw_only=True)
class RatedRow(HeldRow):
    """How likely the passages are under one method at one budget."""

    perplexity: float | None = None
    gap: float | None = None
    """Perplexity minus that of the full cache (CAOTE, Table 4)."""
    nats: float | None = None
    """Loss per token minus that of the full cache, mean over the passages."""
    nats_low: float | None = None
    nats_high: float | None = None
    """Bootstrap interval (95 %) of the difference, over the passages; None for a single passage,
    and for the full cache itself."""
    losses: tuple[float, ...] = ()
    """Loss per token of each passage, in nats."""
    entries: float | None = None
    """As `ENTRIES` says, mean over the passages."""
    nbytes: float | None = None
    """Bytes of keys and values at the end, scales and norms included; an unquantised element counts
    16 bits. Mean over the passages."""


@dataclass(frozen=True)
class Perplexities:
    """What `measure_perplexity` found."""

    reading: Reading
    passages: int
    tokens: int
    """Rated tokens of all passages."""
    mean_length: float
    """Tokens of a passage."""
    rows: tuple[RatedRow, ...]


def measure_perplexity(
    model: Any,
    passages: Sequence[Passage],
    reading: Reading,
    report: Report = lambda done, total, what: None,
    tell: Callable[[RatedRow], object] = lambda row: None,
) -> Perplexities:
    """Read passages under every method at every budget.

    Args:
        model: a decoder of transformers.
        passages: what to read.
        reading: methods, budgets, and how passages are read; the full cache is always measured.
            A budget in percent is a share of the passages' mean length.
        report: is called with (passages done, passages in all, the method).
        tell: is called with each row as soon as it is there.

    Raises:
        ValueError: if there is no passage, or the full cache cannot be measured.
    """
    if not passages:
        raise ValueError("passages must hold at least one")
    tokens = sum(len(each.rated) for each in passages)
    budgets = sorted({budget_entries(text, mean_length(passages)) for text in reading.budgets})
    specs = [spec for spec in reading.methods if spec != YARDSTICK]
    yardstick: list[Likelihood] = []

    def measure(spec: str, entries: int | None, told: Told) -> RatedRow:
        if spec != YARDSTICK and not yardstick:
            raise ValueError("the full cache, with which methods are compared, was refused")
        found = rate(model, spec, entries, passages, *reading.how, told)
        yardstick.extend(() if yardstick else found)
        return _row(spec, entries, found, found if spec == YARDSTICK else yardstick)

    asked = [(YARDSTICK, None), *points(specs, budgets)]
    rows = measure_points(asked, len(passages), measure, RatedRow, report, tell)
    mean = fmean(map(len, passages))
    return Perplexities(reading, len(passages), tokens, mean, rows)


def rate(
    model: Any,
    spec: str,
    entries: int | None,
    passages: Sequence[Passage],
    block_size: int | None,
    feed: str,
    batch_size: int,
    told: Told = lambda done: None,
) -> list[Likelihood]:
    """Rate passages under one method at one budget in entries.

    ValueError if the method does not fit them, or would evict nothing before they are rated.
    """
    policy = methods.get(spec, entries)
    only_codes = entries is None and isinstance(policy.precision, OnArrival)
    if feed == "blocks" and spec != YARDSTICK and not only_codes:
        check_feed(policy.schedule, max(map(len, passages)) - 1, block_size)
    how, same = (block_size, feed, batch_size), [entries] * len(passages)
    return likelihoods(model, lambda entries: policy, passages, same, *how, told)


def cut_windows(
    tokens: Sequence[int], window: int, prompt: int, most: int | None = None
) -> list[Passage]:
    """Cut a text into passages of equal length; the rest at the end is left out.

    Args:
        tokens: ids of the text.
        window: tokens of a passage.
        prompt: tokens at the start of each passage that are not rated.
        most: passages to return; None returns all.

    Raises:
        ValueError: if a number is not allowed, or the text does not fill a window.
    """
    check_window(window, prompt, most)
    ends = range(window, len(tokens) + 1, window)
    if not ends:
        raise ValueError(f"the text has {len(tokens)} tokens, too few for window = {window}")
    parts = [tokens[end - window : end] for end in ends[:most]]
    return [Passage(part[:prompt], part[prompt:]) for part in parts]


def check_window(window: int, prompt: int, most: int | None) -> None:
    """Raise ValueError if no text can be cut like this."""
    check_at_least(2, window=window)
    if not 1 <= prompt < window:
        raise ValueError(f"prompt = {prompt} must be at least 1 and less than window = {window}")
    check_at_least(1, windows=1 if most is None else most)


def problem_passages(tokenizer: Any, count: int) -> list[Passage]:
    """Return problems of the embedded model as passages: the solutions are rated."""
    return [
        Passage(token_ids(tokenizer, each.prompt), token_ids(tokenizer, each.solution))
        for each in reasoning.held_out(count)
    ]


def _row(
    spec: str,
    entries: int | None,
    found: Sequence[Likelihood],
    yardstick: Sequence[Likelihood],
) -> RatedRow:
    losses, others = (
        [-float(each.logprobs.mean()) for each in some] for some in (found, yardstick)
    )
    nats, low, high = losses[0] - others[0], None, None
    if len(losses) > 1 and found is not yardstick:
        nats, low, high = paired_difference(others, losses)
    return RatedRow(
        method=spec,
        budget=entries,
        holds_budget=entries is None or max(each.entries for each in found) <= entries,
        perplexity=_perplexity(found),
        gap=_perplexity(found) - _perplexity(yardstick),
        nats=nats,
        nats_low=low,
        nats_high=high,
        losses=tuple(losses),
        entries=fmean(each.entries for each in found),
        nbytes=fmean(each.nbytes for each in found),
    )


def _perplexity(found: Sequence[Likelihood]) -> float:
    losses = [-float(each.logprobs.mean()) for each in found]
    return perplexity_of(losses, [len(each.logprobs) for each in found])


LOSS = Measure("nats per token", lambda row: row.losses)
"""By what `paired_tests` compares rows."""


def _nats(row: RatedRow) -> str | None:
    if row.nats is None or row.nats_low is None:
        return None if row.nats is None else f"{row.nats:+.4f}"
    return f"{row.nats:+.4f} ({row.nats_low:+.4f} to {row.nats_high:+.4f})"


COLUMNS = (
    Column("method"),
    Column("budget", marked_budget),
    Column("perplexity", format=".4f", width=12),
    Column("gap", format="+.4f", width=11),
    Column("nats (95 %)", _nats, width=30),
    Column("entries", format=".0f"),
    Column("KiB", "nbytes", lambda nbytes: f"{nbytes / 1024:.0f}"),
)

CAPTION = (
    "gap: perplexity less the full cache's · nats: loss per token less the full cache's, paired "
    f"over the windows · {ENTRIES} · KiB: of keys and values at the end, scales included, "
    f"an unquantised element at 16 bits · {BUDGET_CAPTION}"
)


def title(passages: Sequence[Passage], reading: Reading) -> str:
    """Say what is read, and how."""
    windows, rated = counted(len(passages), "window"), sum(len(each.rated) for each in passages)
    return f"{windows} of {mean_length(passages)} tokens, {rated} rated, fed in {reading.feed}"


def mean_length(passages: Sequence[Passage]) -> int:
    """Return the mean tokens of a passage, rounded: what a budget in percent is a share of."""
    return round(fmean(map(len, passages)))
