"""How likely a model finds given continuations under a policy."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvlab.fast.engine.policy import Policy
from kvlab.fast.huggingface import CompressedCache, compress
from kvlab.fast.lab.measure import cache_bytes, feed_in_steps, left_padded, next_tokens
from kvlab.fast.lab.points import check_points, points
from kvlab.reference.checks import check_at_least, check_choice
from kvlab.reference.observation import Clock
from kvlab.reference.policy import Schedule

Texts = Sequence[Sequence[int]]
"""Token ids of several texts."""

FEEDS = ("steps", "blocks")
"""``steps``: the continuation is fed token by token, as if the model had written it. ``blocks``: it
belongs to the prompt, which is read block by block."""


@dataclass(frozen=True)
class Reading:
    """Methods at budgets that read texts, and how they read.

    Raises:
        ValueError: if a value is not allowed, or a method needs a budget and there is none.
    """

    methods: tuple[str, ...]
    """Registry syntax."""
    budgets: tuple[str, ...] = ()
    """Entries, or percent of a text's tokens."""
    block_size: int | None = None
    """Tokens per block of what is read as a prompt; None reads it at once."""
    feed: str = "steps"
    """How continuations are fed, one of `FEEDS`."""
    batch_size: int = 1
    """Texts that are read together."""

    def __post_init__(self) -> None:
        check_choice(FEEDS, feed=self.feed)
        check_at_least(1, batch_size=self.batch_size)
        if self.block_size is not None:
            check_at_least(1, block_size=self.block_size)
        check_points(self.methods, self.budgets)

    def points(self) -> Iterator[tuple[str, str | None]]:
        """Yield each method with each budget."""
        return points(self.methods, self.budgets)


@dataclass(frozen=True)
class Likelihood:
    """How likely a model finds one continuation."""

    logprobs: Float[np.ndarray, " t"]
    """Log-probability of each token, in nats."""
    greedy: Bool[np.ndarray, " t"]
    """Whether the token is the likeliest."""
    entries: int
    """Entries per KV head after the last token, in the compressed layer that keeps most."""
    nbytes: float
    """Bytes of all keys and values at that time, scales and norms included; an unquantised element
    counts 16 bits."""


def likelihoods(
    model: Any,
    policy: Policy,
    contexts: Texts,
    continuations: Texts,
    block_size: int | None = None,
    feed: str = "steps",
    batch_size: int | None = None,
    report: Callable[[int], object] = lambda done: None,
) -> list[Likelihood]:
    """Rate continuations; every batch gets a fresh cache.

    Args:
        model: a decoder of transformers.
        policy: what to keep.
        contexts: token ids before each continuation: the prompts.
        continuations: token ids to rate; the last token of each is never fed.
        block_size: tokens per block of what is read as a prompt; None reads it at once.
        feed: how the continuations are fed, one of `FEEDS`.
        batch_size: continuations that run together; None runs all together.
        report: is called after each batch with the number of continuations that are rated.

    Raises:
        ValueError: if a context or a continuation is empty, their numbers differ, ``feed`` is
            unknown, or the policy does not fit the prompts.
    """
    check_choice(FEEDS, feed=feed)
    if len(contexts) != len(continuations) or not contexts:
        raise ValueError(
            f"{len(contexts)} contexts and {len(continuations)} continuations must be equally "
            "many, at least one"
        )
    if not all(len(tokens) for tokens in (*contexts, *continuations)):
        raise ValueError("contexts and continuations must hold at least one token each")
    read = _read_in_blocks if feed == "blocks" else _read_in_steps
    size, found = batch_size or len(contexts), []
    with torch.inference_mode():
        for first in range(0, len(contexts), size):
            some = slice(first, first + size)
            found += read(model, policy, contexts[some], continuations[some], block_size)
            report(len(found))
    return found


def grouped(budgets: Iterable[int | None]) -> dict[int | None, list[int]]:
    """Return the numbers of the texts that have each budget in entries: they share batches."""
    groups: dict[int | None, list[int]] = {}
    for number, entries in enumerate(budgets):
        groups.setdefault(entries, []).append(number)
    return groups


def check_feed(schedule: Schedule, tokens: int, block_size: int | None) -> None:
    """Raise ValueError if a policy decides nothing before the last block of a prompt is rated.

    Then ``blocks`` would rate the full cache, whatever the budget.
    """
    size = block_size or tokens
    ends = range(size, tokens, size)
    if not any(schedule.due(Clock(end, size, tokens)) for end in ends):
        raise ValueError(
            f"nothing is evicted while {tokens} tokens are read in blocks of {size}: "
            "take --feed steps (feed = 'steps')"
        )


def _read_in_steps(
    model: Any, policy: Policy, contexts: Texts, continuations: Texts, block_size: int | None
) -> list[Likelihood]:
    steps, memory = [], [(0, 0.0)] * len(contexts)
    with compress(model, policy, block_size=block_size) as cache:
        for fed, logits in enumerate(feed_in_steps(model, cache, contexts, continuations), 1):
            steps.append(_rate(logits, next_tokens(continuations, fed, model.device)))
            ending = [row for row, tokens in enumerate(continuations) if len(tokens) == fed]
            held = _held(cache) if ending else []
            for row in ending:
                memory[row] = held[row]
    logprobs, greedy = (torch.cat(part, dim=1).cpu().numpy() for part in zip(*steps, strict=True))
    return [
        Likelihood(logprobs[row, : len(tokens)], greedy[row, : len(tokens)], *memory[row])
        for row, tokens in enumerate(continuations)
    ]


def _read_in_blocks(
    model: Any, policy: Policy, contexts: Texts, continuations: Texts, block_size: int | None
) -> list[Likelihood]:
    texts = [[*before, *after] for before, after in zip(contexts, continuations, strict=True)]
    ids, real = left_padded(texts, model.device)
    with compress(model, policy, block_size=block_size) as cache:
        output = model(
            ids[:, :-1],
            attention_mask=real[:, :-1].long(),
            past_key_values=cache,
            logits_to_keep=max(map(len, continuations)),
        )
        memory = _held(cache)
    targets = ids[:, ids.shape[1] - output.logits.shape[1] :]
    logprobs, greedy = (part.cpu().numpy() for part in _rate(output.logits, targets))
    return [
        Likelihood(logprobs[row, -len(tokens) :], greedy[row, -len(tokens) :], *memory[row])
        for row, tokens in enumerate(continuations)
    ]


def _held(cache: CompressedCache) -> list[tuple[int, float]]:
    """Return entries, in the layer that keeps most, and bytes of every sequence."""
    entries = [max(counts) for counts in zip(*cache.kept(), strict=True)]
    return list(zip(entries, cache_bytes(cache).sum(axis=0).tolist(), strict=True))


def _rate(
    logits: Float[Tensor, "N t vocab"], targets: Int[Tensor, "N t"]
) -> tuple[Float[Tensor, "N t"], Bool[Tensor, "N t"]]:
    """Return each target's log-probability, and whether it is the likeliest token.

    The work is done for 64 positions at a time, to save memory.
    """
    logprobs, greedy = [], []
    for some, wanted in zip(logits.split(64, dim=1), targets.split(64, dim=1), strict=True):
        rows = torch.log_softmax(some.to(torch.promote_types(some.dtype, torch.float32)), -1)
        logprobs.append(rows.gather(-1, wanted[..., None]).squeeze(-1).double())
        greedy.append(rows.argmax(dim=-1) == wanted)
    return torch.cat(logprobs, dim=1), torch.cat(greedy, dim=1)
