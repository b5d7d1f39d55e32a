"""A whole cache in a whole model: tokens in, logits and the entries of every layer out.

The model is a Llama in a Hugging Face directory, with the variants of attention that a case asks
for: sliding windows in every second layer, learned sinks, softcap. Every sequence of a batch is
computed alone, without padding; an implementation that pads has to come to the same numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from kvlab.reference.attention import group_heads, logits, softmax, visible, weighted_values
from kvlab.reference.cache import LayerCache
from kvlab.reference.conformance.case import Expected, Inputs, Parameters, Tolerance
from kvlab.reference.conformance.expecting import at_most, exact
from kvlab.reference.conformance.operation import Operation, described_operation
from kvlab.reference.conformance.stages import policy_of
from kvlab.reference.notation import Array
from kvlab.reference.observation import Clock
from kvlab.reference.policy import Policy
from kvlab.reference.quantization import FULL_BITS
from kvlab.reference.step import Block, empty_cache, step
from kvlab.reference.streams import Source
from kvlab.reference.transformer import Transformer

MODEL = Path(__file__).parents[1] / "models" / "reasoner"
"""The embedded model: ``config.json`` and ``model.safetensors``, as Hugging Face stores them."""

LOGIT_ERROR = 2e-4
"""Tolerance of a logit, relative to the largest one: ten times what float32 was seen to lose."""

CODED_LOGIT_ERROR = 2e-3
"""The same where entries are stored as codes, one of which may be rounded the other way."""

NUDGE = 5e-6
"""Relative noise that must not change a published stream's result: as much as float32 loses."""

NUDGES = 4

SLACK = 2
"""How many times the entries' own bytes a cache may allocate: buffers that grow are not full."""

FLOAT32_PER_16_BITS = 2
"""The reference counts vectors at 16 bits; an implementation may hold them in float32."""


@lru_cache(maxsize=2)
def model_in(directory: str) -> Transformer:
    """Load a model once."""
    return Transformer.from_directory(directory)


@dataclass(frozen=True)
class Sequence:
    """The state of one sequence between two blocks."""

    caches: tuple[LayerCache, ...]
    prompt: int
    seen: int = 0
    most_bytes: int = 0
    """Largest number of bytes of all layers' vectors so far, before an eviction, at 16 bits unless
    they are quantised."""

    def held(self, tokens: int) -> Bool[Array, "layers G t"]:
        """Mark the positions that every layer and head holds."""
        marks = np.zeros((len(self.caches), len(self.caches[0].positions), tokens), dtype=bool)
        for layer, cache in enumerate(self.caches):
            np.put_along_axis(marks[layer], cache.positions, True, axis=-1)
        return marks


@dataclass(frozen=True)
class Runner:
    """A model under a policy, with the variants of attention that a case asks for."""

    model: Transformer
    policy: Policy
    softcap: float | None = None
    window: int | None = None
    """Newest positions that layers 1, 3, 5, … see, the query's own included."""
    sinks: Float[Array, "layers H"] | None = None
    """Learned logits that take part in each head's softmax and stand for no entry."""
    noise: float = 0.0
    """Relative noise on queries, keys and values: see `is_steady`."""
    source: Any = field(default=None, repr=False)

    def slides(self, layer: int) -> bool:
        """Whether a layer sees a window alone; no policy decides about its entries."""
        return self.window is not None and layer % 2 == 1

    def block(
        self, sequence: Sequence, tokens: Int[Array, " m"]
    ) -> tuple[Float[Array, " vocab"], Sequence]:
        """Feed a block of tokens; return the logits after the last one."""
        clock = Clock(sequence.seen + len(tokens), len(tokens), sequence.prompt)
        caches, held = list(sequence.caches), 0

        def attend(layer: int, queries: Array, keys: Array, values: Array) -> Array:
            nonlocal held
            q, k, v = (self._disturbed(x) for x in (queries, keys, values))
            grown = caches[layer].append(k, v, clock.positions, self.policy.score.columns)
            held += grown.nbytes
            grouped = group_heads(q, len(k))
            if self.sinks is not None or self.slides(layer):
                caches[layer] = grown
                output = self._dense(layer, grouped, grown, clock.positions)
            else:
                unknown = np.full(clock.seen, np.nan)
                block = Block(clock, layer, grouped, k, v, unknown, self.model.rotate, self.softcap)
                result = step(self.policy, caches[layer], block)
                caches[layer], output = result.cache, result.output
            return output.reshape(queries.shape)

        after = self.model.forward(tokens, sequence.seen, attend)[-1]
        most = max(held, sequence.most_bytes)
        return after, Sequence(tuple(caches), sequence.prompt, clock.seen, most)

    def _dense(
        self,
        layer: int,
        queries: Float[Array, "G rho m d"],
        cache: LayerCache,
        positions: Int[Array, " m"],
    ) -> Float[Array, "G rho m d"]:
        """Attention to all entries, or to those in the window."""
        mask = visible(positions, cache.positions)
        if self.window is not None and self.slides(layer):
            mask &= cache.positions[:, None, None] > positions[:, None] - self.window
        products = logits(queries, cache.keys.vectors, self.softcap)
        if self.sinks is None:
            return weighted_values(softmax(products, mask), cache.values.vectors)
        column = self.sinks[layer].reshape(*queries.shape[:2], 1, 1)
        columns = np.broadcast_to(column, (*products.shape[:3], 1))
        seen = np.broadcast_to(mask, (*mask.shape[:3], products.shape[3]))
        always = np.ones((*mask.shape[:3], 1), dtype=bool)
        weights = softmax(
            np.concatenate([products, columns], axis=-1), np.concatenate([seen, always], axis=-1)
        )
        return weighted_values(weights[..., :-1], cache.values.vectors)

    def _disturbed(self, x: Array) -> Array:
        return x * (1 + self.noise * self.source.normal(*x.shape)) if self.noise else x


