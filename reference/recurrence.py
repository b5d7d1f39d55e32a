"""Token importance recurrence: how long until a token matters again (LazyEviction §3, Fig. 3c)."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvlab.reference.generate import Generation, generate
from kvlab.reference.methods.full import FullCache
from kvlab.reference.methods.lazy_eviction import LazyEviction
from kvlab.reference.policy import Never, Policy
from kvlab.reference.tasks import reasoning
from kvlab.reference.tokenizer import load_tokenizer
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


def recurrence(directory: Path, problems: int, seed: int, threshold: float) -> Recurrence:
    """Let the model solve held-out problems with the full cache and collect every entry's MRI.

    Raises:
        ValueError: if ``problems`` is below 1, ``threshold`` negative or above all attention, or
            ``seed`` negative.
        FileNotFoundError: if the model directory is incomplete.
    """
    if problems < 1:
        raise ValueError(f"problems = {problems} must be at least 1")
    if seed < 0:
        raise ValueError(f"seed = {seed} must not be negative")
    model, tokenizer = Transformer.from_directory(directory), load_tokenizer(directory)
    policy = observing_policy(threshold)
    intervals = []
    for problem in reasoning.held_out(problems, seed):
        prompt, solution = (tokenizer.encode(t).ids for t in (problem.prompt, problem.solution))
        written = generate(model, policy, prompt, len(solution), stop=solution[-1])
        intervals.append(longest_intervals(written))
    longest = np.concatenate(intervals)
    activated = longest[longest > 0]
    if not len(activated):
        raise ValueError(f"threshold = {threshold} is more attention than any entry got")
    levels = (0.5, 0.8, 0.9, 0.99)
    return Recurrence(
        problems,
        threshold,
        len(longest),
        float((longest > 1).mean()),
        {f"{100 * level:.0f} %": float(np.quantile(activated, level)) for level in levels},
    )


def observing_policy(threshold: float) -> Policy:
    """Return a full cache that tracks recurrence as LazyEviction does."""
    full = FullCache().policy()
    score = LazyEviction(threshold=threshold).policy(budget=10**9).score
    return Policy("recurrence", score, Never(), full.protect, full.budget, full.precision)


def longest_intervals(generation: Generation) -> np.ndarray:
    """Return the MRI of every entry of every layer and KV head."""
    caches = generation.session.caches
    return np.concatenate([cache.state.entries["interval"].ravel() for cache in caches])
