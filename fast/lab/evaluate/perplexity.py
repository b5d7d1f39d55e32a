"""Perplexity of a text under methods, against the full cache (CAOTE, Table 4)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import exp
from statistics import fmean
from typing import Any

import numpy as np

from kvlab.fast import methods
from kvlab.fast.lab.evaluate.compare import batched, takes_budget
from kvlab.fast.lab.evaluate.likelihood import FEEDS, Likelihood, check_feed, likelihoods
from kvlab.fast.lab.evaluate.statistics import paired_difference
from kvlab.reference import methods as registry
from kvlab.reference.selection import budget_entries
from kvlab.reference.windows import check_choice

YARDSTICK = "full"
"""The method that all others are compared with."""


@dataclass(frozen=True)
class Passage:
    """What is read with one cache."""

    prompt: Sequence[int]
    """Token ids that are given, at least one."""
    rated: Sequence[int]
    """Token ids whose likelihood counts, at least one."""

    def __len__(self) -> int:
        return len(self.prompt) + len(self.rated)


@dataclass(frozen=True)
class Settings:
    """How passages are read."""

    specs: tuple[str, ...]
    """Methods in registry syntax; the full cache is always measured, too."""
    budgets: tuple[str, ...]
    """Entries, or percent of the passages' mean length."""
    block_size: int | None = 128
    feed: str = "blocks"
    """See `kvlab.fast.lab.evaluate.likelihood.FEEDS`."""
    batch_size: int = 1
    """Passages that are read together."""


@dataclass(frozen=True)
class Row:
    """One method at one budget."""

    method: str
    budget: int | None
    refusal: str | None = None
    """Why the method could not run; the figures below are then None."""
    perplexity: float | None = None
    gap: float | None = None
    """Perplexity minus that of the full cache (CAOTE, Table 4)."""
    nats: float | None = None
    """Loss per token minus that of the full cache, mean over the passages."""
    nats_low: float | None = None
    nats_high: float | None = None
    """Bootstrap interval (95 %) of the difference, over the passages; None for a single one."""
    entries: float | None = None
    """Kept per KV head at the end, in the layer that keeps most; mean over the passages."""


