"""A method is four answers: score, schedule, protect, precision; and the step that asks them.

| question | answered by |
|---|---|
| What is an entry worth? | `Score`, and a `Budget` that says how many may stay |
| When do we look? | `Schedule` |
| Who is safe? | `Protect` |
| How precisely is it kept? | `Precision` |
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from kvlab.reference.attention import attend, logits, visible, weighted_values
from kvlab.reference.cache import Column, LayerCache, State
from kvlab.reference.notation import Array
from kvlab.reference.selection import keep_set


@dataclass(frozen=True)
class Clock:
    """Where in the token stream a block stands; all counts are tokens of the sequence."""

    seen: int
    """Tokens seen, the block included: the absolute position of the next token."""
    block: int
    """Tokens in this block."""
    prompt: int
    """Tokens of the prompt; 0 for pure decoding."""

    @property
    def positions(self) -> Int[Array, " m"]:
        """Absolute positions of the block's tokens."""
        return np.arange(self.seen - self.block, self.seen)

    @property
    def prefilling(self) -> bool:
        """Whether the block belongs to the prompt."""
        return self.seen <= self.prompt

    @property
    def prefill_ends(self) -> bool:
        """Whether this is the last block of the prompt."""
        return self.seen == self.prompt

    @property
    def generated(self) -> int:
        """Tokens seen after the prompt."""
        return max(0, self.seen - self.prompt)

    @property
    def generated_before(self) -> int:
        """Tokens seen after the prompt when the block began."""
        return max(0, self.seen - self.block - self.prompt)


@dataclass(frozen=True)
class Observation:
    """What one block of queries saw in one layer, all present entries included."""

    clock: Clock
    layer: int
    queries: Float[Array, "G rho m d"]
    attention: Float[Array, "G rho m n"]
    keys: Float[Array, "G n d"]
    values: Float[Array, "G n d"]
    positions: Int[Array, "G n"]
    bits: Int[Array, "G n"]
    """Bits per element of the stored keys: 16 for entries never quantised."""
    confidence: Float[Array, " t"]
    """Largest probability of the distribution that produced each token; NaN for given tokens."""
    softcap: float | None = None
    """Bound of the model's attention logits, if it has one."""

    def logits(self, queries: Float[Array, "G rho w d"]) -> Float[Array, "G rho w n"]:
        """Logits of these queries over the present entries, as the model computes them."""
        return logits(queries, self.keys, self.softcap)

    @property
    def query_positions(self) -> Int[Array, " m"]:
        """Absolute positions of the block's queries."""
        return self.clock.positions


@dataclass(frozen=True)
class Needs:
    """What a score reads of attention. The fast side does not compute what no score reads."""

    rows: Literal["all", "last", "none"] = "all"
    """Rows of the attention probabilities, one per query of the block."""
    prompt: bool = True
    """Whether it reads them while the prompt is read; if not, only while tokens are generated."""
    heads: Literal["apart", "sum", "mean", "max"] = "apart"
    """How the query heads of a KV head are joined, if that is all that is read of them."""
    sums_rows: bool = False
    """Whether it reads nothing but the sum over the rows of a block."""
    may_wait: bool = False
    """Whether it may observe several generated tokens together, once a decision is due."""


NO_ATTENTION = Needs(rows="none")
"""For scores that read no attention probabilities of the block."""


class Score(ABC):
    """What is an entry worth? Higher is kept."""

    needs = Needs()
    """What the score reads of attention; the default is right for every score."""

    @property
    def columns(self) -> Mapping[str, Column]:
        """What the score remembers of every entry, by name."""
        return {}

    @property
    def ordinal(self) -> bool:
        """Whether scores are an order, in which distances mean nothing."""
        return False

    @property
    def signed(self) -> bool:
        """Whether scores may be negative."""
        return False

    def drawn(self, seen: "Observation") -> Mapping[str, Array]:
        """Return the random numbers that `score` uses: what another implementation is given."""
        return {}

    def observe(self, state: State, seen: Observation) -> State:
        """Update the state with one block; called on every block, due or not."""
        return state

    @abstractmethod
    def score(
        self, state: State, seen: Observation, candidates: Bool[Array, "G n"], room: int
    ) -> Float[Array, "G n"]:
        """Rate the entries.

        Args:
            state: what `observe` made of all blocks so far.
            seen: the current block.
            candidates: entries that may leave; scores elsewhere are ignored.
            room: how many candidates may stay.
        """

    def retention(
        self, state: State, seen: Observation, candidates: Bool[Array, "G n"]
    ) -> Float[Array, "G k n"]:
        """Return what CAOTE wraps: weights of the entries, in proportion to which they are read.

        One row per query head where the score keeps them apart, one per KV head otherwise; a
        score that does not say better gives itself.
        """
        return self.score(state, seen, candidates, room=0)[:, None]


