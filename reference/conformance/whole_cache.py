"""A whole cache in a whole model: tokens in, logits and the entries of every layer out.

The model is a Llama in a Hugging Face directory, with the variants of attention that a case asks
for: sliding windows in every second layer, learned sinks, softcap. Every sequence of a batch is
computed alone, without padding, and its blocks are counted from its own first token; an
implementation that pads has to come to the same numbers.
"""

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int

from kvlab.reference import methods
from kvlab.reference.attention import group_heads, logits, softmax, visible, weighted_values
from kvlab.reference.cache import LayerCache
from kvlab.reference.conformance.expecting import exact
from kvlab.reference.conformance.operation import answers
from kvlab.reference.conformance.vectors import Case, Expected
from kvlab.reference.notation import Array
from kvlab.reference.observation import Clock
from kvlab.reference.policy import Policy
from kvlab.reference.quantization import FULL_BITS
from kvlab.reference.step import Block, empty_cache, step
from kvlab.reference.transformer import Transformer

LOGIT_ERROR = 2e-4
"""Tolerance of a logit, relative to the largest one: ten times what float32 was seen to lose."""

CODED_LOGIT_ERROR = 2e-3
"""The same where entries are stored as codes, one of which may be rounded the other way."""

SLACK = 2
"""How many times the entries' own bytes a cache may allocate: buffers that grow are not full."""

FEWEST = 8
"""Entries of a head that count at least: a buffer of few entries has several free slots, too."""

FLOAT32_PER_16_BITS = 2
"""The reference counts vectors at 16 bits; an implementation may hold them in float32."""


@lru_cache(maxsize=2)
def model_in(directory: str) -> Transformer:
    """Load a model once."""
    return Transformer.from_directory(directory)


def head_dim(directory: str) -> int:
    """Return the channels of a model that is not loaded."""
    return json.loads(Path(directory, "config.json").read_text(encoding="utf-8"))["head_dim"]


@dataclass
class Sequence:
    """One sequence on its way through a model under a policy."""

    model: Transformer
    policy: Policy
    softcap: float | None
    window: int | None
    """Newest positions that layers 1, 3, 5, … see, the query's own included."""
    sinks: Float[Array, "layers H"] | None
    """Learned logits that take part in each head's softmax and stand for no entry."""
    prompt: int
    caches: tuple[LayerCache, ...]
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

    def feed(self, tokens: Int[Array, " m"]) -> Float[Array, " vocab"]:
        """Feed a block of tokens; return the logits after the last one."""
        self.seen += len(tokens)
        clock = Clock(self.seen, len(tokens), self.prompt)
        caches, held = [*self.caches], []

        def attend(layer: int, queries: Array, keys: Array, values: Array, _: Array) -> Array:
            columns = self.policy.score.columns
            grown = caches[layer].append(keys, values, clock.positions, columns)
            held.append(grown.nbytes)
            grouped = group_heads(queries, len(keys))
            if self.sinks is not None or slides(self.window, layer):
                caches[layer] = grown
                output = self._dense(layer, grouped, grown, clock.positions)
            else:
                unknown, rotate = np.full(clock.seen, np.nan), self.model.rotate
                given = clock, layer, grouped, keys, values, unknown, rotate, self.softcap
                block = Block(*given, layers=len(caches))
                result = step(self.policy, caches[layer], block)
                caches[layer], output = result.cache, result.output
            return output.reshape(queries.shape)

        after = self.model.forward(tokens, clock.seen - clock.block, attend)[-1]
        self.caches, self.most_bytes = tuple(caches), max(sum(held), self.most_bytes)
        return after

    def _dense(
        self,
        layer: int,
        queries: Float[Array, "G rho m d"],
        cache: LayerCache,
        positions: Int[Array, " m"],
    ) -> Float[Array, "G rho m d"]:
        """Attention to all entries, or to those in the window, and to the sink."""
        mask = visible(positions, cache.positions)
        if self.window is not None and slides(self.window, layer):
            mask &= cache.positions[:, None, None] > positions[:, None] - self.window
        products = logits(queries, cache.keys.vectors, self.softcap)
        if self.sinks is not None:
            sink = self.sinks[layer].reshape(*queries.shape[:2], 1, 1)
            column = np.broadcast_to(sink, (*products.shape[:3], 1))
            products = np.concatenate([products, column], axis=-1)
            mask = np.pad(mask, [(0, 0)] * 3 + [(0, 1)], constant_values=True)
        weights = softmax(products, np.broadcast_to(mask, products.shape))
        return weighted_values(weights[..., : len(cache)], cache.values.vectors)


def slides(window: int | None, layer: int) -> bool:
    """Whether a layer sees a window alone; no policy decides about its entries."""
    return window is not None and layer % 2 == 1


@answers("whole_cache")
def whole_cache(method, budget, model, tokens, padding, calls, continues, block_size, **given):
    """Expect logits, kept positions, and a bound of the bytes.

    Every sequence is fed call by call; rows change places before a call.
    """
    policy, loaded = methods.get(method, budget), model_in(model)
    config = loaded.config
    caches = (empty_cache(policy, config.kv_heads, config.head_dim),) * config.layers
    window, sinks = given["sliding_window"], given.get("learned_sinks")
    fixed = (loaded, policy, given["softcap"], window, sinks)
    rows = [Sequence(*fixed, int(calls[0] - before), caches) for before in padding]
    after, held = np.zeros((len(calls), len(tokens), config.vocab_size)), []
    for number, last in enumerate(np.cumsum(calls)):
        rows = [replace(rows[row]) for row in continues[number]]
        first = last - calls[number]
        size = block_size or last - first
        for row, before in enumerate(padding):
            for start in range(max(first, before), last, size):
                after[number, row] = rows[row].feed(tokens[row, start : min(start + size, last)])
        held.append([each.held(tokens.shape[1]) for each in rows])
    coded = any((cache.keys.bits < FULL_BITS).any() for each in rows for cache in each.caches)
    allowed = (CODED_LOGIT_ERROR if coded else LOGIT_ERROR) * np.abs(after).max()
    decided = np.ones(np.shape(held), dtype=bool)
    for layer in range(config.layers):
        decided[:, :, layer] = not slides(window, layer)
    few = (sum(x.nbytes * FEWEST // len(x) for x in each.caches) for each in rows)
    most = sum(map(max, few, (each.most_bytes for each in rows))) * FLOAT32_PER_16_BITS * SLACK
    return {
        "logits": Expected("numbers", after, {"float32": (float(allowed), 0.0)}),
        "kept": exact(np.array(held), decided),
        "bytes": Expected("at_most", np.full(len(calls), most)),
    }


def first_calls(case: Case, count: int) -> Case:
    """Return a case of the first calls alone; nothing is decided anew."""
    calls = case.inputs["calls"][:count]
    t = int(calls.sum())
    inputs = {
        **case.inputs,
        "calls": calls,
        "continues": case.inputs["continues"][:count],
        "tokens": case.inputs["tokens"][:, :t],
    }
    expected = {}
    for name, each in case.expected.items():
        parts = [each.value[:count], None if each.where is None else each.where[:count]]
        if name == "kept":
            parts = [None if part is None else part[..., :t] for part in parts]
        expected[name] = replace(each, value=parts[0], where=parts[1])
    return replace(case, name="", inputs=inputs, expected=expected)
