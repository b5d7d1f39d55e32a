"""What serving engines ask that attend by themselves and keep entries in pages of a pool.

Such an engine has keys and values where a kernel of its own reads them. Once all layers of a step
have attended, `Kept.observe` lets a score observe queries of one text, and `Kept.decide` says what
stays. `Holding` says how many pages texts hold at most, `Siblings` which text reads their prompt.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, pairwise
from typing import Any, NamedTuple

import torch

from kvlab.fast.engine.cache import BatchClock
from kvlab.fast.engine.long_blocks import observe
from kvlab.fast.engine.observation import LayerView, Observation, ReadWhenAsked
from kvlab.fast.engine.policy import Policy
from kvlab.fast.engine.step import apply, decide
from kvlab.fast.kernels.notation import Int, Queries, Tensor, Vectors
from kvlab.reference.observation import Clock
from kvlab.reference.policy import Schedule

SHARE = 4
"""Parts of a prompt are this much smaller than the engine's: as large as the allocator reuses."""

Remembered = tuple[dict[str, Tensor], dict[str, Any]]
"""Columns of the entries that were observed, and what is remembered of the stream."""


@dataclass
class Kept:
    """The entries that one text has kept, in layers whose tables of pages are the same."""

    policy: Policy
    pages: Sequence[int]
    """Numbers of the pages, ascending; the last one is being written."""
    page: int
    seen: int
    """Tokens of the text, of which the first ``prompt`` are its prompt."""
    prompt: int
    numbers: Sequence[int]
    """Numbers that the layers have in the model, which has ``layers``."""
    layers: int
    read: Callable[[str], Vectors]
    """Reads ``keys`` or ``values`` of all entries; called at most once for each."""
    softcap: float | None = None
    """Bound of the model's attention logits, if it has one."""
    vectors: dict[str, Vectors] = field(default_factory=dict)
    """What was read."""
    clocks: dict[tuple[int, int, int], BatchClock] = field(default_factory=dict)
    """One for all layers, which share what they compute from it."""

    def before(self, token: int) -> int:
        """Return how many entries come before a token."""
        return sum(min(self.page, max(0, token - n * self.page)) for n in self.pages)

    def observe(
        self, queries: Queries, pieces: Sequence[tuple[int, int]], remembered: Sequence[Remembered]
    ) -> list[Observation]:
        """Let the score observe the last tokens of the text, in pieces of it.

        Args:
            queries: of these tokens, in all layers; those of a longer piece are its last ones.
            pieces: where they begin and end.
            remembered: of the tokens before, for each cache; nothing for the first ones.

        Returns:
            What the score saw last in each cache.
        """
        ranges = (torch.arange(n * self.page, (n + 1) * self.page) for n in self.pages)
        every = torch.cat([*ranges])[: self.before(self.seen)].to(queries.device, torch.int32)
        size = len(queries) if self.policy.is_plain else 1  # of a cache, as in a model
        caches = [slice(first, first + size) for first in range(0, len(queries), size)]
        given = zip(caches, remembered or [({}, {})] * len(caches), strict=True)
        return [[*self._observed(queries, pieces, every, *each)][-1] for each in given]

    def _observed(
        self,
        queries: Queries,
        pieces: Sequence[tuple[int, int]],
        positions: Int[Tensor, " n"],
        layers: slice,
        remembered: Remembered,
    ) -> Iterator[Observation]:
        """Yield what the score sees of each piece in some layers.

        The cache is made anew, without keys and values: entries that were observed already, with
        what is remembered of them, and piece by piece those that come.
        """
        entries = 0
        queries = queries[layers]
        columns, stream = remembered
        cache = self.policy.empty_cache()
        cache.begin(len(queries), queries)
        cache.layers, cache.state.stream = len(queries), dict(stream)
        for start, end in pieces:
            first, entries = entries, self.before(end)
            own = positions[first:entries].expand(*queries.shape[:2], -1)
            present = (own.shape[2],) * len(own)
            cache.open_slots({"positions": own}, present)
            for name, column in ({} if first else columns).items():
                cache.columns[name].narrow(2, 0, column.shape[2]).copy_(column)
            last = queries.shape[3] - (self.seen - end)
            clock = self._clock(queries, start, end)
            seen = Observation(
                clock=clock,
                numbers=self.numbers[layers],
                layers=self.layers,
                given_queries=queries[:, :, :, last - (end - start) : last].to(cache.dtype),
                query_positions=clock.positions,
                view=LayerView(
                    cache, self.softcap, read=ReadWhenAsked(partial(self._first, layers, entries))
                ),
                confidence=queries.new_full((1, end), torch.nan),
            )
            observe(self.policy, seen, SHARE)
            yield seen

    def _first(self, layers: slice, entries: int, name: str) -> Vectors:
        """Return keys or values of the first entries in some layers."""
        if name not in self.vectors:
            self.vectors[name] = self.read(name)
        return self.vectors[name][layers, :, :entries]

    def _clock(self, queries: Queries, start: int, end: int) -> BatchClock:
        """Return the clock of tokens ``start`` to ``end``, for all layers."""
        key = len(queries), start, end
        if key not in self.clocks:
            row = Clock(end, end - start, self.prompt)
            self.clocks[key] = BatchClock.of([row] * len(queries), queries.device)
        return self.clocks[key]

    def decide(self, every: Sequence[Observation]) -> Int[Tensor, " n"]:
        """Decide by what the score saw last, in all layers together.

        Return, on the device, whether a score was NaN, and the page of every entry that stays.
        """
        for seen in every:
            due = [True] * len(seen.clock.rows)
            apply(self.policy, seen, decide(self.policy, seen, due, every))
        marks = [seen.cache.nan_if_any for seen in every if seen.cache.nan_if_any is not None]
        pages = every[0].cache.positions[0, 0] // self.page
        wrong = sum((each.isnan().any().view(1) for each in marks), pages.new_zeros(1))
        return torch.cat([wrong, pages])

    def remembered(self, every: Sequence[Observation]) -> list[Remembered]:
        """Return what is remembered of the entries that stay, for each cache."""
        names = tuple(self.policy.score.columns)
        return [
            ({name: each.cache.columns[name].clone() for name in names}, each.cache.state.stream)
            for each in every
        ]