@dataclass(frozen=True)
class Measured:
    """What `measure` found."""

    settings: Settings
    passages: int
    tokens: int
    """Rated, in all passages."""
    mean_length: float
    """Tokens of a passage."""
    rows: tuple[Row, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def measure(
    model: Any,
    passages: Sequence[Passage],
    settings: Settings,
    report: Callable[[int, int, str], None] | None = None,
) -> Measured:
    """Read passages under every method at every budget.

    Args:
        model: a decoder of transformers.
        passages: what to read.
        settings: how to read it.
        report: called with (passages done, passages in all, the method).

    Raises:
        ValueError: if there is no passage, a method, a budget or a number is not allowed, or the
            full cache cannot be measured.
    """
    check(settings)
    if not passages:
        raise ValueError("passages must hold at least one")
    mean_length = fmean(map(len, passages))
    asked = list(questions(settings, round(mean_length)))
    total, rows = (1 + len(asked)) * len(passages), []
    yardstick: list[Likelihood] = []
    for number, (spec, entries) in enumerate([(YARDSTICK, None), *asked]):

        def told(done: int, number: int = number, spec: str = spec) -> None:
            if report is not None:
                report(number * len(passages) + done, total, spec)

        try:
            found = _read(model, spec, entries, passages, settings, told)
        except ValueError as error:
            if not yardstick:
                raise
            rows.append(Row(spec, entries, str(error)))
        else:
            yardstick = yardstick or found
            rows.append(_row(spec, entries, found, yardstick))
    rated = sum(len(passage.rated) for passage in passages)
    return Measured(settings, len(passages), rated, mean_length, tuple(rows))


def check(settings: Settings) -> None:
    """Raise ValueError on what is known to fail before a model is loaded."""
    check_choice(FEEDS, feed=settings.feed)
    for name in ("batch_size", "block_size"):
        count = getattr(settings, name)
        if count is not None and count < 1:
            raise ValueError(f"{name} = {count} must be at least 1")
    list(questions(settings, 100))


def questions(settings: Settings, length: int) -> Iterator[tuple[str, int | None]]:
    """Yield methods, and budgets in entries for passages of ``length`` tokens.

    Raises:
        ValueError: if a method or a budget is not allowed, or a budget is missing.
    """
    budgets = sorted({budget_entries(text, length) for text in settings.budgets})
    for spec in settings.specs:
        registry.parse(spec)
        if not takes_budget(spec):
            if spec != YARDSTICK:
                yield spec, None
        elif not budgets:
            raise ValueError(f"{spec} needs a budget")
        else:
            yield from ((spec, entries) for entries in budgets)


def windows(
    tokens: Sequence[int], window: int, prompt: int, most: int | None = None
) -> list[Passage]:
    """Cut a text into passages of equal length; what is left at the end is left out.

    Args:
        tokens: ids of the text.
        window: tokens of a passage.
        prompt: tokens at the start of each that are not rated.
        most: passages to return; None for all.

    Raises:
        ValueError: if a number is not allowed, or the text does not fill a window.
    """
    check_window(window, prompt, most)
    cut = [part for part in batched(tokens, window) if len(part) == window]
    if not cut:
        raise ValueError(f"the text has {len(tokens)} tokens, too few for window = {window}")
    return [Passage(part[:prompt], part[prompt:]) for part in cut[:most]]


def check_window(window: int, prompt: int, most: int | None) -> None:
    """Raise ValueError if a text cannot be cut so."""
    if window < 2:
        raise ValueError(f"window = {window} must be at least 2")
    if not 1 <= prompt < window:
        raise ValueError(f"prompt = {prompt} must be at least 1 and less than window = {window}")
    if most is not None and most < 1:
        raise ValueError(f"windows = {most} must be at least 1")


def encoded(tokenizer: Any, text: str) -> list[int]:
    """Return a text's token ids.

    Raises:
        ValueError: if the tokenizer refuses it.
    """
    try:
        return tokenizer(text, verbose=False)["input_ids"]
    except Exception as error:  # tokenizers raises plain Exception
        raise ValueError(f"the tokenizer cannot encode the text: {error}") from None


def _read(
    model: Any,
    spec: str,
    entries: int | None,
    passages: Sequence[Passage],
    settings: Settings,
    told: Callable[[int], None],
) -> list[Likelihood]:
    policy = methods.get(spec, entries)
    if settings.feed == "blocks" and spec != YARDSTICK:
        check_feed(policy.schedule, max(map(len, passages)) - 1, settings.block_size)
    found: list[Likelihood] = []
    for some in batched(passages, settings.batch_size):
        found += likelihoods(
            model,
            policy,
            [passage.prompt for passage in some],
            [passage.rated for passage in some],
            settings.block_size,
            settings.feed,
        )
        told(len(found))
    return found


def _row(
    spec: str,
    entries: int | None,
    found: Sequence[Likelihood],
    yardstick: Sequence[Likelihood],
) -> Row:
    losses, others = (
        [-float(each.logprobs.mean()) for each in some] for some in (found, yardstick)
    )
    nats, low, high = losses[0] - others[0], None, None
    if len(losses) > 1:
        nats, low, high = paired_difference(others, losses)
    return Row(
        spec,
        entries,
        perplexity=_perplexity(found),
        gap=_perplexity(found) - _perplexity(yardstick),
        nats=nats,
        nats_low=low,
        nats_high=high,
        entries=fmean(each.entries for each in found),
    )


def _perplexity(found: Sequence[Likelihood]) -> float:
    """Return e to the mean loss over all tokens."""
    return exp(-float(np.concatenate([each.logprobs for each in found]).mean()))
