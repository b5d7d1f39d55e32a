"""Memory and time of serving a model under a policy: bytes and operations, and a roofline.

Every kernel takes the longer of moving its bytes and doing its arithmetic, at a stated share of the
hardware's peak, and every launch a fixed time to start. Sequences of a batch are at the same step.
Everything is counted for 16-bit weights on one device, without communication between devices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import floor

import numpy as np
from jaxtyping import Float, Int

from kvlab.reference.checks import check_at_least
from kvlab.reference.methods.caote import EvictionError
from kvlab.reference.notation import Array
from kvlab.reference.observation import Clock
from kvlab.reference.policy import Full, Policy
from kvlab.reference.simulator.occupancy import Occupancy, mean_of_layers, occupancies
from kvlab.reference.simulator.sizes import COUNTED_LAYERS, LAUNCHES, WIDE, Hardware, Shape
from kvlab.reference.simulator.work import ELEMENT, NUMBER, SLOT, Sizes, Work, rating, remembered
from kvlab.reference.slots import MOST_WAITING


@dataclass(frozen=True)
class Runtime:
    """How well the hardware is used.

    Raises:
        ValueError: if a figure is negative, or a share above 1.
    """

    bandwidth_share: float = 0.8
    """Share of the peak bandwidth that kernels reach."""
    flops_share: float = 0.6
    """Share of the peak arithmetic that matrix products reach."""
    start: float = 2.4e-6
    """Seconds that the device loses between two kernels: as an H200 did with H2O's CUDA graph."""
    host: float = 0.0
    """Seconds that the host takes to launch a kernel: a step never takes less than all its
    launches together. 0: recorded once and replayed, as with CUDA graphs."""
    passes: float = 1.0
    """How often a step moves the whole cache: 1 where attention reads it once."""
    memory_share: float = 0.9
    """Share of the memory that may be used."""

    def __post_init__(self) -> None:
        check_at_least(0, start=self.start, host=self.host, passes=self.passes)
        for name in ("bandwidth_share", "flops_share", "memory_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be above 0 and at most 1")


@dataclass(frozen=True)
class Kernel:
    """One kind of kernel in one step of decoding; arrays hold one number per generated token."""

    bytes: Float[Array, " steps"]
    flops: Float[Array, " steps"]
    launches: Float[Array, " steps"]
    """How often it runs in a layer."""

    def seconds(self, hardware: Hardware, runtime: Runtime) -> Float[Array, " steps"]:
        """Time on the device, once it has started."""
        moving = self.bytes / (hardware.bandwidth * runtime.bandwidth_share)
        computing = self.flops / (hardware.flops * runtime.flops_share)
        return np.maximum(moving, computing)


