"""Padding stands before a row's tokens, in every block that a model reads and in every window.

So a row is computed as if it were alone: the blocks of its text, and the tokens in a window, are
counted from its own tokens, wherever its padding stands in the call, and whatever other rows hold.
"""

from collections.abc import Sequence
from math import ceil
from typing import Any

import torch
from torch.nn.functional import pad
from transformers.cache_utils import DynamicSlidingWindowLayer

from kvlab.fast.kernels.notation import Float, Int, Real, Tensor


class Blocks:
    """The blocks in which a call is read: ``size`` tokens of every row, and its rest in the last.

    A row with fewer blocks than another begins later, so that all end with the same block. In a
    block padding stands first, as methods and windows expect it.
    """

    def __init__(self, real: Real | None, m: int, size: int | None) -> None:
        """``real`` are tokens, and not padding; None: all are."""
        self.real, self.m = real, m
        self.columns: Int[Tensor, "N places"] | None = None
        """The column of the call that stands in each place, -1 for padding; None: its own."""
        counts = [m] if real is None else real.sum(dim=1).tolist()
        self.longest = max(counts)
        """Tokens of the longest row."""
        whole, size = size is None or self.longest <= size, size or self.longest
        if real is None or (whole and bool((real.int().diff(dim=1) >= 0).all())):
            size = m if whole else size
            self.parts = [slice(first, min(first + size, m)) for first in range(0, m, size)]
            return
        each = [ceil(count / size) for count in counts]
        rest = max(count - (number - 1) * size for count, number in zip(counts, each, strict=True))
        width = max(size, 2)  # a single column is a token of every row
        starts = [width * first for first in range(max(each))]
        ends = [*starts[1:], starts[-1] + rest]
        self.parts = [slice(*part) for part in zip(starts, ends, strict=True)]
        self._place(real, counts, each, size)

    def _place(self, real: Real, counts: list[int], each: list[int], size: int) -> None:
        count, blocks = (torch.tensor(x, device=real.device)[:, None] for x in (counts, each))
        number, places, width = real.cumsum(dim=1) - 1, self.parts[-1].stop, max(size, 2)
        block = max(each) - blocks + number // size
        last = block == max(each) - 1
        before = block * width + width - size + number % size
        place = torch.where(last, number + places - count, before)
        rows, columns = real.nonzero(as_tuple=True)
        self.columns = place.new_full((len(real), places), -1)
        self.columns[rows, place[rows, columns]] = columns
        self._places = torch.where(real, place, -1).cummax(dim=1).values
        """Of the last token up to each column; -1 before the first token."""

    def padded_after(self, held: bool) -> bool:
        """Whether a block has padding after a token of its row; ``held``: of an earlier call."""
        if self.columns is None:
            return held and self.real is not None
        there = (self.columns >= 0).int()
        after = there if not held else torch.ones_like(there)
        return bool((after.cummax(dim=1).values > there).any())

    def tokens(self, part: slice) -> Real | None:
        """Mark what is no padding in a block; None if nothing is."""
        if self.columns is None:
            return None if self.real is None else self.real[:, part]
        here = self.columns[:, part] >= 0
        return None if here.all() else here

    def cut(self, x: Tensor, part: slice, features: bool) -> Tensor:
        """Return a block of an argument ``[..., N, m]``, with ``features`` ``[N, m, D]``."""
        rest = (slice(None),) if features else ()
        if self.columns is None:
            return x[(..., part, *rest)]
        columns = self.columns[:, part].clamp(min=0).to(x.device)
        x = x if features else x.expand(*x.shape[:-2], len(columns), self.m)
        return x[(..., torch.arange(len(columns), device=x.device)[:, None], columns, *rest)]

    def logits_in(self, part: slice, keep: int) -> int:
        """Return how many last logits of a block the last ``keep`` columns are made of, or 1."""
        first = self.m - keep
        if self.columns is not None:
            first = int(self._places[:, -keep:].clamp(min=0).min())
        return min(part.stop - part.start, max(1, part.stop - first))

    def joined(
        self, logits: Sequence[Float[Tensor, "N _ vocab"]], keep: int
    ) -> Float[Tensor, "N t vocab"]:
        """Return the logits of the last columns, as many as there are or ``keep``.

        Those of a column of padding are those of the token before it, and 0 where there is none.
        """
        found = torch.cat(list(logits), dim=1)
        if self.columns is None:
            return found[:, -keep:]
        places = self._places[:, -keep:].to(found.device)
        index = (places + found.shape[1] - self.parts[-1].stop).clamp(min=0)
        rows = torch.arange(len(places), device=found.device)[:, None]
        return found[rows, index].masked_fill((places < 0)[..., None], 0)


class WindowLayer(DynamicSlidingWindowLayer):
    """A layer with a sliding window, as transformers computes it, with all padding in front."""

    padding: Int[Tensor, " N"] | None = None
    """Columns of padding in the block that comes."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Return all keys and values; what is held moves towards the new tokens."""
        held = 0 if self.keys is None else self.keys.shape[2]
        found = super().update(key_states, value_states, *args, **kwargs)
        if self.padding is None or not held:
            return found
        places = torch.arange(found[0].shape[2], device=found[0].device)
        padding = self.padding.to(places.device)[:, None]
        index = torch.where(places < held + padding, (places - padding) % (held + padding), places)
        rows = torch.arange(len(index), device=places.device)[:, None]
        keys, values = (x.transpose(1, 2)[rows, index].transpose(1, 2) for x in found)
        self.keys, self.values = (x[:, :, 1 - self.sliding_window :] for x in (keys, values))
        return keys, values

    def fit(self, columns: int) -> None:
        """Count as many columns as the caller does: some of padding more or fewer than came."""
        self.cumulative_length = columns
        for name in ("keys", "values"):
            held = getattr(self, name)
            more = min(columns, self.sliding_window - 1) - held.shape[2]
            setattr(self, name, pad(held, (0, 0, more, 0)))
