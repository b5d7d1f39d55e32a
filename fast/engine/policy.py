"""The four answers, for a batch of sequences, in tensors.

Mirrors `kvlab.reference.policy`. A policy is written once, in the reference; here a part of it has
a PyTorch implementation, or else the reference's part runs on the host:
`kvlab.fast.engine.port` translates a policy part by part. Schedules and clocks use plain numbers,
so both sides share them. The file of a method imports from here what its parts are written in.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TypeVar

from kvlab.fast.engine.cache import BatchClock, KeepSet, LayerCache, State
from kvlab.fast.engine.observation import Needs, Observation
from kvlab.fast.engine.twins import Twin
from kvlab.fast.kernels.notation import Candidates, Float, Marks, PerRow, Room, Scores, Tensor
from kvlab.reference import policy as reference
from kvlab.reference.cache import Column
from kvlab.reference.checks import check_protected
from kvlab.reference.observation import Clock
from kvlab.reference.policy import Schedule

ScoreSpec = TypeVar("ScoreSpec", bound=reference.Score)
Part = TypeVar("Part")


class Score(Twin[ScoreSpec], ABC):
    """What is an entry worth? Higher is kept.

    What the score reads of attention and remembers of every entry is stated by its part of the
    reference; a class here overrides `needs` and `columns` only where it works in another way.
    """

    observes_tensors_alone = False
    """As ``tensors_alone``, of `observe` after the prompt, where `score` does not."""

    @property
    def needs(self) -> Needs:
        """What the score reads of attention."""
        return Needs(**asdict(self.spec.needs))

    @property
    def columns(self) -> Mapping[str, Column]:
        """What the score remembers of every entry, by name."""
        return self.spec.columns

    def observe(self, state: State, seen: Observation) -> None:
        """Update the state in place; called on every block, in parts if it is long."""
        return

    @abstractmethod
    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        """Rate the entries; one row for all heads where they decide together.

        ``state`` is what `observe` made of all blocks so far. Scores of other entries than the
        candidates are ignored. ``room`` is how many candidates of each row will be kept: of a
        `Budget.room` the part that there are candidates for.
        """

    def retention(self, state: State, seen: Observation, candidates: Candidates) -> "Retention":
        """Return the retention that CAOTE wraps; by default it is the score itself."""
        scores = self.score(state, seen, candidates, [0] * len(seen.positions))
        return Retention(scores.expand_as(seen.positions)[:, :, None])


class Budget(Twin[Part]):
    """How many entries may be kept besides the protected ones, of which ``protected`` are counted?

    A class answers by one of three methods: the first that is given all that it reads.
    """

    @property
    def reads_clock_alone(self) -> bool:
        """Whether all layers may keep equally many, as their clock and their entries say."""
        return type(self).room is not Budget.room

    def room(self, clock: Clock, entries: int, protected: int) -> int:
        """Return the room of a sequence, the same in all layers."""
        raise NotImplementedError(f"{type(self).__name__} must have room, or one of the others")

    def room_of_layer(
        self, clock: Clock, entries: int, protected: int, layer: int, layers: int
    ) -> int:
        """Return the room in one of the model's layers."""
        return self.room(clock, entries, protected)

    def room_in(
        self, seen: Observation, number: int, entries: int, protected: int, marks: Marks | None
    ) -> int:
        """Return the room of row ``number``, in which ``marks`` are protected, by its data."""
        layer = seen.numbers[number // seen.cache.sequences]
        return self.room_of_layer(seen.clock.rows[number], entries, protected, layer, seen.layers)


class Protect(Twin[Part], ABC):
    """Which entries are protected?"""

    @abstractmethod
    def protected(self, seen: Observation) -> Marks | None:
        """Mark the protected entries; None if there are none."""

    @abstractmethod
    def count(self, clock: Clock, entries: int) -> int | None:
        """Say how many of ``entries`` are protected now; None if that depends on the data."""

    def edges(self, clock: Clock, entries: int) -> tuple[int, int] | None:
        """Say how many of the first and of the newest tokens are protected; None if others are."""
        return (0, 0) if self.count(clock, entries) == 0 else None


class Precision(Twin[Part], ABC):
    """How precisely is it kept?"""

    quantises = True
    uses_confidence = False
    """Whether the confidence of the model at each token has to be recorded."""
    by_age = False
    """Whether how an entry is stored follows from its age alone: see `store_by_age`."""

    def encode(self, cache: LayerCache, clock: BatchClock) -> None:
        """Code new entries, when a block has been attended, due or not, before any eviction."""
        return

    @abstractmethod
    def store(self, cache: LayerCache, seen: Observation, keep: KeepSet) -> KeepSet:
        """Quantise entries; return the keep set, to which it may add entries."""

    def store_by_age(self, caches: Sequence[LayerCache]) -> None:
        """Quantise what is old enough in these layers; called where nothing is ever evicted."""
        raise NotImplementedError


@dataclass(frozen=True)
class Retention:
    """Numbers proportional to the attention on each entry, which CAOTE uses."""

    rows: PerRow
    """One row per query head, or per KV head."""
    output: Float[Tensor, "N G k d"] | None = None
    """Values weighted by the rows, if attention has computed them already."""


@dataclass(frozen=True)
class Elapsed(Column):
    """Tokens generated since the step that a column of the reference holds."""

    since: str = ""
    """Name of that column."""


@dataclass(frozen=True)
class Around(Score[ScoreSpec]):
    """A score made of another: it observes and remembers what the inner score does."""

    inner: Score

    @property
    def needs(self) -> Needs:
        return self.inner.needs

    @property
    def columns(self) -> Mapping[str, Column]:
        return self.inner.columns

    def observe(self, state: State, seen: Observation) -> None:
        self.inner.observe(state, seen)


# --- protection ----------------------------------------------------------------------------------


class Nobody(Protect[reference.Nobody]):
    """Every entry may be evicted."""

    tensors_alone = True

    def protected(self, seen: Observation) -> None:
        return

    def count(self, clock: Clock, entries: int) -> int:
        return 0


class Edges(Protect[reference.Edges]):
    """The first ``sinks`` tokens of the text, or all of the prompt, and the last ``recent`` ones.

    The reference protects the ``recent`` newest entries. They are the newest tokens, because each
    of these tokens has been protected since it came.
    """

    tensors_alone = True

    def protected(self, seen: Observation) -> Marks:
        protected = seen.positions >= seen.clock.oldest_of(self.spec.recent)
        if self.spec.sinks:
            protected = protected | (seen.positions < self.spec.sinks)
        return protected | (seen.positions < seen.clock.prompt) if self.spec.prompt else protected

    def count(self, clock: Clock, entries: int) -> int:
        return min(clock.seen, self.spec.count(clock.prompt))

    def edges(self, clock: Clock, entries: int) -> tuple[int, int]:
        return self.spec.first(clock.prompt), self.spec.recent


@dataclass(frozen=True)
class ProtectedByEither(Protect[reference.ProtectedByEither]):
    """Every entry that either of two protections marks."""

    one: Protect
    other: Edges

    def protected(self, seen: Observation) -> Marks:
        one = self.one.protected(seen)
        other = self.other.protected(seen)
        return other if one is None else one | other

    def count(self, clock: Clock, entries: int) -> None:
        return

    def edges(self, clock: Clock, entries: int) -> tuple[int, int] | None:
        one = self.one.edges(clock, entries)
        if one is None:
            return None
        other = self.other.edges(clock, entries)
        first = max(one[0], other[0])
        recent = max(one[1], other[1])
        return first, recent


# --- budgets -------------------------------------------------------------------------------------


class Unlimited(Budget[reference.Unlimited]):
    """Every entry is kept."""

    def room(self, clock: Clock, entries: int, protected: int) -> int:
        return entries - protected


class Entries(Budget[reference.Entries]):
    """At most ``budget`` entries per KV head and layer."""

    def room(self, clock: Clock, entries: int, protected: int) -> int:
        return self.spec.budget - protected


# --- precision -----------------------------------------------------------------------------------


class Full(Precision[reference.Full]):
    """Everything that is kept stays as the model gave it."""

    quantises = False

    def store(self, cache: LayerCache, seen: Observation, keep: KeepSet) -> KeepSet:
        return keep


# --- the policy ----------------------------------------------------------------------------------


def divided(entries: int, protected: int, room: int) -> tuple[int, int]:
    """Return how many entries are evicted, and how many are kept beside the protected ones."""
    if room < 0:
        check_protected(protected + room, protected)
    kept = min(entries - protected, room)
    return entries - protected - kept, kept


@dataclass(frozen=True)
class Policy:
    """A KV-cache compression method, in tensors."""

    specification: reference.Policy
    """The same policy in the reference, whose checks and schedule hold here too."""
    score: Score
    protect: Protect
    budget: Budget
    precision: Precision

    @property
    def name(self) -> str:
        """Name in the registry's syntax."""
        return self.specification.name

    @cached_property
    def schedule(self) -> Schedule:
        """When to decide."""
        return self.specification.schedule

    @cached_property
    def needs(self) -> Needs:
        """What the score reads of attention."""
        return self.score.needs

    @cached_property
    def remembers(self) -> bool:
        """Whether the score remembers anything of the tokens between two decisions."""
        score = self.score
        while isinstance(score, Around):
            score = score.inner
        return type(score).observe is not Score.observe

    @property
    def last_read(self) -> int | None:
        """Last tokens of a prompt that the score has to see attend; None: all of them."""
        if self.needs.queries:
            return self.needs.queries
        if self.remembers and self.needs.prompt:
            return None
        return 1

    @cached_property
    def joins_layers(self) -> bool:
        """Whether all layers keep the same entries, by the mean of their scores."""
        return self.specification.score.joins_layers

    @cached_property
    def on_host(self) -> bool:
        """Whether the reference computes a part of the policy, layer by layer."""
        return any(part.on_host for part in (self.score, self.protect, self.budget))

    @cached_property
    def reads_model(self) -> bool:
        """Whether it reads what only a model hands over."""
        return bool(self.needs.of_models) or self.specification.reposition

    @cached_property
    def may_wait(self) -> bool:
        """Whether the score may observe a single token later."""
        return self.is_plain and self.needs.may_wait and not self.needs.hidden_states

    @cached_property
    def is_plain(self) -> bool:
        """Whether entries stay as they came, and PyTorch parts alone decide, after attention."""
        return not (self.is_early or self.precision.quantises or self.on_host)

    @property
    def is_early(self) -> bool:
        """Whether attention waits for a decision, or for keys to be rotated."""
        return self.specification.evict_before_attend or self.specification.reposition

    @cached_property
    def stores_by_age(self) -> bool:
        """Whether entries are never evicted, and stored as their age says."""
        return self.precision.by_age and not (self.is_early or self.specification.evicts)

    @property
    def tensors_alone(self) -> bool:
        """Whether scores and protection follow from tensors, and from nothing on the host."""
        return self.score.tensors_alone and self.protect.tensors_alone

    def due(self, clock: BatchClock) -> list[bool]:
        """Say for every sequence whether to decide after this block; never if it has no token."""
        rows = clock.rows
        return clock.once("due", lambda: [row.block > 0 and self.schedule.due(row) for row in rows])

    def ended(self, clock: BatchClock) -> bool:
        """Say whether nothing is decided about after this block."""
        return clock.once("ended", lambda: all(map(self.schedule.ended, clock.rows)))

    def observes(self, clock: BatchClock) -> bool:
        """Say whether a decision after this block, or after a later one, needs what it saw."""
        return any(self.due(clock)) or not self.ended(clock)

    def only_attends(self, clock: BatchClock) -> bool:
        """Say whether this is a single token about which nothing is decided but by its age."""

        def found() -> bool:
            undecided = self.is_plain and not self.observes(clock)
            aging = self.stores_by_age and any(self.due(clock))
            return clock.positions.shape[1] == 1 and (undecided or aging)

        return clock.once("only attends", found)

    def reads(self, clock: BatchClock) -> str:
        """Say which rows of a block's attention are read: ``all``, ``last`` or ``none``."""
        return self.needs.reads(clock) if self.observes(clock) else "none"

    def plan(self, clock: Clock, entries: int, due: bool) -> tuple[int, int] | None:
        """Say how many of a layer's entries are evicted, and how many candidates are kept.

        None if that depends on the layer or on the data.
        """
        protected = self.protect.count(clock, entries)
        if not due:
            return 0, entries - (protected or 0)
        if protected is None or not self.budget.reads_clock_alone:
            return None
        return divided(entries, protected, self.budget.room(clock, entries, protected))

    @property
    def uses_confidence(self) -> bool:
        """Whether the confidence of the model at each token has to be recorded."""
        return self.precision.uses_confidence or self.on_host

    def empty_cache(self) -> LayerCache:
        """Return the empty cache of one layer."""
        return LayerCache(self.score.columns, self.precision.quantises, self.score.on_host)
