"""The four answers and the step that asks them, for a batch of sequences.

Mirrors `kvlab.reference.policy`. A policy is written once, in the reference; here every part of it
has a twin that computes with tensors: `port` translates a policy part by part. Schedules and clocks
are plain numbers and serve both sides.

Nothing in a step of decoding waits for the device: how many entries a sequence has, and how many
leave, follows from the clock alone. Where a method's rule depends on data (DesireKV spares doubtful
tokens), the host waits at that method's events only.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvlab.fast.attention import (
    attend,
    attend_without_weights,
    compute_dtype,
    logits,
    reduce_group,
    visible,
    weighted_values,
)
from kvlab.fast.cache import LayerCache, State
from kvlab.fast.kernels.choice import uses_triton
from kvlab.fast.kernels.coded_table import CodedEntries
from kvlab.fast.kernels.decode import decode_attention
from kvlab.fast.kernels.keep import keep_slots
from kvlab.fast.kernels.prefill import attend_block, received_attention
from kvlab.fast.kernels.tables import attend_to_tables
from kvlab.fast.kernels.tracking import Joining, Reduction, Tracking
from kvlab.fast.padding import kept_slots
from kvlab.fast.selection import first_to_go
from kvlab.reference import policy as reference
from kvlab.reference.policy import Clock, Schedule, check_protected

MOST_WEIGHTS = 2**24
"""Attention probabilities of one layer that are in memory at once: 64 MiB in float32."""


@dataclass(eq=False)
class BatchClock:
    """Where in the token stream a block stands, for every sequence of a batch."""

    rows: tuple[Clock, ...]
    """One clock per sequence; its ``block`` does not count padding."""
    positions: Int[Tensor, "N m"]
    """Absolute positions of the block's tokens; -1 for padding, which comes first."""
    prompt: Int[Tensor, "N 1 1"]
    memo: dict[Any, Any] = field(default_factory=dict)
    """What was derived from this clock: all layers ask the same."""

    @property
    def present(self) -> tuple[int, ...]:
        """Tokens of each sequence in this block, without padding."""
        return self.once("present", lambda: tuple(row.block for row in self.rows))

    @property
    def seen(self) -> Int[Tensor, "N 1 1"]:
        """Tokens of each sequence, the block included."""
        return self.once("seen", lambda: self.positions[:, -1:, None] + 1)

    @property
    def generated(self) -> Int[Tensor, "N 1 1"]:
        """Tokens seen after the prompt."""
        return self.once("generated", lambda: (self.seen - self.prompt).clamp(min=0))

    def oldest_of(self, recent: int) -> Int[Tensor, "N 1 1"]:
        """Return the position of the first of the ``recent`` newest tokens."""
        return self.once(("oldest", recent), lambda: self.positions[:, -1:, None] - (recent - 1))

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what ``make`` returns, and make it only once."""
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]

    def to(self, device: torch.device) -> "BatchClock":
        """Return this clock on another device."""
        if self.positions.device == device:
            return self
        return self.once(
            device,
            lambda: BatchClock(self.rows, self.positions.to(device), self.prompt.to(device)),
        )


@dataclass(eq=False)
class Observation:
    """What a block of queries, or a part of it, saw in one layer."""

    clock: BatchClock
    layer: int
    queries: Float[Tensor, "N G rho m d"]
    query_positions: Int[Tensor, "N m"]
    weights: Float[Tensor, "N G rho m n"] | None
    positions: Int[Tensor, "N G n"]
    cache: LayerCache
    confidence: Float[Tensor, "_ t"]
    softcap: float | None = None
    joined: Float[Tensor, "N G n"] | None = None
    """Probabilities joined as `Score.reduces` asks, in place of ``weights``."""
    output: Float[Tensor, "N G rho d"] | None = None
    """What the newest token's attention put out, over the entries that are present."""
    tracked: bool = False
    """Whether attention has updated the score's counters."""
    repositioned: bool = False
    """Whether ``keys`` were rotated to other positions than those that they are stored for."""
    first_head: int = 0
    """Number of the first of these KV heads in the model's layer."""

    def received(self, how: Joining) -> Float[Tensor, "N G _ n"]:
        """What every entry received from each row; ``how`` is what `Score.reduces` says.

        One row with the sum of all where the score adds them up.
        """
        if self.joined is not None:
            return self.joined[:, :, None]
        return reduce_group(self.attention, how)

    @cached_property
    def keys(self) -> Float[Tensor, "N G n d"]:
        """Keys of the present entries."""
        return self.cache.keys(self.queries.dtype)

    @cached_property
    def values(self) -> Float[Tensor, "N G n d"]:
        """Values of the present entries."""
        return self.cache.values(self.queries.dtype)

    @property
    def coded(self) -> CodedEntries | None:
        """Keys and values by precision, where attention can read them so."""
        return None if self.repositioned else self.cache.coded()

    @property
    def stored_keys(self) -> Float[Tensor, "N G n d"]:
        """Keys as they are stored, where attention can read them so."""
        as_read = self.cache.mixed is not None or self.repositioned
        return self.keys if as_read else self.cache.table["keys"]

    @property
    def stored_values(self) -> Float[Tensor, "N G n d"]:
        """Values as they are stored, where attention can read them so."""
        return self.values if self.cache.mixed is not None else self.cache.table["values"]

    @property
    def attention(self) -> Float[Tensor, "N G rho m n"]:
        """Attention probabilities, for a score that says that it reads them."""
        if self.weights is None:
            raise RuntimeError("attention was not computed: see Score.reads")
        return self.weights

    @property
    def bits(self) -> Int[Tensor, "N G n"]:
        """Bits per element of the stored keys."""
        return self.cache.bits()

    @property
    def ragged(self) -> bool:
        """Whether some slots are empty."""
        return self.cache.ragged

    @property
    def present(self) -> Bool[Tensor, "N G n"]:
        """Slots that hold an entry."""
        return self.positions >= 0

    def logits(self, queries: Float[Tensor, "N G rho w d"]) -> Float[Tensor, "N G rho w n"]:
        """Logits of these queries over the present entries, as the model computes them."""
        return logits(queries, self.keys, self.softcap)


