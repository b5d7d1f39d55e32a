"""Where a batch stands in its token streams, and how sure the model was of each token."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvlab.fast.engine.batch import BatchClock
from kvlab.reference.observation import Clock

AHEAD = 64
"""Tokens after the prompt whose confidence the first buffer can hold."""


class StreamClock:
    """Counts the tokens of every sequence, and gives each block its `BatchClock`."""

    def __init__(self, records_confidence: bool) -> None:
        self.records_confidence = records_confidence
        self.columns = 0
        """Columns fed so far, evicted ones and padding included."""
        self.rows: tuple[Clock, ...] = ()
        self._last: Tensor | None = None
        self._prompt: Tensor | None = None
        self._confidence = torch.empty((0, 0))
        self._next_confidence: Tensor | None = None
        self._gave_many = False

    @property
    def confidence(self) -> Float[Tensor, "N t"]:
        """Largest probability in the distribution that gave each token; NaN for given tokens."""
        longest = max((row.seen for row in self.rows), default=0)
        return self._confidence[:, :longest]

    @property
    def confidence_so_far(self) -> Float[Tensor, "N t"]:
        """The confidence that a step gets: if it is not recorded, the buffer, which holds NaN."""
        return self.confidence if self.records_confidence else self._confidence

    def check(self, shape: tuple[int, int]) -> None:
        """Raise ValueError if a call of this shape does not fit the calls before it."""
        N, m = shape
        if self.rows and len(self.rows) != N:
            raise ValueError(
                f"a batch of {N} sequences must be of the {len(self.rows)} that the cache holds"
            )
        if self._gave_many and m > 1:
            raise ValueError(
                "two texts came without a generated token between them: give a prompt at once, and "
                "compress(block_size=...) instead of prefill_chunk_size; call reset() before "
                "another text"
            )

    def begin(self, prompts: Sequence[int], device: Any) -> None:
        """Start with prompts of these lengths."""
        N = len(prompts)
        self.rows = tuple(Clock(0, 0, prompt) for prompt in prompts)
        self._last = torch.full((N, 1), -1, dtype=torch.int32, device=device)
        self._prompt = torch.tensor(prompts, dtype=torch.int32, device=device)[:, None, None]
        self._confidence = torch.full((N, max(prompts) + AHEAD), torch.nan, device=device)

    def note_call(self, tokens: int) -> None:
        """Remember how many tokens the model is called with, all blocks together."""
        self._gave_many = tokens > 1

    def advance(self, real: Bool[Tensor, "N m"] | None, m: int) -> BatchClock:
        """Count a block, and return its clock; ``real`` says which tokens are no padding."""
        assert self._last is not None and self._prompt is not None
        if real is None:
            counts = [m] * len(self.rows)
            positions = self._last + 1
            if m > 1:
                ahead = torch.arange(m, dtype=torch.int32, device=self._last.device)
                positions = positions + ahead
            self._last = positions[:, -1:]
        else:
            counts = real.sum(dim=-1).tolist()
            ahead = real.cumsum(dim=-1, dtype=torch.int32)
            positions = torch.where(real, self._last + ahead, -1)
            self._last = self._last + ahead[:, -1:]
        self.rows = tuple(
            Clock(row.seen + count, count, row.prompt)
            for row, count in zip(self.rows, counts, strict=True)
        )
        if self.records_confidence:
            self._record_confidence(positions)
        return BatchClock(self.rows, positions, self._prompt)

    def end_block(self, logits: Float[Tensor, "N k vocab"], m: int) -> None:
        """Note what the model says about the token after a block of ``m``."""
        self.columns += m
        if self.records_confidence:
            confidence = logits[:, -1].float().softmax(dim=-1).amax(dim=-1)
            self._next_confidence = confidence.to(self._confidence.device)

    def map_rows(self, change: Callable[[Tensor], Tensor], order: Sequence[int]) -> None:
        """Apply one change of the batch axis; ``order`` is the same change as indices."""
        self.rows = tuple(self.rows[i] for i in order)
        for name in ("_last", "_prompt", "_confidence", "_next_confidence"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, change(value))

    def _record_confidence(self, positions: Int[Tensor, "N m"]) -> None:
        longest = max(row.seen for row in self.rows)
        if longest > self._confidence.shape[1]:
            more = torch.full_like(self._confidence, torch.nan)
            self._confidence = torch.cat([self._confidence, more], dim=1)
        if positions.shape[1] == 1 and self._next_confidence is not None and not self._gave_many:
            self._confidence.scatter_(1, positions.long(), self._next_confidence[:, None])
