"""A method is four answers: score, schedule, protect, precision; and the step that asks them.

| question | answered by |
|---|---|
| What is an entry worth? | `Score`, and a `Budget` that says how many may be kept |
| When does it evict? | `Schedule` |
| Which entries are protected? | `Protect` |
| How precisely is it kept? | `Precision` |
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from kvlab.reference.cache import Column, LayerCache, State
from kvlab.reference.checks import check_at_least, check_protected
from kvlab.reference.notation import Array, Float, Int, KeepSet, Marks, Scores
from kvlab.reference.observation import OF_MODELS, Clock, Needs, Observation


class Score(ABC):
    """What is an entry worth? Higher is kept."""

    columns = dict[str, Column]()
    """What the score remembers of every entry, by name."""

    def observe(self, state: State, seen: Observation) -> State:
        """Update the state with one block; called on every block, due or not."""
        return state

    @abstractmethod
    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        """Rate the entries by what `observe` made of all blocks, and by the current block.

        Scores of other entries than the candidates are ignored; ``room`` candidates are kept.
        """

    def retention(
        self, state: State, seen: Observation, candidates: Marks
    ) -> Float[Array, "G k n"]:
        """Return numbers proportional to the attention on each entry; CAOTE uses them.

        One row per query head where the score keeps them apart, one per KV head otherwise. The
        default is the score itself.
        """
        return self.score(state, seen, candidates, room=0)[:, None]

    # What the engine wants to know; the defaults are right for every score.

    needs = Needs()
    """What the score reads of attention."""
    joins_kv_heads = False
    """Whether an entry has the same score in all KV heads of a layer."""
    joins_layers = False
    """Whether all layers keep the same entries, by the mean of their scores."""
    ordinal = False
    """Whether scores are an order, in which distances mean nothing."""
    signed = False
    """Whether scores may be negative."""

    def drawn(self, seen: Observation) -> Mapping[str, Array]:
        """Return the random numbers that `score` uses, to give them to other implementations."""
        return {}


class Budget(ABC):
    """How many entries may be kept?"""

    @abstractmethod
    def room(self, seen: Observation, protected: Marks) -> int:
        """Say how many entries may be kept besides the protected ones, in layer ``seen.layer`` of
        ``seen.layers``.
        """

    def check(self, protect: "Protect", prompt: int) -> None:
        """Raise ValueError if the protected entries alone exceed the budget."""
        return


class Schedule(ABC):
    """When does it evict? ``str`` gives the docstring's first sentence, and the fields' values."""

    def __str__(self) -> str:
        sentence = " ".join((self.__doc__ or repr(self)).partition(".\n")[0].split()).rstrip(".")
        said = re.sub(r"``(\w+)``", lambda field: str(getattr(self, field[1])), sentence)
        return said[0].lower() + said[1:]

    @abstractmethod
    def due(self, clock: Clock) -> bool:
        """Say whether to select after this block."""

    def ended(self, clock: Clock) -> bool:
        """Say whether no block after this one can be due; then no score is needed any more."""
        return False


class Protect(ABC):
    """Which entries are protected?"""

    @abstractmethod
    def protected(self, seen: Observation) -> Marks:
        """Mark the protected entries."""

    def count(self, prompt: int) -> int:
        """Return the number of entries that are always protected, for a prompt of this length."""
        return 0

    def with_edges(self, edges: "Edges") -> "Protect":
        """Return a protection under which the edges of the text are protected, too."""
        return ProtectedByEither(self, edges)

    def replaced(self, choice: "Protect") -> "Protect":
        """Return the protection with another choice of entries in place of its own.

        What other parts rely on, such as that whole pages are protected, stays around the choice.
        """
        return choice


Stored = tuple[LayerCache, Int[Array, "G stays"]]
"""A cache at lower precision, and the indices of the entries that are kept."""


class Precision:
    """How precisely is it kept? The defaults leave everything as it is."""

    def encode(self, cache: LayerCache) -> LayerCache:
        """Code new entries; called after every block, due or not, before entries are evicted."""
        return cache

    def store(self, cache: LayerCache, seen: Observation, keep: KeepSet) -> Stored:
        """Quantise entries; return the keep set, to which it may add entries."""
        return cache, keep


@dataclass(frozen=True)
class Around(Score):
    """A score made of another: it observes, remembers and draws what the inner score does."""

    inner: Score

    columns = property(attrgetter("inner.columns"))
    needs = property(attrgetter("inner.needs"))
    joins_kv_heads = property(attrgetter("inner.joins_kv_heads"))
    joins_layers = property(attrgetter("inner.joins_layers"))
    ordinal = property(attrgetter("inner.ordinal"))
    signed = property(attrgetter("inner.signed"))

    def drawn(self, seen: Observation) -> Mapping[str, Array]:
        return self.inner.drawn(seen)

    def observe(self, state: State, seen: Observation) -> State:
        return self.inner.observe(state, seen)


def crosses(before: int, after: int, period: int, offset: int = 0) -> bool:
    """Whether a count that went from ``before`` to ``after`` reached offset + k·period, k ≥ 1."""
    return (after - offset) // period > max(0, before - offset) // period


@dataclass(frozen=True)
class Never(Schedule):
    """Nothing is ever selected."""

    def due(self, clock: Clock) -> bool:
        return False

    def ended(self, clock: Clock) -> bool:
        return True


@dataclass(frozen=True)
class Periodic(Schedule):
    """Whenever ``every`` more tokens were counted."""

    every: int = 1

    def __post_init__(self) -> None:
        check_at_least(1, every=self.every)


@dataclass(frozen=True)
class EveryBlock(Periodic):
    """After every block of prefill and every ``every`` generated token(s)."""

    def due(self, clock: Clock) -> bool:
        generated = crosses(clock.generated_before, clock.generated, self.every)
        return clock.prefilling or generated


@dataclass(frozen=True)
class EveryDecode(Periodic):
    """At generated token W, 2W, … for W = ``every``; never in prefill."""

    def due(self, clock: Clock) -> bool:
        return crosses(clock.generated_before, clock.generated, self.every)


@dataclass(frozen=True)
class AfterPrefill(Schedule):
    """Once, after the last block of the prompt."""

    def due(self, clock: Clock) -> bool:
        return clock.prefill_ends

    def ended(self, clock: Clock) -> bool:
        return clock.seen >= clock.prompt


@dataclass(frozen=True)
class AfterPrefillThenEverySeen(Periodic):
    """When the prompt is complete, then whenever the tokens seen reach a multiple of ``every``."""

    def due(self, clock: Clock) -> bool:
        before = clock.seen - clock.block
        decoding = not clock.prefilling and crosses(before, clock.seen, self.every)
        return clock.prefill_ends or decoding


@dataclass(frozen=True)
class AfterPrefillThenEveryDecode(EveryDecode):
    """When the prompt is complete, then at generated token W, 2W, … for W = ``every``."""

    def due(self, clock: Clock) -> bool:
        return clock.prefill_ends or super().due(clock)


@dataclass(frozen=True)
class EverySeenBeyond(Periodic):
    """Whenever ``every`` more were seen, counted from the first ``start`` on."""

    start: int = 0

    def due(self, clock: Clock) -> bool:
        return crosses(clock.seen - clock.block, clock.seen, self.every, self.start)


@dataclass(frozen=True)
class EveryGeneratedBeyond(EverySeenBeyond):
    """Whenever ``every`` more were seen, counted from the first ``start`` on, never in prefill."""

    def due(self, clock: Clock) -> bool:
        return not clock.prefilling and super().due(clock)


@dataclass(frozen=True)
class EveryMultipleBeyond(EveryGeneratedBeyond):
    """Whenever a token is generated and a multiple of ``every`` entries, more than ``start``, are
    there.

    Of these ``start`` stay. Where ``every`` divides ``start``, this is `EveryGeneratedBeyond`.
    """

    def due(self, clock: Clock) -> bool:
        first = (max(self.start, clock.prompt) // self.every + 1) * self.every
        period = self.every - self.start % self.every
        before = clock.seen - clock.block
        return not clock.prefilling and crosses(before, clock.seen, period, first - period)


@dataclass(frozen=True)
class EveryGenerated(Schedule):
    """At P + R, 2P + R, … generated tokens, for P = ``interval`` and R = ``selector``."""

    interval: int
    selector: int

    def __post_init__(self) -> None:
        check_at_least(1, interval=self.interval, selector=self.selector)
        if self.selector >= self.interval:
            raise ValueError(
                f"selector = {self.selector} must be smaller than interval = {self.interval}"
            )

    def due(self, clock: Clock) -> bool:
        return crosses(clock.generated_before, clock.generated, self.interval, self.selector)


@dataclass(frozen=True)
class Nobody(Protect):
    """Every entry may be evicted."""

    def protected(self, seen: Observation) -> Marks:
        return np.zeros(seen.positions.shape, dtype=bool)

    def with_edges(self, edges: "Edges") -> "Edges":
        return edges


@dataclass(frozen=True)
class Edges(Protect):
    """The first ``sinks`` tokens of the text and the last ``recent`` entries.

    With ``prompt``, all tokens of the prompt are protected, too.
    """

    sinks: int = 0
    recent: int = 0
    prompt: bool = False

    def __post_init__(self) -> None:
        check_at_least(0, sinks=self.sinks, recent=self.recent)

    def protected(self, seen: Observation) -> Marks:
        n = seen.positions.shape[1]
        first = self.first(seen.clock.prompt)
        return (seen.positions < first) | (np.arange(n) >= n - self.recent)

    def first(self, prompt: int) -> int:
        """Return how many of the first tokens are protected, for a prompt of this length."""
        return max(self.sinks, prompt) if self.prompt else self.sinks

    def count(self, prompt: int) -> int:
        return self.first(prompt) + self.recent

    def with_edges(self, edges: "Edges") -> "Edges":
        return Edges(
            max(self.sinks, edges.sinks),
            max(self.recent, edges.recent),
            self.prompt or edges.prompt,
        )


@dataclass(frozen=True)
class ProtectedByEither(Protect):
    """Every entry that either of two protections marks."""

    one: Protect
    other: Edges

    def protected(self, seen: Observation) -> Marks:
        return self.one.protected(seen) | self.other.protected(seen)

    def count(self, prompt: int) -> int:
        return max(self.one.count(prompt), self.other.count(prompt))

    def replaced(self, choice: Protect) -> Protect:
        return self.one.replaced(choice)


@dataclass(frozen=True)
class Unlimited(Budget):
    """Every entry is kept."""

    def room(self, seen: Observation, protected: Marks) -> int:
        return protected.shape[1]


@dataclass(frozen=True)
class Entries(Budget):
    """At most ``budget`` entries per KV head and layer."""

    budget: int

    def __post_init__(self) -> None:
        check_at_least(1, budget=self.budget)

    def room(self, seen: Observation, protected: Marks) -> int:
        count = int(protected.sum(axis=-1).max())
        check_protected(self.budget, count)
        return self.budget - count

    def check(self, protect: Protect, prompt: int) -> None:
        check_protected(self.budget, protect.count(prompt))


@dataclass(frozen=True)
class Full(Precision):
    """Everything that is kept stays at 16 bits."""


@dataclass(frozen=True)
class Policy:
    """A KV-cache compression method: a composition of answers, and nothing else."""

    name: str
    score: Score
    schedule: Schedule
    protect: Protect
    budget: Budget
    precision: Precision = Full()
    evict_before_attend: bool = False
    """Attend over the survivors only, as CAOTE's Eq. 5-7 print it; each query keeps its own key."""
    reposition: bool = False
    """Rotate keys and queries to their index inside the cache, as StreamingLLM's code does."""

    def __post_init__(self) -> None:
        if self.evict_before_attend and self.score.joins_layers:
            raise ValueError(
                f"evict_before_attend = True must be False for {self.name}: a layer cannot wait "
                "for a decision that all layers take together"
            )
        self.check(prompt=0)

    @property
    def evicts(self) -> bool:
        """Whether entries may be evicted."""
        return not isinstance(self.budget, Unlimited)

    def check(self, prompt: int) -> None:
        """Raise ValueError if the policy cannot work with a prompt of ``prompt`` tokens."""
        self.budget.check(self.protect, prompt)

    def check_block(self, block: Any) -> None:
        """Raise ValueError if a block of either side lacks what the policy reads of a model."""
        for need, name, words in OF_MODELS:
            if getattr(self.score.needs, need) and getattr(block, name) is None:
                raise ValueError(f"{self.name} reads {words}: only models hand that over")
        if self.reposition and block.rotate is None:
            raise ValueError("reposition = True needs a model whose rotary embedding is known")