class Score(ABC):
    """What is an entry worth? Higher is kept."""

    signed = False
    """Whether scores may be negative."""
    can_wait = False
    """Whether it may observe several tokens together, as one block, once a decision is due."""
    adds_rows = False
    """Whether of a block's attention it observes nothing but the sum over the tokens."""
    couples_heads = False
    """Whether the score of an entry depends on other KV heads of its layer."""
    retains_attention = False
    """Whether `retention` is the newest token's attention: then its output is Σ retention·value."""

    @property
    def fills(self) -> Mapping[str, float]:
        """Names of the per-entry state and the value that a new entry starts with."""
        return {}

    def reads(self, clock: Clock) -> str:
        """Say which rows of attention are read: ``all``, ``last`` or ``none``."""
        return "all"

    @property
    def reduces(self) -> Reduction:
        """How the query heads of a KV head are joined, if nothing else is read of attention."""
        return "none"

    def tracking(self, column: Callable[[str], Tensor]) -> Tracking | None:
        """Return what attention to one token may update in place of `observe`.

        Args:
            column: gives a column of the per-entry state.
        """
        return None

    def from_reference(self, entries: Mapping[str, Tensor], generated: int) -> Mapping[str, Tensor]:
        """Return the state of the entries, of what the reference calls it after a block.

        Args:
            entries: ``[..., G, n]``, by the names of the reference; others are left out.
            generated: tokens seen after the prompt.
        """
        return {name: entries[name] for name in self.fills}

    def as_reference(self, entries: Mapping[str, Tensor], generated: int) -> Mapping[str, Tensor]:
        """Invert `from_reference`, as far as the state goes."""
        return entries

    def observe(self, state: State, seen: Observation) -> None:
        """Update the state in place; called on every block, in parts if it is long."""
        return

    @abstractmethod
    def score(
        self,
        state: State,
        seen: Observation,
        candidates: Bool[Tensor, "N G n"] | None,
        room: Sequence[int],
    ) -> Float[Tensor, "N #G n"]:
        """Rate the entries; one row for all heads where they decide together.

        Args:
            state: what `observe` made of all blocks so far.
            seen: the current block.
            candidates: entries that may leave, None for all; scores elsewhere are ignored.
            room: how many candidates of each sequence may stay.
        """

    def first_to_go(
        self,
        state: State,
        seen: Observation,
        safe: Bool[Tensor, "N G n"] | None,
        room: Sequence[int],
    ) -> tuple[Int[Tensor, "N _ 1"], Float[Tensor, "N _ 1"]]:
        """Return each head's first slot to go, and its score; for scores that find both at once.

        Args:
            state: as for `score`.
            seen: as for `score`; no slot is empty.
            safe: entries that must stay, None for nobody.
            room: as for `score`.
        """
        candidates = None if safe is None else ~safe
        return first_to_go(self.score(state, seen, candidates, room), safe, seen.positions)

    def retention(
        self, state: State, seen: Observation, candidates: Bool[Tensor, "N G n"] | None
    ) -> Float[Tensor, "N G k n"]:
        """Return what CAOTE wraps: one row per query head or per KV head."""
        room = [0] * len(seen.positions)
        return self.score(state, seen, candidates, room).expand_as(seen.positions)[:, :, None]


