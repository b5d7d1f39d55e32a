"""Token importance recurrence: how long until a token matters again (LazyEviction §3, Fig. 3c)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from kvlab.reference.checks import check_at_least, check_share
from kvlab.reference.files import load_tokenizer
from kvlab.reference.notation import Array
from kvlab.reference.simulator.replay import Layer
from kvlab.reference.simulator.trace import Recording, record_trace
from kvlab.reference.tasks import reasoning
from kvlab.reference.transformer import Transformer


@dataclass(frozen=True)
class Recurrence:
    """Distribution of the maximum recurrence interval over tokens, layers and KV heads."""

    problems: int
    threshold: float
    entries: int
    share_recurring: float
    """Share of the entries with MRI > 1."""
    quantiles: dict[str, float]
    """MRI of the entries that were activated at all, in generated steps."""


@dataclass(frozen=True)
class Recurring:
    """One entry and when it was activated."""

    layer: int
    kv_head: int
    position: int
    threshold: float
    steps: tuple[int, ...]
    """Generated steps, counted from 1, that gave it at least ``threshold`` of their attention."""
    born: int
    """Step before its birth; 0 for the prompt."""

    @property
    def gaps(self) -> tuple[int, ...]:
        """Steps from birth to the first activation, and from each activation to the next."""
        return tuple(later - earlier for earlier, later in pairwise((self.born, *self.steps)))

    @property
    def interval(self) -> int:
        """Maximum recurrence interval, MRI (LazyEviction Eq. 1); 0 if never activated."""
        return max(self.gaps, default=0)


def activations(trace: Recording, threshold: float) -> Iterator[Recurring]:
    """Yield every entry of every recorded layer with its activations, as LazyEviction sees them.

    A query head that gives at least ``threshold`` activates the entry of its KV head.

    Raises:
        ValueError: if ``threshold`` is not between 0 and 1.
    """
    check_share(threshold=threshold)
    prompt, t = trace.prompt, trace.shape[3]
    for number in range(trace.shape[0]):
        layer = Layer.of(trace, number)
        received = layer.full_attention(0, t).attention.max(axis=1)
        for kv_head, rows in enumerate(received):
            for position in range(t):
                first = max(prompt, position)
                steps = np.flatnonzero(rows[first:, position] >= threshold) + first - prompt + 1
                born = max(0, position - prompt)
                found = tuple(map(int, steps))
                yield Recurring(layer.layer, kv_head, position, threshold, found, born)


def most_recurring(entries: Iterable[Recurring], count: int, gap: int = 16) -> list[Recurring]:
    """Return the entries that came back most often after at least ``gap`` steps, one per position.

    Args:
        entries: entries of `activations`.
        count: how many at most.
        gap: steps without activation.
    """
    best: dict[int, Recurring] = {}

    def returns(entry: Recurring) -> tuple[int, int]:
        return sum(each >= gap for each in entry.gaps[1:]), entry.interval

    for entry in entries:
        if entry.position not in best or returns(entry) > returns(best[entry.position]):
            best[entry.position] = entry
    return sorted(best.values(), key=returns, reverse=True)[:count]


Draw = Callable[[int, int], Sequence[Any]]
"""Draws so many problems with a seed; each has a prompt and a solution, as text."""


def recurrence(
    directory: Path,
    problems: int,
    seed: int,
    threshold: float,
    draw: Draw = reasoning.held_out,
) -> Recurrence:
    """Let the model solve held-out problems with the full cache and sum up every entry's MRI.

    Args and errors are those of `intervals`.
    """
    longest = intervals(directory, problems, seed, threshold, draw)
    activated = longest[longest > 0]
    levels = (0.5, 0.8, 0.9, 0.99)
    return Recurrence(
        problems,
        threshold,
        len(longest),
        float((longest > 1).mean()),
        {f"{100 * level:.0f} %": float(np.quantile(activated, level)) for level in levels},
    )


def intervals(
    directory: Path,
    problems: int,
    seed: int,
    threshold: float,
    draw: Draw = reasoning.held_out,
) -> Int[Array, " entries"]:
    """Let the model solve held-out problems with the full cache; return every entry's MRI.

    Args:
        directory: directory of the model.
        problems: how many held-out problems.
        seed: seed of the problems.
        threshold: attention from which on an entry is activated.
        draw: draws the problems, which are those of the embedded reasoner if nothing else is said.

    Raises:
        ValueError: if ``problems`` is below 1, ``threshold`` not between 0 and 1 or above all
            attention, or ``seed`` negative.
        FileNotFoundError: if the model directory is incomplete.
    """
    check_at_least(1, problems=problems)
    check_at_least(0, seed=seed)
    check_share(threshold=threshold)
    model, tokenizer = Transformer.from_directory(directory), load_tokenizer(directory)
    found: list[int] = []
    for problem in draw(problems, seed):
        prompt, solution = (tokenizer.encode(t).ids for t in (problem.prompt, problem.solution))
        trace = record_trace(model, prompt, len(solution), stop=solution[-1])
        found += [entry.interval for entry in activations(trace, threshold)]
    longest = np.array(found)
    if not longest.any():
        raise ValueError(f"threshold = {threshold} is more attention than any entry got")
    return longest