class Schedule(ABC):
    """When do we look?"""

    @abstractmethod
    def due(self, clock: Clock) -> bool:
        """Say whether to select after this block."""


class Protect(ABC):
    """Who is safe?"""

    @abstractmethod
    def safe(self, seen: Observation) -> Bool[Array, "G n"]:
        """Mark the entries that must stay."""

    def count(self, prompt: int) -> int:
        """Entries that are always safe once they exist, for a prompt of this length."""
        return 0


class Budget(ABC):
    """How many entries may stay?"""

    @abstractmethod
    def room(self, seen: Observation, safe: Bool[Array, "G n"]) -> int:
        """Say how many entries may stay besides the safe ones."""

    def check(self, protect: Protect, prompt: int) -> None:
        """Raise ValueError if the protected entries alone exceed the budget."""
        return


class Precision(ABC):
    """How precisely is it kept?"""

    @abstractmethod
    def store(
        self,
        cache: LayerCache,
        seen: Observation,
        candidates: Bool[Array, "G n"],
        keep: Int[Array, "G kept"],
    ) -> tuple[LayerCache, Int[Array, "G stays"]]:
        """Quantise entries and return the keep set, which may spare some that would have gone."""


@dataclass(frozen=True)
class Policy:
    """A KV-cache compression method: a composition of answers, and nothing else."""

    name: str
    score: Score
    schedule: Schedule
    protect: Protect
    budget: Budget
    precision: Precision
    evict_before_attend: bool = False
    """Attend over the survivors only, as CAOTE's Eq. 5-7 print it; each query keeps its own key."""
    reposition: bool = False
    """Rotate keys and queries to their index inside the cache, as StreamingLLM's code does."""

    def __post_init__(self) -> None:
        self.check(prompt=0)

    def check(self, prompt: int) -> None:
        """Raise ValueError if the policy cannot work with a prompt of ``prompt`` tokens."""
        self.budget.check(self.protect, prompt)


@dataclass(frozen=True)
class Block:
    """What the model hands to one layer's cache for one block of tokens."""

    clock: Clock
    layer: int
    queries: Float[Array, "G rho m d"]
    keys: Float[Array, "G m d"]
    values: Float[Array, "G m d"]
    confidence: Float[Array, " t"]
    rotate: Callable[[Float[Array, "..."], Int[Array, "..."]], Float[Array, "..."]] | None = None
    """Rotate vectors by a number of positions (RoPE); needed by ``reposition`` only."""
    softcap: float | None = None
    """Bound of the model's attention logits, if it has one."""


@dataclass(frozen=True)
class StepResult:
    """What one step of one layer produced."""

    output: Float[Array, "G rho m d"]
    cache: LayerCache
    seen: Observation
    keep: Int[Array, "G kept"] | None = None
    """Indices that stayed, into the entries of ``seen``; None if the step was not due."""


def empty_cache(policy: Policy, kv_heads: int, head_dim: int) -> LayerCache:
    """Return the empty cache of one layer for a policy."""
    return LayerCache.empty(kv_heads, head_dim, policy.score.columns)


def step(policy: Policy, cache: LayerCache, block: Block) -> StepResult:
    """Append a block, attend, observe and, if due, select, store and compact.

    Nothing is changed in place: if the step fails, ``cache`` is as it was.

    Raises:
        ValueError: on wrong shapes, on NaN or infinity, and if the safe entries exceed the budget.
    """
    check_block(cache, block)
    clock = block.clock
    cache = cache.append(block.keys, block.values, clock.positions, policy.score.columns)
    output, seen = observe_attention(policy, cache, block)
    state = policy.score.observe(cache.state, seen)
    cache = replace(cache, state=state)
    if not policy.schedule.due(clock):
        return StepResult(output, cache, seen)
    candidates, keep = select(policy, state, seen)
    cache, keep = policy.precision.store(cache, seen, candidates, keep)
    if policy.evict_before_attend:
        output = attend_survivors(seen, keep)
    return StepResult(output, cache.compact(keep), seen, keep)