class Protect(ABC):
    """Who is safe?"""

    @abstractmethod
    def safe(self, seen: Observation) -> Bool[Tensor, "N G n"] | None:
        """Mark the entries that must stay; None for nobody."""

    @abstractmethod
    def count(self, clock: Clock, entries: int) -> int | None:
        """Say how many of ``entries`` are safe after this block; None if only the data tell."""


class Budget(ABC):
    """How many entries may stay?"""

    @abstractmethod
    def room(self, clock: Clock, entries: int, safe: int) -> int:
        """Say how many of ``entries`` may stay besides the safe ones."""


class Precision(ABC):
    """How precisely is it kept?"""

    quantises = True
    uses_confidence = False
    """Whether the confidence of the model at each token has to be recorded."""
    couples_heads = False
    """Whether the precision of an entry depends on other KV heads of its layer."""

    @abstractmethod
    def store(
        self,
        cache: LayerCache,
        seen: Observation,
        candidates: Bool[Tensor, "N G n"] | None,
        keep: Int[Tensor, "N G kept"],
        kept: Sequence[int],
    ) -> tuple[Int[Tensor, "N G stays"], Sequence[int]]:
        """Quantise entries and return the keep set, which may spare some that would have gone."""


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

    @property
    def schedule(self) -> Schedule:
        """When to look."""
        return self.specification.schedule

    @property
    def uses_confidence(self) -> bool:
        """Whether the confidence of the model at each token has to be recorded."""
        return self.precision.uses_confidence

    @property
    def couples_heads(self) -> bool:
        """Whether the KV heads of a layer cannot decide apart from each other."""
        return self.score.couples_heads or self.precision.couples_heads

    def empty_cache(self) -> LayerCache:
        """Return the empty cache of one layer."""
        return LayerCache(self.score.fills, self.precision.quantises)


@dataclass(eq=False)
class Block:
    """What the model hands to one layer's cache for one block of tokens."""

    clock: BatchClock
    layer: int
    queries: Float[Tensor, "N G rho m d"]
    keys: Float[Tensor, "N G m d"]
    values: Float[Tensor, "N G m d"]
    confidence: Float[Tensor, "N t"]
    rotate: Callable[[Tensor, Tensor], Tensor] | None = None
    softcap: float | None = None
    first_head: int = 0
    """Number of the first of these KV heads in the model's layer."""


@dataclass(eq=False)
class StepResult:
    """What one step of one layer produced; all but the output only for who watches."""

    output: Float[Tensor, "N G rho m d"]
    positions: Int[Tensor, "N G n"]
    """Positions of the entries that the block attended to."""
    scores: Float[Tensor, "N #G n"] | None
    """None if nothing had to leave."""
    safe: Bool[Tensor, "N G n"] | None
    cache: LayerCache
    """As it is after the step."""
    watched: bool = False
    """Whether positions and scores are copies that later steps leave alone."""


