"""Questions about a text that is compressed before any question is known."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from kvlab.fast.engine.policy import Policy
from kvlab.fast.huggingface import CompressedCache, compress
from kvlab.fast.lab.measure import left_padded


def answer_after(
    model: Any,
    policy: Policy,
    text: Sequence[int],
    questions: Sequence[Sequence[int]],
    limit: int,
    stop: int | None,
    block_size: int | None = None,
    solutions: Sequence[Sequence[int]] | None = None,
) -> list[list[int]]:
    """Read a text once, then answer each question greedily from what was kept of the text.

    A question is read at once; it counts as generated, as every turn after the first one does.

    Args:
        model: a decoder of transformers.
        policy: what to keep.
        text: token ids, at least two.
        questions: token ids of each.
        limit: tokens to write at most.
        stop: token that ends an answer; None: only the limit does.
        block_size: tokens per block of the text; None reads the text at once.
        solutions: right answers; an answer ends with its first token that differs from them.

    Raises:
        ValueError: if the text is too short, there is no question, or the policy does not fit.
    """
    if len(text) < 2:
        raise ValueError(f"a text of {len(text)} tokens must hold at least two")
    with torch.inference_mode(), compress(model, policy, block_size=block_size) as cache:
        ids = torch.tensor([list(text)], device=model.device)
        model(ids[:, :-1], past_key_values=cache, logits_to_keep=1)
        model(ids[:, -1:], past_key_values=cache)  # a prompt ends where a single token follows
        cache.batch_repeat_interleave(len(questions))
        asked, real = left_padded(questions, model.device)
        read = real.new_ones(len(questions), len(text))
        mask = torch.cat([read, real], dim=1).long()
        logits = model(asked, attention_mask=mask, past_key_values=cache, logits_to_keep=1).logits
        return _write(model, cache, logits[:, -1].argmax(-1, keepdim=True), limit, stop, solutions)


def _write(
    model: Any,
    cache: CompressedCache,
    tokens: Int[Tensor, "N 1"],
    limit: int,
    stop: int | None,
    solutions: Sequence[Sequence[int]] | None,
) -> list[list[int]]:
    """Write on from the first token of every answer until all answers have ended."""
    written: list[list[int]] = [[] for _ in range(len(tokens))]
    ended = [False] * len(tokens)
    while True:
        for row, (token,) in enumerate(tokens.tolist()):
            if ended[row]:
                continue
            written[row].append(token)
            place = len(written[row]) - 1
            wrong = solutions is not None and [token] != list(solutions[row][place : place + 1])
            ended[row] = token == stop or wrong or len(written[row]) == limit
        if all(ended):
            return written
        tokens = model(tokens, past_key_values=cache).logits[:, -1].argmax(-1, keepdim=True)