def observe_attention(
    policy: Policy, cache: LayerCache, block: Block
) -> tuple[Float[Array, "G rho m d"], Observation]:
    """Let the block's queries attend to all present entries."""
    keys, values, queries = cache.keys.read(), cache.values.read(), block.queries
    clock, n = block.clock, len(cache)
    query_positions = clock.positions
    if policy.reposition:
        if block.rotate is None:
            raise ValueError("reposition = True needs a model that hands over its rotary embedding")
        keys = block.rotate(keys, np.arange(n) - cache.positions)
        queries = block.rotate(queries, np.arange(n - clock.block, n) - query_positions)
    mask = visible(query_positions, cache.positions)
    output, attention = attend(queries, keys, values, mask, block.softcap)
    seen = Observation(
        clock=clock,
        layer=block.layer,
        queries=queries,
        attention=attention,
        keys=keys,
        values=values,
        positions=cache.positions,
        bits=cache.keys.bits,
        confidence=block.confidence,
        softcap=block.softcap,
    )
    return output, seen


def select(
    policy: Policy, state: State, seen: Observation
) -> tuple[Bool[Array, "G n"], Int[Array, "G kept"]]:
    """Return the candidates and the keep set: the safe entries and the best of the rest."""
    safe = policy.protect.safe(seen)
    room = policy.budget.room(seen, safe)
    candidates = ~safe
    if room >= candidates.sum(axis=-1).max():
        everything = np.arange(safe.shape[1])
        return candidates, np.tile(everything, (len(safe), 1))
    scores = policy.score.score(state, seen, candidates, room)
    return candidates, keep_set(scores, safe, room)


def attend_survivors(seen: Observation, keep: Int[Array, "G kept"]) -> Float[Array, "G rho m d"]:
    """Attention output over the kept entries, renormalised; a query always keeps its own key."""
    kept = np.zeros(seen.positions.shape, dtype=bool)  # [CAOTE 7]
    np.put_along_axis(kept, keep, True, axis=-1)
    own = seen.positions[:, None, None, :] == seen.query_positions[None, None, :, None]
    survivors = seen.attention * (kept[:, None, None, :] | own)
    return weighted_values(survivors / survivors.sum(axis=-1, keepdims=True), seen.values)


def check_block(cache: LayerCache, block: Block) -> None:
    """Raise ValueError unless the block fits the cache and its clock."""
    G, _, m, d = block.queries.shape
    if block.keys.shape != (G, m, d) or block.values.shape != (G, m, d):
        raise ValueError(
            f"keys {block.keys.shape} and values {block.values.shape} must have the shape "
            f"{(G, m, d)} that queries {block.queries.shape} ask for"
        )
    if cache.positions.shape[0] != G:
        raise ValueError(f"the block has {G} KV heads, the cache {cache.positions.shape[0]}")
    if m != block.clock.block or m < 1 or block.clock.seen < m:
        raise ValueError(f"{block.clock} does not fit a block of {m} tokens")
    if block.clock.seen - m < block.clock.prompt < block.clock.seen:
        raise ValueError("a block must not hold both prompt and generated tokens")
    for name in ("queries", "keys", "values"):
        if not np.isfinite(getattr(block, name)).all():
            raise ValueError(f"{name} must be finite, got NaN or infinity")


# --- schedules -----------------------------------------------------------------------------------


def crosses(before: int, after: int, period: int, offset: int = 0) -> bool:
    """Whether a count that went from ``before`` to ``after`` reached offset + k·period, k ≥ 1."""
    return (after - offset) // period > max(0, before - offset) // period


@dataclass(frozen=True)
class Never(Schedule):
    """Nothing is ever selected."""

    def due(self, clock: Clock) -> bool:
        """Never."""
        return False


@dataclass(frozen=True)
class EveryBlock(Schedule):
    """After every block of prefill and every ``decode_steps`` generated tokens."""

    decode_steps: int = 1

    def __post_init__(self) -> None:
        check_at_least(1, every=self.decode_steps)

    def due(self, clock: Clock) -> bool:
        """Always in prefill, lagged while decoding."""
        decoding = EveryDecode(self.decode_steps)
        return clock.prefilling or decoding.due(clock)


@dataclass(frozen=True)
class EveryDecode(Schedule):
    """Every ``steps`` generated tokens; never in prefill."""

    steps: int = 1

    def __post_init__(self) -> None:
        check_at_least(1, every=self.steps)

    def due(self, clock: Clock) -> bool:
        """At generated token W, 2W, …"""
        return crosses(clock.generated_before, clock.generated, self.steps)