def step(policy: Policy, cache: LayerCache, block: Block, watched: bool = False) -> StepResult:
    """Append a block, attend, observe and, if due, select, store and compact: all in place."""
    clock = block.clock
    cache.append(block.keys, block.values, clock.positions, clock.present)
    output, seen = observe_attention(policy, cache, block)
    before = seen.positions.clone() if watched else seen.positions
    result = StepResult(output, before, None, None, cache, watched)
    due = clock.once("due", lambda: [policy.schedule.due(row) for row in clock.rows])
    if any(due):
        compress(policy, seen, due, result)
    if watched:
        cache.settle()
    return result


def compress(policy: Policy, seen: Observation, due: Sequence[bool], result: StepResult) -> None:
    """Select, store and compact what a due step has to."""
    cache, clock = seen.cache, seen.clock
    plan = clock.once((cache.counts, cache.demoted), lambda: planned(policy, seen, due))
    leaving, room = plan
    if not policy.precision.quantises and not any(leaving):
        return
    safe = policy.protect.safe(seen)
    in_place = not policy.precision.quantises and not policy.specification.evict_before_attend
    one_each = in_place and not cache.ragged and set(leaving) == {1}
    if one_each and not result.watched:
        evict_first(cache, *policy.score.first_to_go(cache.state, seen, safe, room))
        return
    candidates = None if safe is None else ~safe
    kept = [count - gone for count, gone in zip(cache.counts, leaving, strict=True)]
    if any(leaving):
        scores = policy.score.score(cache.state, seen, candidates, room)
        result.scores = scores.clone() if result.watched else scores
        result.safe = safe
    else:
        scores = seen.positions.to(seen.queries.dtype)
    if one_each:
        evict_first(cache, *first_to_go(scores, safe, seen.positions))
        return
    lowest = scores.expand_as(seen.positions).masked_fill(~seen.present, torch.inf)
    note_lowest(cache, lowest.amin(-1, keepdim=True))
    keep = keep_slots(scores, safe, seen.positions, kept, cache.ordered)
    keep, kept = policy.precision.store(cache, seen, candidates, keep, kept)
    if policy.specification.evict_before_attend:
        result.output = attend_survivors(seen, keep, kept).to(result.output.dtype)
    if tuple(kept) != cache.counts:
        cache.compact(keep, kept)


def evict_first(
    cache: LayerCache, slot: Int[Tensor, "N _ 1"], lowest: Float[Tensor, "N _ 1"]
) -> None:
    """Let one entry of every head go, in place."""
    note_lowest(cache, lowest)
    cache.evict_one(slot.expand(*cache.positions.shape[:2], 1))


def planned(policy: Policy, seen: Observation, due: Sequence[bool]) -> tuple[list[int], list[int]]:
    """Say for every sequence how many entries leave, and how many candidates stay."""
    cache, leaving, room = seen.cache, [], []
    for number, clock in enumerate(seen.clock.rows):
        entries = cache.counts[number] - cache.demoted[number]
        safe = policy.protect.count(clock, entries)
        if safe is None and due[number]:
            marked = policy.protect.safe(seen)
            assert marked is not None
            safe = int((marked & seen.present)[number].sum(dim=-1).max())
        stay = entries - (safe or 0)
        if due[number]:
            stay = min(stay, policy.budget.room(clock, entries, safe or 0))
        room.append(stay)
        leaving.append(entries - (safe or 0) - stay)
    return leaving, room


def note_lowest(cache: LayerCache, lowest: Float[Tensor, "N _ 1"]) -> None:
    """Remember NaN among the scores, which a maximum hands on, without asking the device."""
    if cache.lowest_scores is None:
        cache.lowest_scores = lowest
    else:
        cache.lowest_scores = torch.maximum(cache.lowest_scores, lowest)


