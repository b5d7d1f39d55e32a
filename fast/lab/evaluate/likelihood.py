"""How likely a model finds given continuations under a policy."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvlab.fast import methods
from kvlab.fast.engine.policy import Policy
from kvlab.fast.huggingface import CompressedCache, compress
from kvlab.fast.lab.measure import cache_bytes, feed_in_steps, left_padded, next_tokens
from kvlab.fast.lab.points import RefusalError, most_entries, tokens_after
from kvlab.fast.precisions import OnArrival
from kvlab.reference.checks import check_at_least, check_between, check_choice
from kvlab.reference.observation import Clock

FEEDS = ("steps", "blocks")
"""``steps``: the continuation is fed token by token, as if the model had written it. ``blocks``: it
belongs to the prompt, which is read block by block."""


@dataclass(frozen=True)
class Passage:
    """A text that is read with one cache, as token ids."""

    prompt: Sequence[int]
    """What is given, at least one token."""
    rated: Sequence[int]
    """What follows, at least one token, whose likelihood counts; the last token is never fed."""

    def __len__(self) -> int:
        return len(self.prompt) + len(self.rated)


@dataclass(frozen=True)
class Likelihood:
    """How likely a model finds the rated tokens of a passage."""

    logprobs: Float[np.ndarray, " t"]
    """Log-probability of each token, in nats."""
    greedy: Bool[np.ndarray, " t"]
    entries: float
    """As `kvlab.fast.lab.points.ENTRIES` says."""
    nbytes: float
    """Bytes of all keys and values after the last token; an unquantised element has 16 bits."""
    after_eviction: int
    """Tokens that come after at least one eviction, see `kvlab.fast.lab.points.After`."""


def likelihoods(
    model: Any,
    policy_at: Callable[[int | None], Policy],
    passages: Sequence[Passage],
    budgets: Sequence[int | None],
    block_size: int | None = None,
    feed: str = "steps",
    batch_size: int = 1,
    progress: Callable[[int], object] = lambda done: None,
) -> list[Likelihood]:
    """Rate passages; every batch gets a fresh cache, and those whose budgets differ run apart.

    ``budgets`` are in entries. ``block_size`` None reads at once what is read as a prompt.
    ``progress`` is called after each batch with the number of passages that are rated. ValueError
    if a part of a passage is empty, or the policy does not fit the prompts.
    """
    check_choice(FEEDS, feed=feed)
    if not all(len(each.prompt) and len(each.rated) for each in passages):
        raise ValueError("prompt and rated tokens of a passage must be at least one each")
    read = _read_in_blocks if feed == "blocks" else _read_in_steps
    found: dict[int, Likelihood] = {}
    with torch.inference_mode():
        for entries, numbers in grouped(budgets).items():
            for first in range(0, len(numbers), batch_size):
                some = numbers[first : first + batch_size]
                with compress(model, policy_at(entries), block_size=block_size) as cache:
                    rated = read(model, cache, [passages[number] for number in some])
                found.update(zip(some, rated, strict=True))
                progress(len(found))
    return [found[number] for number in range(len(passages))]


Key = TypeVar("Key", int | None, str | None)


def grouped(keys: Iterable[Key]) -> dict[Key, list[int]]:
    """Return the numbers of the texts that have each key, such as a budget: they share batches."""
    groups: dict[Key, list[int]] = {}
    for number, key in enumerate(keys):
        groups.setdefault(key, []).append(number)
    return groups


def rate(
    model: Any,
    spec: str,
    entries: int | None,
    passages: Sequence[Passage],
    block_size: int | None,
    feed: str,
    batch_size: int,
) -> list[Likelihood]:
    """Rate passages under one method at one budget in entries.

    ValueError if the method does not fit them, RefusalError if it would evict nothing before they
    are rated.
    """
    policy = methods.get(spec, entries)
    only_codes = entries is None and isinstance(policy.precision, OnArrival)
    if feed == "blocks" and spec != "full" and not only_codes:
        tokens = max(map(len, passages)) - 1
        size = block_size or tokens
        ends = range(size, tokens, size)
        if not any(policy.schedule.due(Clock(end, size, tokens)) for end in ends):
            raise RefusalError(
                f"nothing is evicted while {tokens} tokens are read in blocks of {size}: "
                "take --feed steps (feed = 'steps')"
            )
    how, same = (block_size, feed, batch_size), [entries] * len(passages)
    return likelihoods(model, lambda entries: policy, passages, same, *how)


def cut_windows(
    tokens: Sequence[int], window: int, prompt: int, most: int | None = None
) -> list[Passage]:
    """Cut a text into windows, the first ``prompt`` tokens of each not rated; the rest is left out.

    ValueError if a number is not allowed, or the text does not fill a window.
    """
    check_at_least(2, window=window)
    check_between(1, window - 1, prompt=prompt)
    check_at_least(1, most=most)
    ends = range(window, len(tokens) + 1, window)
    if not ends:
        raise ValueError(f"the text has {len(tokens)} tokens, too few for window = {window}")
    parts = [tokens[end - window : end] for end in ends[:most]]
    return [Passage(part[:prompt], part[prompt:]) for part in parts]


def _read_in_steps(
    model: Any, cache: CompressedCache, passages: Sequence[Passage]
) -> list[Likelihood]:
    prompts, rated = [each.prompt for each in passages], [each.rated for each in passages]
    steps, kept, memory = [], [], [(0.0, 0.0)] * len(passages)
    for fed, logits in enumerate(feed_in_steps(model, cache, prompts, rated), 1):
        steps.append(_rate(logits, next_tokens(rated, fed, model.device)))
        ending = [row for row, tokens in enumerate(rated) if len(tokens) == fed]
        kept.append(cache.kept())
        held = _held(cache, kept) if ending else []
        for row in ending:
            memory[row] = held[row]
    logprobs, greedy = (torch.cat(part, dim=1).cpu().numpy() for part in zip(*steps, strict=True))
    after = _after_eviction(cache, passages)
    return [
        Likelihood(logprobs[row, :count], greedy[row, :count], *memory[row], after[row])
        for row, count in enumerate(map(len, rated))
    ]


def _read_in_blocks(
    model: Any, cache: CompressedCache, passages: Sequence[Passage]
) -> list[Likelihood]:
    ids, real = left_padded([[*each.prompt, *each.rated] for each in passages], model.device)
    rated = [len(each.rated) for each in passages]
    logits = model(
        ids[:, :-1],
        attention_mask=real[:, :-1].long(),
        past_key_values=cache,
        logits_to_keep=max(rated),
    ).logits
    targets = ids[:, ids.shape[1] - logits.shape[1] :]
    logprobs, greedy = (part.cpu().numpy() for part in _rate(logits, targets))
    after, held = _after_eviction(cache, passages), _held(cache, [cache.kept()])
    return [
        Likelihood(logprobs[row, -count:], greedy[row, -count:], *held[row], after[row])
        for row, count in enumerate(rated)
    ]


def _after_eviction(cache: CompressedCache, passages: Sequence[Passage]) -> list[int]:
    return [
        tokens_after(first, len(each.prompt), len(each.rated))
        for first, each in zip(cache.first_evictions, passages, strict=True)
    ]


def _held(
    cache: CompressedCache, kept: Sequence[list[tuple[int, ...]]]
) -> list[tuple[float, float]]:
    """Return entries, from those kept after every step so far, and bytes of every sequence."""
    entries = map(most_entries, np.array(kept).transpose(2, 1, 0))
    return list(zip(entries, cache_bytes(cache).tolist(), strict=True))


def _rate(
    logits: Float[Tensor, "N t vocab"], targets: Int[Tensor, "N t"]
) -> tuple[Float[Tensor, "N t"], Bool[Tensor, "N t"]]:
    """Rate targets, and say which are the likeliest; 64 positions at a time, to save memory."""
    logprobs, greedy = [], []
    for some, wanted in zip(logits.split(64, dim=1), targets.split(64, dim=1), strict=True):
        rows = torch.log_softmax(some.to(torch.promote_types(some.dtype, torch.float32)), -1)
        logprobs.append(rows.gather(-1, wanted[..., None]).squeeze(-1).double())
        greedy.append(rows.argmax(dim=-1) == wanted)
    return torch.cat(logprobs, dim=1), torch.cat(greedy, dim=1)