@dataclass(frozen=True)
class AfterPrefill(Schedule):
    """Once, when the prompt is complete."""

    def due(self, clock: Clock) -> bool:
        """At the last block of the prompt."""
        return clock.prefill_ends


@dataclass(frozen=True)
class AfterPrefillThenEverySeen(Schedule):
    """When the prompt is complete, then whenever the tokens seen reach a multiple of ``tokens``."""

    tokens: int

    def __post_init__(self) -> None:
        check_at_least(1, every=self.tokens)

    def due(self, clock: Clock) -> bool:
        """At the end of prefill and at multiples of ``tokens`` seen while decoding."""
        before = clock.seen - clock.block
        decoding = not clock.prefilling and crosses(before, clock.seen, self.tokens)
        return clock.prefill_ends or decoding


@dataclass(frozen=True)
class EveryGenerated(Schedule):
    """First at ``interval + selector`` generated tokens, then every ``interval``."""

    interval: int
    selector: int

    def __post_init__(self) -> None:
        check_at_least(1, interval=self.interval, selector=self.selector)
        if self.selector >= self.interval:
            raise ValueError(
                f"selector = {self.selector} must be smaller than interval = {self.interval}"
            )

    def due(self, clock: Clock) -> bool:
        """At P+R, 2P+R, … generated tokens."""
        return crosses(clock.generated_before, clock.generated, self.interval, self.selector)


# --- protection ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Nobody(Protect):
    """Every entry may leave."""

    def safe(self, seen: Observation) -> Bool[Array, "G n"]:
        """Nothing."""
        return np.zeros(seen.positions.shape, dtype=bool)


@dataclass(frozen=True)
class Edges(Protect):
    """The first ``sinks`` tokens of the text and the last ``recent`` entries."""

    sinks: int = 0
    recent: int = 0

    def __post_init__(self) -> None:
        check_at_least(0, sinks=self.sinks, recent=self.recent)

    def safe(self, seen: Observation) -> Bool[Array, "G n"]:
        """Positions below ``sinks`` and the ``recent`` newest entries."""
        n = seen.positions.shape[1]
        return (seen.positions < self.sinks) | (np.arange(n) >= n - self.recent)

    def count(self, prompt: int) -> int:
        """Sinks and recent entries."""
        return self.sinks + self.recent


@dataclass(frozen=True)
class PromptAndRecent(Protect):
    """All tokens of the prompt and the last ``recent`` entries."""

    recent: int = 0

    def __post_init__(self) -> None:
        check_at_least(0, recent=self.recent)

    def safe(self, seen: Observation) -> Bool[Array, "G n"]:
        """Positions inside the prompt and the ``recent`` newest entries."""
        n = seen.positions.shape[1]
        return (seen.positions < seen.clock.prompt) | (np.arange(n) >= n - self.recent)

    def count(self, prompt: int) -> int:
        """The prompt and the recent entries."""
        return prompt + self.recent


# --- budgets -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unlimited(Budget):
    """Everything stays."""

    def room(self, seen: Observation, safe: Bool[Array, "G n"]) -> int:
        """As many as there are."""
        return safe.shape[1]


@dataclass(frozen=True)
class Entries(Budget):
    """At most ``budget`` entries per KV head and layer."""

    budget: int

    def __post_init__(self) -> None:
        check_at_least(1, budget=self.budget)

    def room(self, seen: Observation, safe: Bool[Array, "G n"]) -> int:
        """What the safe entries leave of the budget."""
        protected = int(safe.sum(axis=-1).max())
        check_protected(self.budget, protected)
        return self.budget - protected

    def check(self, protect: Protect, prompt: int) -> None:
        """Raise ValueError if the protected entries alone exceed the budget."""
        check_protected(self.budget, protect.count(prompt))


# --- precision -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Full(Precision):
    """Everything that is kept stays at 16 bits."""

    def store(
        self,
        cache: LayerCache,
        seen: Observation,
        candidates: Bool[Array, "G n"],
        keep: Int[Array, "G kept"],
    ) -> tuple[LayerCache, Int[Array, "G stays"]]:
        """Change nothing."""
        return cache, keep


def check_protected(budget: int, protected: int) -> None:
    """Raise ValueError if the protected entries alone exceed the budget."""
    if protected > budget:
        raise ValueError(
            f"budget = {budget} must be at least the {protected} entries that are protected"
        )


def check_at_least(least: float, **arguments: float) -> None:
    """Raise ValueError naming the first argument that is below ``least``."""
    for name, value in arguments.items():
        if not value >= least:
            raise ValueError(f"{name} = {value} must be at least {least}")