def observe_attention(
    policy: Policy, cache: LayerCache, block: Block
) -> tuple[Float[Tensor, "N G rho m d"], Observation]:
    """Let the block's queries attend to all present entries, and the score observe it."""
    clock, stored = block.clock, block.keys.dtype
    seen = Observation(
        clock=clock,
        layer=block.layer,
        queries=block.queries.to(compute_dtype(stored)),
        query_positions=clock.positions,
        weights=None,
        positions=cache.positions,
        cache=cache,
        confidence=block.confidence,
        softcap=block.softcap,
        first_head=block.first_head,
    )
    if policy.specification.reposition:
        seen.queries, seen.keys = repositioned(block, seen)
        seen.repositioned = True
    reads = rows_to_read(policy, clock)
    output: Tensor
    if seen.queries.shape[3] == 1:
        if uses_triton(seen.queries) and cache.mixed is None:
            places = seen.positions if seen.ragged else None
            keys, values = seen.stored_keys, seen.stored_values
            column = cache.table.__getitem__
            output, found = look(
                policy, reads, seen.queries, keys, values, places, seen.softcap, column
            )
            seen.weights, seen.joined, seen.tracked = found.weights, found.joined, found.tracked
        else:
            output, seen.weights = attend_to(seen, slice(0, 1), reads != "none")
        seen.output = output[:, :, :, 0]
        policy.score.observe(cache.state, seen)
    else:
        output = attend_in_parts(policy, seen, reads)
    return output.to(stored), seen


def attend_in_parts(policy: Policy, seen: Observation, reads: str) -> Float[Tensor, "N G rho m d"]:
    """Attend part by part, so that a long block's attention is never in memory as a whole."""
    queries, positions, outputs = seen.queries, seen.query_positions, []
    m = queries.shape[3]
    if reads == "all" and adds_up(policy) and uses_triton(queries):
        output = attend_adding_up(policy.score.reduces, seen)
        policy.score.observe(seen.cache.state, seen)
        return output
    for part in parts(queries, len(seen.cache)):
        output, weights = attend_to(seen, part, reads == "all")
        outputs.append(output)
        if reads == "all":
            seen.queries, seen.query_positions = queries[:, :, :, part], positions[:, part]
            seen.weights = weights
            policy.score.observe(seen.cache.state, seen)
            seen.queries, seen.query_positions = queries, positions
    if reads != "all":
        policy.score.observe(seen.cache.state, seen)
    if reads == "last":
        last, seen.weights = attend_to(seen, slice(m - 1, m), True)
        seen.output = last[:, :, :, 0]
    return torch.cat(outputs, dim=3)


@dataclass(frozen=True)
class Looked:
    """What a kernel found out about one token's attention while it computed it."""

    weights: Float[Tensor, "N G rho 1 n"] | None
    joined: Float[Tensor, "N G n"] | None
    output: Float[Tensor, "N G rho d"]
    tracked: bool


def look(
    policy: Policy,
    reads: str,
    queries: Float[Tensor, "N G rho 1 d"],
    keys: Float[Tensor, "N G n d"],
    values: Float[Tensor, "N G n d"],
    places: Int[Tensor, "N G n"] | None,
    softcap: float | None,
    column: Callable[[str], Tensor],
) -> tuple[Float[Tensor, "N G rho 1 d"], Looked]:
    """Attend from one token, and find out in the same pass what the score needs."""
    score = policy.score
    how: Reduction = "none" if policy.specification.evict_before_attend else score.reduces
    if reads == "none":
        how = "skip"
    tracking = None if how in ("none", "skip") else score.tracking(column)
    output, found = decode_attention(queries, keys, values, places, softcap, how, tracking)
    put_out = output[:, :, :, 0]
    if how == "skip":
        return output, Looked(None, None, put_out, False)
    if how == "none":
        return output, Looked(found, None, put_out, False)
    return output, Looked(None, found, put_out, tracking is not None)


def adds_up(policy: Policy) -> bool:
    """Say whether the sum over a block's rows is all that the policy reads of attention."""
    summed = policy.score.adds_rows and policy.score.reduces in ("sum", "mean")
    return summed and not policy.specification.evict_before_attend


def attend_adding_up(how: Reduction, seen: Observation) -> Float[Tensor, "N G rho m d"]:
    """Attend, and sum what a block's rows paid every entry, without their attention matrix."""
    block = seen.queries, seen.stored_keys
    places = seen.query_positions, seen.positions
    output, lse = attend_block(*block, seen.stored_values, *places, seen.softcap)
    received = received_attention(*block, *places, softcap=seen.softcap, lse=lse)
    seen.joined = received / seen.queries.shape[2] if how == "mean" else received
    return output


