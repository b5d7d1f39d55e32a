"""What a policy costs and what it spoils in a Hugging Face model, along given continuations.

Mirrors `kvlab.reference.measure`, for a batch of sequences.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvlab.fast.engine.cache import LayerCache
from kvlab.fast.engine.policy import Policy
from kvlab.fast.engine.step import Block, StepResult
from kvlab.fast.huggingface import CompressedCache, compress
from kvlab.fast.kernels.attention import attend, visible
from kvlab.fast.lab.points import tokens_after
from kvlab.reference.measure import Measurement, measurement
from kvlab.reference.policy import Policy as ReferencePolicy
from kvlab.reference.quantization import FULL_BITS


class DenseShadow:
    """Keeps everything the compressed layers ever saw, and measures each step against it."""

    def __init__(self) -> None:
        self.seen: dict[int, list[Tensor]] = {}
        self.errors: list[Float[Tensor, " N"]] = []

    def watch(self, block: Block, result: StepResult) -> None:
        """Compare the block's output with attention over everything seen, for the same queries."""
        positions = block.clock.positions[:, None].expand(-1, block.keys.shape[1], -1)
        new, old = [block.keys, block.values, positions], self.seen.get(block.layer)
        if old is not None:
            new = [torch.cat(parts, dim=2) for parts in zip(old, new, strict=True)]
        self.seen[block.layer] = new
        dtype = torch.promote_types(block.keys.dtype, torch.float32)
        queries, keys, values = (x.to(dtype) for x in (block.queries, *new[:2]))
        mask = visible(block.clock.positions, new[2])
        dense, _ = attend(queries, keys, values, mask, block.softcap)
        distance = (dense - result.output).norm(dim=-1).mean(dim=(1, 2))
        real = (block.clock.positions >= 0).to(dtype)
        self.errors.append((distance * real).sum(dim=-1) / real.sum(dim=-1).clamp(min=1))

    def mean_error(self) -> Float[Tensor, " N"]:
        """Return the mean over the layers of the last block, and discard it."""
        error = torch.stack(self.errors).mean(dim=0)
        self.errors.clear()
        return error


def teacher_forced(
    model: Any,
    policy: Policy | ReferencePolicy,
    prompts: Sequence[Sequence[int]],
    continuations: Sequence[Sequence[int]],
    full_logits: Sequence[Float[np.ndarray, "_ vocab"]] | None = None,
) -> list[tuple[Measurement, Float[np.ndarray, "_ vocab"]]]:
    """Feed continuations under a policy and compare every step with the full cache.

    All tokens but the last of each continuation are fed. ``full_logits`` are what a run with the
    full cache returned; None: this run is the yardstick. Each sequence gets its measurement, and
    the logits of every step.
    """
    if not all(len(tokens) for tokens in (*prompts, *continuations)):
        raise ValueError("prompts and continuations must hold at least one token each")
    shadow, logits, columns = DenseShadow(), [], []
    with compress(model, policy, watch=shadow.watch) as cache, torch.no_grad():
        for step in feed_in_steps(model, cache, prompts, continuations):
            logits.append(step[:, -1].double().cpu().numpy())
            columns.append(_memory_columns(cache, shadow.mean_error()))
        firsts = cache.first_evictions
    table, rows = np.array(columns), np.stack(logits, axis=1)
    found = []
    for row, continuation in enumerate(continuations):
        steps = len(continuation)
        written = rows[row, :steps]
        yardstick = written if full_logits is None else full_logits[row]
        after = np.arange(steps) >= steps - tokens_after(firsts[row], len(prompts[row]), steps)
        found.append((measurement(table[:steps, :, row], yardstick, written, after), written))
    return found


def feed_in_steps(
    model: Any,
    cache: CompressedCache,
    prompts: Sequence[Sequence[int]],
    continuations: Sequence[Sequence[int]],
) -> Iterator[Float[Tensor, "N 1 vocab"]]:
    """Read prompts, then continuations token by token; yield the logits before every token."""
    device = next(model.parameters()).device
    ids, real = left_padded(prompts, device)
    for step in range(max(map(len, continuations))):
        if step:
            ids = next_tokens(continuations, step, device)
            real = torch.cat([real, torch.ones_like(ids, dtype=torch.bool)], dim=1)
        output = model(ids, attention_mask=real.long(), past_key_values=cache, logits_to_keep=1)
        yield output.logits[:, -1:]


def left_padded(
    prompts: Sequence[Sequence[int]], device: torch.device
) -> tuple[Int[Tensor, "N m"], Bool[Tensor, "N m"]]:
    """Return token ids padded on the left with 0, and which of them are real."""
    longest = max(map(len, prompts))
    ids = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    real = [[False] * (longest - len(prompt)) + [True] * len(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(real, device=device)


def next_tokens(
    continuations: Sequence[Sequence[int]], step: int, device: torch.device
) -> Int[Tensor, "N 1"]:
    """Return the token before ``step`` of each continuation, any token where it has ended."""
    tokens = [tokens[min(step, len(tokens)) - 1] for tokens in continuations]
    return torch.tensor(tokens, device=device)[:, None]


def _memory_columns(
    cache: CompressedCache, error: Float[Tensor, " N"]
) -> tuple[Sequence[float], ...]:
    entries = np.mean(cache.kept(), axis=0)
    nbytes = cache_bytes(cache)
    seen = np.array([clock.seen for clock in cache.clocks])
    caches, layers = cache.text.layers.caches, cache.text.layers.count
    elements = np.mean([_elements(each) for each in caches]) * layers * seen
    bits = (8 * nbytes / elements).tolist()
    return error.cpu().tolist(), entries.tolist(), nbytes.tolist(), bits


def cache_bytes(cache: CompressedCache) -> Float[np.ndarray, " N"]:
    """Return the bytes of elements and of scales that sequences' own entries have."""
    found = np.array([_bytes_of(each) for each in cache.text.layers.caches])
    return found.reshape(-1, len(cache.clocks)).sum(axis=0)


def _bytes_of(cache: LayerCache) -> Float[np.ndarray, " rows"]:
    """Bytes of elements, scales, zero points, norms and balance factors of each sequence."""
    if cache.mixed is None:
        return _elements(cache) * np.array(cache.counts) * FULL_BITS / 8
    total = np.zeros(len(cache.counts))
    heads = cache.positions.shape[1]
    for storage in cache.mixed:
        if storage.balance is not None:
            total += heads * storage.dimension * FULL_BITS / 8
        if storage.scale is not None:
            total += storage.scale.nbytes / len(total)
        for table in storage.tables:
            counts, rows = np.array(table.counts), max(1, table.rows)
            total += heads * storage.dimension * counts * table.bits / 8
            total += counts * table.overhead_bytes / len(total) / rows
    return total


def _elements(cache: LayerCache) -> int:
    """Elements of keys and values that one token has in all heads of a layer."""
    heads = cache.positions.shape[1]
    if cache.mixed is not None:
        return heads * sum(storage.dimension for storage in cache.mixed)
    return heads * sum(cache.columns[name].shape[-1] for name in ("keys", "values"))
