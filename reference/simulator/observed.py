"""Queries, keys and values of a real model, and attention computed from its definition.

Nothing here goes through the policies: a whole problem is read at once, with the full cache.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from kvlab.reference.attention import softmax
from kvlab.reference.checks import check_at_least, check_share
from kvlab.reference.methods.caote import eviction_error, joint_error
from kvlab.reference.methods.desirekv import sensitivity
from kvlab.reference.notation import Array
from kvlab.reference.simulator.replay import Layer
from kvlab.reference.simulator.trace import Trace, record_trace
from kvlab.reference.tasks import reasoning
from kvlab.reference.transformer import Transformer, load_tokenizer
from kvlab.reference.windows import mean_pool


@dataclass(frozen=True)
class Head:
    """One query head of one layer, over a whole text of t tokens."""

    layer: int
    kv_head: int
    queries: Float[Array, "t d"]
    """Rotated, as the logits use them."""
    keys: Float[Array, "t d"]
    values: Float[Array, "t d"]

    def attention(self) -> Float[Array, "t t"]:
        """Causal softmax of the scaled logits, row by row, each over what is visible."""
        t, d = self.queries.shape
        rows = np.zeros((t, t))
        for i in range(t):
            logits = self.keys[: i + 1] @ self.queries[i] / np.sqrt(d)
            rows[i, : i + 1] = softmax(logits)
        return rows


@cache
def _read(model: Path, problem: int) -> Trace:
    tokens = load_tokenizer(model).encode(reasoning.held_out(problem + 1)[problem].text).ids
    return record_trace(Transformer.from_directory(model), tokens, 1)


@cache
def observe_heads(model: Path, problem: int = 0) -> tuple[Head, ...]:
    """Let the model read a held-out problem with its solution; return every query head.

    The directory is that of the embedded reasoner, or of a model with its vocabulary.

    Raises:
        FileNotFoundError: if the model directory is incomplete.
    """
    trace = _read(model, problem)
    _, G, rho, _, _ = trace.shape
    return tuple(
        Head(layer, g, trace.queries[n, g, r], trace.keys[n, g], trace.values[n, g])
        for n, layer in enumerate(trace.metadata.layers)
        for g, r in product(range(G), range(rho))
    )


@cache
def received(model: Path, problem: int = 0) -> tuple[Float[Array, "t t"], ...]:
    """Return the attention of each KV head: the most that any of its query heads pays."""
    layers = Layer.all_of(_read(model, problem))
    return tuple(rows for layer in layers for rows in _most_paid(layer))


def _most_paid(layer: Layer) -> Float[Array, "G t t"]:
    return layer.full_attention(0, layer.tokens).max(axis=1)


def key_heads(model: Path) -> list[Head]:
    """Return one query head of each KV head: its keys and values."""
    return list({(head.layer, head.kv_head): head for head in observe_heads(model)}.values())


def prompt_tokens(problem: int) -> int:
    """Return the tokens of a held-out problem before its solution."""
    return len(reasoning.held_out(problem + 1)[problem].prompt.split(" "))


# --- recurrence (LazyEviction §3, Fig. 3c) --------------------------------------------------------


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


def activations(trace: Trace, threshold: float) -> Iterator[Recurring]:
    """Yield every entry of every recorded layer with its activations, as LazyEviction sees them.

    A query head that gives at least ``threshold`` activates the entry of its KV head.

    Raises:
        ValueError: if ``threshold`` is not between 0 and 1.
    """
    check_share(threshold=threshold)
    prompt = trace.prompt
    for layer in Layer.all_of(trace):
        for kv_head, rows in enumerate(_most_paid(layer)):
            for position in range(layer.tokens):
                first = max(prompt, position)
                steps = np.flatnonzero(rows[first:, position] >= threshold) + first - prompt + 1
                born = max(0, position - prompt)
                found = tuple(map(int, steps))
                yield Recurring(layer.layer, kv_head, position, threshold, found, born)


Draw = Callable[[int, int], Sequence[Any]]
"""Draws so many problems with a seed; each has a prompt and a solution, as text."""


def recurrence(longest: Int[Array, " entries"]) -> dict[str, Any]:
    """Sum up the MRI of entries; the quantiles are those of the entries that were activated."""
    activated = longest[longest > 0]
    levels = (0.5, 0.8, 0.9, 0.99)
    return {
        "entries": len(longest),
        "share_recurring": float((longest > 1).mean()),
        "quantiles": {f"{100 * x:.0f} %": float(np.quantile(activated, x)) for x in levels},
    }


def intervals(
    directory: Path, problems: int, seed: int, threshold: float, draw: Draw = reasoning.held_out
) -> Int[Array, " entries"]:
    """Let the model solve held-out problems with the full cache; return every entry's MRI.

    An entry is activated from the attention ``threshold`` on.

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