@dataclass(frozen=True)
class Plan:
    """One model under one policy on one device.

    Raises:
        ValueError: if a count is below 1, or the policy cannot work with such a prompt.
    """

    shape: Shape
    hardware: Hardware
    policy: Policy
    prompt: int
    generated: int
    batch: int = 1
    block_size: int | None = None
    runtime: Runtime = Runtime()
    triton: bool = True
    """Whether Triton's kernels attend, as on GPUs; without them, queries wait for a decision."""

    def __post_init__(self) -> None:
        check_at_least(1, prompt=self.prompt, generated=self.generated, batch=self.batch)
        check_at_least(1, block_size=self.block_size)
        self.policy.check(self.prompt)

    @cached_property
    def layers(self) -> list[Occupancy]:
        """Entries over time: one for each layer, or one for all."""
        given = self.prompt, self.generated, self.block_size, self.shape.head_dim
        return occupancies(self.policy, *given, self.shape.layers)

    @cached_property
    def held(self) -> Occupancy:
        """Entries over time, mean over the layers."""
        return mean_of_layers(self.layers)

    # --- memory ---

    @cached_property
    def sequence(self) -> tuple[float, float, float]:
        """Bytes of cache and state of one sequence that writes, and what reading its prompt adds.

        The state is positions and what the score remembers. Prompts are read one after another, so
        that only one sequence at a time takes the last. Layers decide one after another: while one
        layer still holds the entries that a step attended to, the other layers hold the entries
        that are left after their decisions.
        """
        held, shape = self.held, self.shape
        arriving = np.max([each.attended - each.entries for each in self.layers], axis=0)
        after = held.elements(shape.head_dim) / 8
        cache = shape.layers * after + arriving * WIDE * 2 * shape.head_dim
        columns = NUMBER * (1 + len(self.policy.score.columns))
        state = columns * (shape.layers * held.entries + arriving)
        reading = float((cache + state)[: self.prompt].max())
        cached, known = (float(each[self.prompt :].max()) for each in (cache, state))
        more = max(0.0, reading - cached - known)
        return shape.kv_heads * cached, shape.kv_heads * known, shape.kv_heads * more

    @cached_property
    def sequence_bytes(self) -> float:
        """Bytes that one sequence that writes has allocated at its fullest, between two steps.

        That is what `CompressedCache.memory` says: the slots of `kvlab.reference.slots`, whether
        entries use them or not, and what the score remembers of entries and of the token stream.
        """
        shape, score, policy = self.shape, self.policy.score, self.policy
        sizes = Sizes(0, shape.group, shape.head_dim, self.prompt)
        clocks = [Clock(self.prompt + n, 1, self.prompt) for n in range(1, self.generated + 1)]
        ended = [policy.schedule.ended(clock) for clock in clocks]
        slots = self.held.slots[self.prompt :]
        # the others only help to compute these, and the cache has none of them
        kept = sum(each.compared for each in score.columns.values())
        columns = np.where(ended, 1, 1 + kept)
        at = zip(clocks, ended, strict=True)
        stream = [0 if end else remembered(score, sizes, clock.seen) for clock, end in at]
        waiting = self._waiting(clocks) * shape.group * shape.head_dim
        known = NUMBER * (slots * columns + np.array(stream) + waiting)
        stored, numbered = (x[self.prompt :] for x in (self.held.stored, self.held.numbered))
        cache = stored * shape.head_dim / 8 + SLOT * numbered
        return float(shape.kv_heads * shape.layers * (cache + known).max())

    def _waiting(self, clocks: Sequence[Clock]) -> Int[Array, " steps"]:
        """Return how many queries wait after each token until the score observes them together."""
        policy, found = self.policy, np.zeros(len(clocks), dtype=np.int64)
        early = policy.evict_before_attend or policy.reposition
        may = policy.score.needs.may_wait and not isinstance(policy.score, EvictionError)
        if self.triton or early or not may or not isinstance(policy.precision, Full):
            return found
        for step, clock in enumerate(clocks):
            if not policy.schedule.due(clock) and not policy.schedule.ended(clock):
                found[step] = (found[step - 1] + 1 if step else 1) % MOST_WAITING
        return found

    @property
    def logical_bytes(self) -> float:
        """Bytes of the entries of one sequence that writes, and of what is known of them."""
        return sum(self.sequence[:2])

    @property
    def _shared_bytes(self) -> float:
        """Weights, and what one prompt at a time takes: entries and activations of its block.

        The activations are those of transformers, as the peaks on an H200 show.
        """
        shape, tokens = self.shape, min(self.block_size or self.prompt, self.prompt)
        activations = WIDE * tokens * (3 * shape.intermediate + 4 * shape.hidden)
        return shape.weight_bytes + self.sequence[2] + activations

    @property
    def _bytes_each(self) -> float:
        """Cache, state and logits of one sequence."""
        return self.sequence_bytes + NUMBER * self.shape.vocabulary

    @property
    def memory(self) -> float:
        """Bytes at the fullest moment."""
        return self._shared_bytes + self.batch * self._bytes_each

    @property
    def largest_batch(self) -> int:
        """Sequences that fit; 0 if the weights alone, or one sequence, do not."""
        room = self.hardware.memory * self.runtime.memory_share - self._shared_bytes
        return max(0, floor(room / self._bytes_each))

    # --- time ---

    @cached_property
    def kernels(self) -> Mapping[str, Kernel]:
        """The kernels of one step of decoding, over the generated tokens."""
        shape, b, L = self.shape, self.batch, self.shape.layers
        attended = self.held.attended[self.prompt :]
        before = self.held.bits[self.prompt - 1 : -1]
        stored = attended * before * 2 * shape.head_dim / 8 * shape.kv_heads
        looked_at = shape.heads * shape.head_dim * attended
        head = shape.vocabulary * shape.hidden
        numbers = {
            "projections": (L * WIDE * shape.projections, 2 * b * L * shape.projections, 1),
            "feed-forward": (L * WIDE * shape.feed_forward, 2 * b * L * shape.feed_forward, 1),
            "attention": (self.runtime.passes * b * L * stored, 4 * b * L * looked_at, 1),
            "pointwise": (b * L * 12 * WIDE * shape.hidden, 0, 1),
            "vocabulary": (WIDE * head, 2 * b * head, 1),
        }
        for name, work in self.policy_work.items():
            heads = b * L * shape.kv_heads
            numbers[name] = (heads * work.bytes, heads * work.flops, work.launches)
        return {
            name: Kernel(*(np.broadcast_to(np.asarray(x, float), self.generated) for x in each))
            for name, each in numbers.items()
        }

    @property
    def cache_share(self) -> float:
        """Share of the cache in the bytes that the last step has to read: weights and cache."""
        weights = ("projections", "feed-forward", "vocabulary")
        read = [float(self.kernels[name].bytes[-1]) for name in ("attention", *weights)]
        return read[0] / sum(read)

    @property
    def step_seconds(self) -> Float[Array, " steps"]:
        """Time of every step of decoding."""
        device = np.sum([k.seconds(self.hardware, self.runtime) for k in self.kernels.values()], 0)
        device = device + self.launches * self.runtime.start
        return np.maximum(device, self.launches * self.runtime.host)

    @property
    def launches(self) -> Float[Array, " steps"]:
        """Launches of every step, as `LAUNCHES` says.

        A method that was not counted has those of the full cache, and one per layer for each kind
        of the policy's own kernels.
        """
        counted = LAUNCHES.get(self.policy.name.partition("@")[0])
        own = sum(each.launches for each in self.policy_work.values())
        found = LAUNCHES["full"] + COUNTED_LAYERS * own if counted is None else counted
        return np.broadcast_to(found * self.shape.layers / COUNTED_LAYERS, self.generated)

    @property
    def prefill_seconds(self) -> float:
        """Time of the prompts of the whole batch."""
        shape, hardware, runtime = self.shape, self.hardware, self.runtime
        blocks = -(-self.prompt // (self.block_size or self.prompt))
        layers = shape.layers * (shape.projections + shape.feed_forward)
        size = self.block_size or self.prompt
        last_of_block = np.minimum((np.arange(self.prompt) // size + 1) * size, self.prompt) - 1
        later = last_of_block - np.arange(self.prompt)
        looked_at = float((self.held.attended[: self.prompt] - later).sum())
        attention = 4 * shape.layers * shape.heads * shape.head_dim * looked_at
        flops = self.batch * (2 * layers * self.prompt + attention)
        moved = blocks * WIDE * layers
        return max(
            flops / (hardware.flops * runtime.flops_share),
            moved / (hardware.bandwidth * runtime.bandwidth_share),
        )

    @property
    def decode_seconds(self) -> float:
        """Time of all generated tokens."""
        return float(self.step_seconds.sum())

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens of the whole batch per second, the prompts' time included."""
        return self.batch * self.generated / (self.prefill_seconds + self.decode_seconds)

    @property
    def eviction_share(self) -> float:
        """Share of the decoding time that the policy's own bytes, operations and launches take."""
        own = [self.kernels[name].seconds(self.hardware, self.runtime) for name in self.policy_work]
        more = self.launches - LAUNCHES["full"] * self.shape.layers / COUNTED_LAYERS
        return float((np.sum(own) + np.sum(more) * self.runtime.start) / np.sum(self.step_seconds))

    def with_batch(self, batch: int) -> "Plan":
        """Return the same plan for another number of sequences."""
        other = replace(self, batch=batch)
        vars(other).update(layers=self.layers, held=self.held)  # what takes the time
        return other

    @property
    def policy_work(self) -> Mapping[str, Kernel]:
        """Work of the policy for one KV head of one sequence, over the generated tokens; mean over
        the layers.
        """
        found = [self._work_in(each) for each in self.layers]
        kernels = {name: Kernel(*np.mean([x[name] for x in found], axis=0)) for name in found[0]}
        return {name: kernel for name, kernel in kernels.items() if kernel.bytes.any()}

    def _work_in(self, held: Occupancy) -> Mapping[str, Float[Array, "3 steps"]]:
        """Bytes, operations and launches of the policy's kernels in one layer."""
        score, written = self.policy.score, slice(self.prompt, None)
        n, kept, coded = (x[written] for x in (held.attended, held.entries, held.quantised))
        ranked, several = held.ranked[written], n - kept > 1
        sizes = Sizes(n, self.shape.group, self.shape.head_dim, self.prompt)
        # A score that has columns reads probabilities, and reads and writes its columns.
        noted = n * (sizes.rho + 2 * len(score.columns)) if score.columns else 0 * n
        row = 2 * sizes.d * ELEMENT + NUMBER * (1 + len(score.columns))
        # Entries are read wide, their range is found, and they are rounded; codes and scales are
        # written at half of the wide bytes at most.
        elements = 2 * coded * sizes.d
        # One entry to evict is found by looking through all; several by sorting.
        compared = np.where(kept != n - 1, n * np.log2(n), n)
        work = {
            "observe": (n > 0, Work(NUMBER * noted, noted)),
            "score": (ranked, rating(score, sizes)),
            "select": (ranked, Work(2 * NUMBER * n, compared)),
            "move": (several, Work(2 * kept * row)),
            "quantise": (coded > 0, Work(1.5 * ELEMENT * elements, 6 * elements)),
        }
        return {
            name: np.stack([1.0 * done * work.bytes, 1.0 * done * work.flops, 1.0 * done])
            for name, (done, work) in work.items()
        }