@dataclass(frozen=True)
class Replayed:
    """What comes out of a stream of calls."""

    logits: Float[Array, "k N vocab"]
    kept: Bool[Array, "k N layers G t"]
    nbytes: Int[Array, " k"]
    """Most that was ever held: buffers may be allocated before they are needed."""
    allowed: float
    """Absolute tolerance of a logit."""


def runner_of(inputs: Inputs, parameters: Parameters, method: str | None) -> Runner:
    """Return the model and policy of a case.

    Raises:
        ValueError: if the case asks for learned sinks under a policy that evicts.
    """
    policy, sinks = policy_of(method, parameters), inputs.get("learned_sinks")
    if sinks is not None and policy.name != "full":
        raise ValueError(f"learned sinks are defined for the method full, got {method!r}")
    softcap, window = parameters["softcap"], parameters["sliding_window"]
    return Runner(model_in(parameters["model"]), policy, softcap, window, sinks)


def replay(runner: Runner, inputs: Inputs, parameters: Parameters) -> Replayed:
    """Feed every sequence of a batch call by call; rows change places before a call."""
    tokens, padding, calls = inputs["tokens"], inputs["padding"], inputs["calls"]
    config = runner.model.config
    empty = (empty_cache(runner.policy, config.kv_heads, config.head_dim),) * config.layers
    sequences = [Sequence(empty, int(calls[0] - before)) for before in padding]
    after = np.zeros((len(calls), len(tokens), config.vocab_size))
    held = []
    for number, last in enumerate(np.cumsum(calls)):
        sequences = [sequences[row] for row in inputs["continues"][number]]
        first = last - calls[number]
        size = parameters["block_size"] or last - first
        for row, start in product(range(len(tokens)), range(first, last, size)):
            block = tokens[row, max(start, padding[row]) : min(start + size, last)]
            if len(block):  # the first blocks may be padding alone
                after[number, row], sequences[row] = runner.block(sequences[row], block)
        held.append([each.held(tokens.shape[1]) for each in sequences])
    quantised = any((c.keys.bits < FULL_BITS).any() for each in sequences for c in each.caches)
    error = CODED_LOGIT_ERROR if quantised else LOGIT_ERROR
    most = np.full(len(calls), sum(each.most_bytes for each in sequences))
    return Replayed(after, np.array(held), most, float(error * np.abs(after).max()))


def is_steady(inputs: Inputs, parameters: Parameters, method: str | None) -> bool:
    """Whether a stream ends the same if queries, keys and values are a little off in every layer.

    So no score lies near its threshold, and no element near the border of two codes.
    """
    runner = runner_of(inputs, parameters, method)
    expected = replay(runner, inputs, parameters)
    for number in range(NUDGES):
        source = Source("nudge of a whole cache", number)
        found = replay(replace(runner, noise=NUDGE, source=source), inputs, parameters)
        if not np.array_equal(found.kept, expected.kept):
            return False
        if np.abs(found.logits - expected.logits).max() > expected.allowed / 2:
            return False
    return True


def _expect_whole_cache(inputs: Inputs, parameters: Parameters, method: str | None):
    """Expect logits, kept positions, and a bound of the bytes."""
    runner = runner_of(inputs, parameters, method)
    found = replay(runner, inputs, parameters)
    decided = np.ones(found.kept.shape, dtype=bool)
    for layer in range(found.kept.shape[2]):
        decided[:, :, layer] = not runner.slides(layer)
    return {
        "logits": Expected("numbers", found.logits, {"float32": Tolerance(found.allowed, 0.0)}),
        "kept": exact(found.kept, decided),
        "bytes": at_most(found.nbytes * FLOAT32_PER_16_BITS * SLACK),
    }


OPERATIONS: Mapping[str, Operation] = {
    "whole_cache": described_operation("whole_cache", _expect_whole_cache)
}
"""The one step of a method that takes a whole model."""
