"""How far a text is: its tokens, row by row and column by column.

A `StreamClock` counts tokens and columns, remembers what the model was fed, to compare it with what
`generate` is given later, and how sure the model was of each token.
"""

from collections.abc import Sequence
from copy import copy
from typing import Any

import torch

from kvlab.fast.engine.cache import BatchClock
from kvlab.fast.kernels.notation import Bool, Change, Float, Int, Real, Tensor
from kvlab.reference.observation import Clock

AHEAD = 64
"""Tokens after the prompt for which the first buffers have room."""

PADDING = -1
"""What stands for padding in a text."""
FINGERPRINTS = 2**30
"""How many numbers there are for embeddings in a text: from -2 down."""


class StreamClock:
    """Counts the tokens of every sequence, and gives each block its `BatchClock`.

    A *column* is what all rows are fed at once: a token of each, or padding. In this order:

    1. The first call of the model: `begin`.
    2. Every call: `note_call`, with all its columns. They are in ``_fed`` from then on, behind the
       columns that count, and nothing else has moved yet.
    3. Every block of the call: `advance` moves ``rows``, and the last position of each, over the
       block. Then the model runs on the block, and is given `mask_after`, for which ``columns``
       must still be those before the block. `advance_columns` moves ``columns``.

    Between two calls ``rows`` and ``columns`` stand at the same token; only then can `padded` and
    what is in ``fed`` be relied on. Two others move them: `CompressedCache.fit`, after a call whose
    blocks had other columns than the call, and a replayed token (huggingface/graphs.py).
    """

    ALIKE = ("records_confidence", "columns", "adapters", "noted")
    """As in `Text`. What a token changes in place on the device, `_last` and `_prompt`, is named in
    `places_of` of huggingface/graphs.py besides: a new tensor of that kind has to be, too, or a
    replayed token reads an old one."""

    def __init__(self, records_confidence: bool) -> None:
        # the text, column by column
        self.columns = 0
        """Columns fed so far, evicted ones and padding included."""
        self._fed: Int[Tensor, "N capacity"] | None = None
        self.written: Int[Tensor, " N"] | None = None
        """The last token that `generate` wrote, while the model was not called with it: its wrapper
        in generation.py sets this when it returns, and the next call of the model clears it."""
        # where each row is in it
        self.rows: tuple[Clock, ...] = ()
        self._last: Int[Tensor, "N 1"] | None = None
        """Position of the last token."""
        self._prompt: Int[Tensor, "N 1 1"] | None = None
        self.first_evictions: tuple[int | None, ...] = ()
        """As `CompressedCache.first_evictions` says."""
        # how sure the model was of each token
        self.records_confidence = records_confidence
        self._confidence = torch.empty((0, 0), dtype=torch.float32, device="cpu")
        """Of the tokens so far, and room for more; empty if it is not recorded."""
        self.confidence_now = self._confidence
        """Of the tokens up to the running block's; empty if it is not recorded."""
        self._next_confidence: Float[Tensor, " N"] | None = None
        """Of the token that the model would write after the last one."""
        # how it was read
        self.adapters: tuple[tuple[str, ...], ...] = ()
        """Adapters of PEFT with which the calls read the text, every choice of them once."""
        self.noted: dict[str, Bool[Tensor, ""]] = {}
        """Error message -> whether it applies, as a tensor, which the host does not wait for."""

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt."""
        return max(row.prompt for row in self.rows)

    @property
    def fed(self) -> Int[Tensor, "N t"]:
        """What the columns were fed: ids, `PADDING`, or `fingerprints` of embeddings."""
        assert self._fed is not None
        return self._fed[:, : self.columns]

    @property
    def padded(self) -> bool:
        """Whether a column is padding."""
        return self.columns * len(self.rows) > sum([row.seen for row in self.rows])

    def mask_with(self, new: int) -> Bool[Tensor, "N t"]:
        """Return which columns are no padding, with so many new ones that are none."""
        return torch.nn.functional.pad(self.fed != PADDING, (0, new), value=True)

    def mask_after(self, m: int) -> Int[Tensor, "N t"]:
        """Return the mask after a block of ``m`` columns, as if padding stood before all tokens.

        A row has last position + 1 tokens; that many columns at the end are 1. To be called between
        `advance` and `advance_columns`: the last position is the block's, ``columns`` those before.
        """
        assert self._last is not None
        columns = torch.arange(self.columns + m, device=self._last.device)
        return (columns + self._last >= self.columns + m - 1).long()

    @property
    def confidence(self) -> Float[Tensor, "N t"]:
        """Largest probability in the distribution that gave each token; NaN for given tokens."""
        longest = max((row.seen for row in self.rows), default=0)
        return self._confidence[:, :longest]

    def check_batch_size(self, sequences: int) -> None:
        """Raise ValueError if a call with so many sequences does not fit the calls before it."""
        if self.rows and len(self.rows) != sequences:
            raise ValueError(
                f"a batch of {sequences} sequences must be of the {len(self.rows)} that the cache "
                "holds; cache.batch_repeat_interleave(n) repeats each of them n times, for beams "
                "or several answers"
            )

    def note(self, message: str, wrong: Bool[Tensor, ""]) -> None:
        """Remember whether something was wrong in any step, without waiting for the device."""
        self.noted[message] = wrong | self.noted.get(message, wrong)

    def check_noted(self) -> None:
        """Raise ValueError if something was wrong. Waits for the device."""
        for message, wrong in self.noted.items():
            if wrong:
                raise ValueError(message)

    def begin(self, prompts: Sequence[int], device: Any) -> None:
        """Start with prompts of these lengths, before the first call is noted."""
        N = len(prompts)
        self.rows = tuple(Clock(0, 0, prompt) for prompt in prompts)
        self.first_evictions = (None,) * N
        self._last = torch.full((N, 1), -1, dtype=torch.int32, device=device)
        self._prompt = torch.tensor(prompts, dtype=torch.int32, device=device)[:, None, None]
        width = max(prompts) + AHEAD if self.records_confidence else 0
        self._confidence = torch.full((N, width), torch.nan, dtype=torch.float32, device=device)

    @torch.inference_mode()
    def note_call(self, inputs: Tensor, real: Real | None, from_user: bool) -> None:
        """Take in what the model is called with, all blocks together, before any of them.

        ``from_user`` says that these are the tokens that `generate` was given by its caller, and
        not its own. Outside of `generate` nobody knows: a token alone is taken for the model's.
        """
        sure = self._confidence_of_first(inputs, real, from_user)
        self.written = None
        self._record_fed(inputs, real)
        if self.records_confidence:
            self._record_confidence(sure, inputs.shape[1])

    def _confidence_of_first(
        self, inputs: Tensor, real: Real | None, from_user: bool
    ) -> Float[Tensor, " N"] | None:
        """Return how sure the model was of every row's first token in a call, NaN if it is not its.

        None if the model wrote none of them. It never wrote a later one: nobody was sure of those.
        """
        sure = self._next_confidence
        if sure is None:  # nothing is recorded, or this is the first call
            return None
        if self.written is not None and inputs.dim() == 2:
            # `generate` ended with a token that the model was not called with: is it this one?
            first = 0 if real is None else real.int().argmax(dim=1)
            wrote = inputs[torch.arange(len(inputs)), first] == self.written
        elif from_user or (real is None and inputs.shape[1] > 1):
            # a text that somebody gives, or several tokens, of which the model writes one at a time
            return None
        elif real is None:
            # one token of every row, within `generate` or in a loop of the user's: the model's own
            return sure
        else:
            # rows of unequal lengths: the model's own is alone in its row
            wrote = real.sum(dim=1) == 1
        return sure.masked_fill(~wrote.to(sure.device), torch.nan)

    def advance(self, real: Real | None, m: int) -> BatchClock:
        """Count a block before the model runs on it, and return its clock.

        ``real`` marks the tokens that are not padding; None: all.
        """
        assert self._last is not None and self._prompt is not None
        counts = [m] * len(self.rows) if real is None else real.sum(dim=-1).tolist()
        positions = self.following(real, m)
        # Padding stands first (padding.py), so the last column has the newest token of every row.
        self._last = torch.maximum(self._last, positions[:, -1:])
        self.rows = self.rows_after(counts)
        self.confidence_now = self.confidence if self.records_confidence else self._confidence
        return BatchClock(self.rows, positions, self._prompt)

    def rows_after(self, counts: Sequence[int]) -> tuple[Clock, ...]:
        """Return the clocks of all sequences after a block of so many tokens each."""
        rows = zip(self.rows, counts, strict=True)
        return tuple([Clock(row.seen + count, count, row.prompt) for row, count in rows])

    def following(self, real: Real | None, m: int) -> Int[Tensor, "N m"]:
        """Return the positions of the next ``m`` columns, which are -1 where they are padding.

        For the first call without padding one row stands for all sequences.
        """
        last = self._last
        if last is None:
            last = torch.full((1, 1), -1, dtype=torch.int32, device="cpu")
        if real is not None:
            return torch.where(real, last.to(real.device) + real.cumsum(-1, dtype=torch.int32), -1)
        ahead = torch.arange(m, dtype=torch.int32, device=last.device) if m > 1 else 0
        return last + 1 + ahead

    def advance_columns(self, logits: Float[Tensor, "N k vocab"], m: int) -> None:
        """Count the ``m`` columns of a block, and note how sure the model is of the next token."""
        self.columns += m
        if self.records_confidence:
            confidence = logits[:, -1].float().softmax(dim=-1).amax(dim=-1)
            self._next_confidence = confidence.to(self._confidence.device)

    def note_evictions(self, kept: Sequence[int], early: bool) -> None:
        """Note which sequences, of which some layer keeps so many entries, lost their first ones.

        ``early``: what a block evicts is evicted before the block attends.
        """
        self.first_evictions = tuple(
            row.seen - early * row.block if first is None and count < row.seen else first
            for first, count, row in zip(self.first_evictions, kept, self.rows, strict=True)
        )

    def map_rows(self, change: Change, order: Sequence[int]) -> None:
        """Apply one change of the batch axis; ``order`` is the same change as indices.

        Every attribute that is a tensor moves, a new one as well. A new tuple of rows has to be
        moved by name, as these two are: tests/fast/test_rows.py notices one that is left behind.
        """
        self.rows = tuple(self.rows[i] for i in order)
        self.first_evictions = tuple(self.first_evictions[i] for i in order)
        for name, value in vars(self).items():
            if isinstance(value, Tensor) and len(value):
                setattr(self, name, change(value))

    def copied(self) -> "StreamClock":
        """Return a clock that goes on apart from this one."""
        other = copy(self)
        other.map_rows(torch.clone, range(len(self.rows)))
        other.noted = dict(self.noted)
        return other

    def _record_fed(self, inputs: Tensor, real: Real | None) -> None:
        """Write what a call feeds behind the columns that count, and make room for it."""
        (N, m), first = inputs.shape[:2], self.columns
        if self._fed is None:
            self._fed = torch.empty((N, m + AHEAD), dtype=torch.int32, device=inputs.device)
        elif first + m > self._fed.shape[1]:
            grown = self._fed.new_empty((N, 2 * (first + m)))
            grown[:, :first] = self.fed
            self._fed = grown
        new = self._fed.narrow(1, first, m)
        new.copy_(inputs if inputs.dim() == 2 else fingerprints(inputs))
        if real is not None:
            new.masked_fill_(~real, PADDING)

    def _record_confidence(self, sure: Float[Tensor, " N"] | None, m: int) -> None:
        """Make room for ``m`` tokens of every row, and note how sure the model was of the first.

        That is the one after the last position, which `advance` has not moved yet.
        """
        longest, width = max(row.seen for row in self.rows) + m, self._confidence.shape[1]
        if longest > width:
            shape = (len(self.rows), max(width, longest - width))
            more = self._confidence.new_full(shape, torch.nan)
            self._confidence = torch.cat([self._confidence, more], dim=1)
        if sure is not None:
            assert self._last is not None
            self._confidence.scatter_(1, self._last.long() + 1, sure[:, None])


def fingerprints(embeddings: Float[Tensor, "N t D"]) -> Int[Tensor, "N t"]:
    """Return a number below `PADDING` for each embedding, which depends on its every bit."""
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[embeddings.itemsize]
    # The factor is 2^52 over the golden ratio, whose multiples have no pattern: the upper bits of a
    # product depend on all bits of a number, and the lowest 16 of the sum, on few, are dropped.
    factors = torch.arange(1, embeddings.shape[-1] + 1, device=embeddings.device) * 0x9E3779B97F4A7
    numbers = embeddings.detach().contiguous().view(bits).long()
    if embeddings.itemsize == 8:  # else nothing of the upper half would be left in the sum
        numbers = numbers ^ (numbers >> 32)
    sums = (numbers * factors).sum(dim=-1)
    return (PADDING - 1 - (sums >> 16).remainder(FINGERPRINTS)).int()