def rows_to_read(policy: Policy, clock: BatchClock) -> str:
    """Say which rows of attention the policy needs in this block."""
    if policy.specification.evict_before_attend:
        return "all"
    wanted = {policy.score.reads(row) for row in clock.rows}
    return next(rows for rows in ("all", "last", "none") if rows in wanted)


def parts(queries: Float[Tensor, "N G rho m d"], entries: int) -> list[slice]:
    """Cut the queries so that the attention of one part stays below `MOST_WEIGHTS`."""
    N, G, rho, m, _ = queries.shape
    size = max(1, MOST_WEIGHTS // max(1, N * G * rho * entries))
    return [slice(first, min(first + size, m)) for first in range(0, m, size)]


def attend_to(
    seen: Observation, part: slice, weights: bool
) -> tuple[Float[Tensor, "N G rho m d"], Float[Tensor, "N G rho m n"] | None]:
    """Attention of a part of the block's queries, and on request its probabilities."""
    queries, positions = seen.queries[:, :, :, part], seen.clock.positions[:, part]
    single = seen.clock.positions.shape[1] == 1
    if single and uses_triton(queries):
        if (coded := seen.coded) is not None:
            output, found = attend_to_tables(
                queries,
                coded.keys,
                coded.values,
                len(seen.cache),
                seen.softcap,
                "none" if weights else "skip",
                coded.partners,
            )
            return output, found if weights else None
        if weights:
            places = seen.positions if seen.ragged else None
            return decode_attention(
                queries, seen.stored_keys, seen.stored_values, places, seen.softcap
            )
    mask = None if single and not seen.ragged else visible(positions, seen.positions)
    if weights or seen.softcap is not None:
        return attend(queries, seen.keys, seen.values, mask, seen.softcap)
    keys, values = seen.stored_keys, seen.stored_values
    if not queries.is_cuda:
        keys, values = seen.keys, seen.values
    return attend_without_weights(queries, keys, values, mask), None


def repositioned(
    block: Block, seen: Observation
) -> tuple[Float[Tensor, "N G rho m d"], Float[Tensor, "N G n d"]]:
    """Rotate queries and keys to the index of their entry among the present ones."""
    if block.rotate is None:
        raise ValueError("reposition = True needs a model whose rotary embedding is known")
    positions = seen.positions
    places = torch.arange(positions.shape[-1], dtype=torch.int32, device=positions.device)
    index = torch.empty_like(positions).scatter_(
        -1, positions.argsort(dim=-1), places.expand_as(positions)
    )
    index = index - (positions < 0).sum(dim=-1, keepdim=True, dtype=torch.int32)
    entries = seen.present[:, :1].sum(dim=-1, keepdim=True, dtype=torch.int32)
    shift = (entries - seen.clock.seen)[..., None].expand(-1, 1, 1, seen.queries.shape[3])
    return block.rotate(seen.queries, shift), block.rotate(seen.keys, index - positions)


def attend_survivors(
    seen: Observation, keep: Int[Tensor, "N G kept"], kept: Sequence[int]
) -> Float[Tensor, "N G rho m d"]:
    """Attention output over the kept entries, renormalised; a query always keeps its own key."""
    stays = kept_slots(seen.positions, keep, kept)
    outputs = []
    for part in parts(seen.queries, len(seen.cache)):
        _, attention = attend_to(seen, part, True)
        assert attention is not None
        own = seen.positions[:, :, None, None, :] == seen.clock.positions[:, None, None, part, None]
        survivors = attention * (stays[:, :, None, None, :] | own)
        total = survivors.sum(dim=-1, keepdim=True)
        survivors = torch.where(total > 0, survivors / total, 0.0)
        outputs.append(weighted_values(survivors, seen.values))
    return torch.cat(outputs, dim=3)


# --- twins ---------------------------------------------------------------------------------------

TWINS: dict[type, type] = {}
"""Part of a policy in the reference → the same part in tensors."""

Twin = TypeVar("Twin", bound=type)


def twin_of(part: type) -> Callable[[Twin], Twin]:
    """Declare a class to be the twin of a part of the reference, with the same fields."""

    def register(twin: Twin) -> Twin:
        TWINS[part] = twin
        return twin

    return register


def port_part(part: Any) -> Any:
    """Return the twin of a part of a policy, with the same parameters.

    Raises:
        ValueError: if a score, protection, budget or precision has no twin.
    """
    twin = TWINS.get(type(part))
    if twin is None:
        kinds = (reference.Score, reference.Protect, reference.Budget, reference.Precision)
        if isinstance(part, kinds):
            raise ValueError(f"{type(part).__name__} has no twin in kvlab.fast; see `twin_of`")
        return part
    assert is_dataclass(part)
    return twin(**{f.name: port_part(getattr(part, f.name)) for f in fields(part)})


def port(policy: reference.Policy) -> Policy:
    """Translate a policy of the reference."""
    return Policy(
        policy,
        port_part(policy.score),
        port_part(policy.protect),
        port_part(policy.budget),
        port_part(policy.precision),
    )


# --- protection ----------------------------------------------------------------------------------


@twin_of(reference.Nobody)
@dataclass(frozen=True)
class Nobody(Protect):
    """Every entry may leave."""

    def safe(self, seen: Observation) -> None:
        """Nothing."""
        return

    def count(self, clock: Clock, entries: int) -> int:
        """None."""
        return 0


@twin_of(reference.Edges)
@dataclass(frozen=True)
class Edges(Protect):
    """The first ``sinks`` tokens of the text and the last ``recent`` ones.

    What is always safe until it is ``recent`` tokens old has never been evicted: the newest entries
    are the newest positions.
    """

    sinks: int
    recent: int

    def safe(self, seen: Observation) -> Bool[Tensor, "N G n"]:
        """Positions below ``sinks`` and the ``recent`` newest."""
        newest = seen.positions >= seen.clock.oldest_of(self.recent)
        return newest | (seen.positions < self.sinks) if self.sinks else newest

    def count(self, clock: Clock, entries: int) -> int:
        """Sinks and recent entries, as far as there are any."""
        return min(clock.seen, self.sinks + self.recent)


@twin_of(reference.PromptAndRecent)
@dataclass(frozen=True)
class PromptAndRecent(Protect):
    """All tokens of the prompt and the last ``recent`` ones."""

    recent: int

    def safe(self, seen: Observation) -> Bool[Tensor, "N G n"]:
        """Positions inside the prompt and the ``recent`` newest."""
        newest = seen.positions >= seen.clock.oldest_of(self.recent)
        return newest | (seen.positions < seen.clock.prompt)

    def count(self, clock: Clock, entries: int) -> int:
        """The prompt and the recent entries."""
        return min(clock.seen, clock.prompt + self.recent)


# --- budgets -------------------------------------------------------------------------------------


@twin_of(reference.Unlimited)
@dataclass(frozen=True)
class Unlimited(Budget):
    """Everything stays."""

    def room(self, clock: Clock, entries: int, safe: int) -> int:
        """As many as there are."""
        return entries - safe


@twin_of(reference.Entries)
@dataclass(frozen=True)
class Entries(Budget):
    """At most ``budget`` entries per KV head and layer."""

    budget: int

    def room(self, clock: Clock, entries: int, safe: int) -> int:
        """What the safe entries leave of the budget."""
        check_protected(self.budget, safe)
        return self.budget - safe


# --- precision -----------------------------------------------------------------------------------


@twin_of(reference.Full)
@dataclass(frozen=True)
class Full(Precision):
    """Everything that is kept stays as the model gave it."""

    quantises = False

    def store(
        self,
        cache: LayerCache,
        seen: Observation,
        candidates: Bool[Tensor, "N G n"] | None,
        keep: Int[Tensor, "N G kept"],
        kept: Sequence[int],
    ) -> tuple[Int[Tensor, "N G stays"], Sequence[int]]:
        """Change nothing."""
        return keep, kept