class PromptState(NamedTuple):
    """What the first of siblings has kept after so many tokens of the prompt."""

    kept: set[int]
    """Numbers of pages."""
    remembered: list[Remembered]
    """For each cache; nothing before the end of the prompt."""


@dataclass(eq=False)
class Siblings:
    """Texts of one prompt, of which the first reads it; the others wait, and then do as it did."""

    name: str = ""
    texts: list[Any] = field(default_factory=list)
    read: bool = False
    """Whether the last step that reads the prompt is under way, or was."""

    @property
    def reader(self) -> Any:
        """The text that reads the prompt; None when it was read."""
        if self.read or not self.texts:
            return None
        return self.texts[0]

    def turn(self, seen: int, prompt: int) -> bool:
        """Begin a step of a text up to ``seen`` tokens; return whether it does as another did."""
        read = self.read
        if self.texts and seen >= prompt:
            self.read = True
        return read


@dataclass(frozen=True)
class Holding:
    """How many pages texts hold under a schedule, which decides when a page more is there."""

    schedule: Schedule
    page: int
    pages: int
    """Pages that stay at a decision."""
    block: int
    """Tokens of a prompt that are read as one block; no step crosses its end."""
    late: int
    """Steps that may be on their way before what an earlier one evicted is known."""

    @property
    def undecided(self) -> int:
        """Tokens of a prompt that are read before any page can be evicted."""
        whole = self.pages * self.page // self.block
        return (whole + 1) * self.block

    def within(self, prompt: int) -> list[int]:
        """Return at how many tokens of a prompt, before its end, pages are evicted."""
        every = range(self.undecided, prompt, self.block)
        return [seen for seen in every if self.schedule.due(Clock(seen, self.block, prompt))]

    def most(self, prompt: int, last: int) -> list[tuple[int, int]]:
        """Return numbers of tokens, ascending, and the pages held at most from then up to the end.

        The first is for texts of at most so many tokens. A schedule of kvlab's own decides every so
        many tokens from its second decision after the prompt on. Of others that is not known: they
        may hold all pages until the text ends.
        """
        schedule, page, late = self.schedule, self.page, self.late
        whole = -(-last // page)
        if not type(schedule).__module__.startswith("kvlab.reference."):
            return [(last, whole)]
        over, read = self.pages * page + 1, Clock(prompt, (prompt - 1) % self.block + 1, prompt)
        later = range(max(prompt + 1, over), prompt if schedule.ended(read) else last + 1)
        clocks = chain([read], (Clock(seen, 1, prompt) for seen in later))
        due = (clock.seen for clock in clocks if clock.seen >= over and schedule.due(clock))
        first, second, third = islice(chain(due, [last, last, last]), 3)
        ends = [-(-min(end + late, last) // page) for end in (first, second, third)]
        grows = max(ends[1] - -(-first // page), ends[2] - -(-second // page))
        if third < last:
            grows = max(grows, -(-(third - second + late) // page))
        bounds = [(first + late, ends[0]), (last, min(whole, self.pages + grows))]
        if early := self.within(prompt):
            held = self.pages - early[-1] // page + ends[0]  # from the last one to the next
            apart = max((end - begin for begin, end in pairwise(early)), default=0)
            held = max(held, self.pages + (apart + self.block * late) // page)
            on_its_way = early[0] + self.block * late
            bounds = [(on_its_way, -(-on_its_way // page)), (bounds[0][0], held), bounds[1]]
        return [(seen, max(most for _, most in bounds[n:])) for n, (seen, _) in enumerate(bounds)]