# --- what is evicted (CAOTE §1, Fig. 1) -----------------------------------------------------------


def choice(head: Head, share: float = 0.0, first: int = 40) -> Float[Array, "3 steps"]:
    """Let every query from the token ``first`` on evict a share of the others, or at least one.

    Returns:
        Change of the output, relative to its size, when the entries with the least attention are
        evicted, and when those with the least eviction errors are; share that both have in common.
    """
    rows, steps = head.attention(), []
    for query in range(first, len(rows)):
        h, values = rows[query, : query + 1], head.values[: query + 1]
        leaving = max(1, int(share * query))
        unseen, unmissed = (_least(x, leaving) for x in (h, eviction_error(h, values)))
        changes = [joint_error(h, values, marks) for marks in (unseen, unmissed)]
        size = np.linalg.norm(h @ values)
        steps.append((*np.array(changes) / size, (unseen & unmissed).sum() / leaving))
    return np.array(steps, dtype=float).T


def _least(score: Float[Array, " n"], count: int) -> Array:
    """Mark the ``count`` entries of the smallest score, the last entry excluded."""
    marks = np.zeros(len(score), dtype=bool)
    marks[np.argsort(score[:-1], kind="stable")[:count]] = True
    return marks


# --- importance and sensitivity (DesireKV §3.2, Fig. 3) -------------------------------------------


QUADRANTS = ("Q1", "Q2", "Q3", "Q4")
"""Neither; important; important and sensitive; sensitive."""


@dataclass(frozen=True)
class Quadrants:
    """The tokens of one layer before its last ``recent`` ones."""

    importance: Float[Array, " n"]
    """Mean attention of the last queries, all heads, smoothed (Eq. 3, 4)."""
    sensitivity: Float[Array, " n"]
    """Outlier score of the keys, relative to the largest (Eq. 5-8)."""

    @property
    def important(self) -> Bool[Array, " n"]:
        """Marks of the tokens above the median of importance."""
        return self.importance > np.median(self.importance)

    @property
    def sensitive(self) -> Bool[Array, " n"]:
        """Marks of the tokens above the median of sensitivity."""
        return self.sensitivity > np.median(self.sensitivity)

    @property
    def counts(self) -> Mapping[str, int]:
        """Tokens in every quadrant."""
        place = np.where(self.important, 1 + self.sensitive, 3 * self.sensitive)
        return {name: int((place == number).sum()) for number, name in enumerate(QUADRANTS)}

    @property
    def r_squared(self) -> float:
        """Share of the variance of one axis that a line through the other explains."""
        return float(np.corrcoef(self.importance, self.sensitivity)[0, 1] ** 2)


def quadrants(layer: Layer, recent: int = 32, radius: int = 3, group: int = 64) -> Quadrants:
    """Judge the tokens of a layer of a trace as DesireKV does, smoothed over ``radius`` neighbours.

    The queries of the ``recent`` newest tokens judge the others; a key's blocks have ``group``
    channels.

    Raises:
        ValueError: unless 1 ≤ recent and at least two tokens are left.
    """
    check_at_least(1, recent=recent)
    t = layer.keys.shape[1]
    if t - recent < 2:
        raise ValueError(f"recent = {recent} must leave two of the {t} tokens")
    attention = layer.full_attention(t - recent, t)[..., : t - recent]
    raw = attention.mean(axis=(0, 1, 2))
    keys = layer.keys[:, : t - recent]
    everywhere = np.ones(keys.shape[:2], dtype=bool)
    return Quadrants(mean_pool(raw, 2 * radius + 1, "zero"), sensitivity(keys, everywhere, group))
