"""Makes the test vectors of whole caches: groups of token streams."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from kvlab.reference.conformance import stages, whole_cache
from kvlab.reference.conformance.case import Case
from kvlab.reference.conformance.storing import UncertainError
from kvlab.reference.conformance.targets import target_of
from kvlab.reference.notation import Array
from kvlab.reference.streams import Source

ATTEMPTS = 60
"""Streams that are drawn at most until one is steady."""

GRID = 2.0**16
"""Expected logits are rounded to multiples of 1/GRID: every machine stores the same."""

UNCERTAIN = 1e-8
"""Distance to the middle between two multiples, in multiples, within which the rounding of a
machine may decide."""


@dataclass(frozen=True)
class Stream:
    """A batch of token streams under a method, before its tokens are drawn."""

    method: str
    budget: int | None = None
    calls: tuple[int, ...] = (24, *[1] * 12)
    padding: tuple[int, ...] = (0,)
    block_size: int | None = None
    softcap: float | None = None
    sliding_window: int | None = None
    learned_sinks: bool = False
    beams: bool = False
    """Whether rows change places before every third call."""
    tokens: str = ""
    """Streams with the same name have the same tokens."""

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the case."""
        return {
            **stages.options_of(self.method),
            "model": str(whole_cache.MODEL),
            "budget": self.budget,
            "block_size": self.block_size,
            "softcap": self.softcap,
            "sliding_window": self.sliding_window,
        }

    def inputs(self, source: Source) -> dict[str, Array]:
        """Draw the inputs of the case."""
        config = whole_cache.model_in(str(whole_cache.MODEL)).config
        N, t, k = len(self.padding), sum(self.calls), len(self.calls)
        tokens, padding = source.integers(1, config.vocab_size, N, t), np.array(self.padding)
        continues = np.tile(np.arange(N), (k, 1))
        if self.beams:
            tokens[:, : self.calls[0]] = tokens[0, : self.calls[0]]
            continues[2::3] = source.integers(0, N, len(continues[2::3]), N)
        drawn = {
            "tokens": np.where(np.arange(t) >= padding[:, None], tokens, 0),
            "padding": padding,
            "calls": np.array(self.calls),
            "continues": continues,
        }
        if self.learned_sinks:
            drawn["learned_sinks"] = source.normal(config.layers, config.heads)
        return drawn


CHUNKS = (None, 1, 5, 8, 23)
LONG = (16, *[1] * 56)
TURNS = (20, *[1] * 6, 9, *[1] * 6, 14, 1, 1)
UNEQUAL = (0, 3, 11)
H2O, TOVA, LLM = "h2o@recent=4", "tova", "streaming_llm@sinks=2"
SNAPKV = "snapkv@window=4,kernel=3"
LAZY = "lazy_eviction@window=4,threshold=0.05"

FIRST: Mapping[str, tuple[Stream, ...]] = {
    "cache_plain": (Stream("full"), Stream(LLM, 12), Stream(H2O, 12), Stream(TOVA, 12)),
    "cache_budget_ge_length": (Stream(H2O, 36), Stream(LLM, 36), Stream(SNAPKV, 40)),
    "cache_prefix_evicted": (
        Stream("streaming_llm@sinks=0", 12),
        Stream("streaming_llm@sinks=0", 8, block_size=6),
        Stream("streaming_llm@sinks=4", 12, calls=(40, *[1] * 8)),
    ),
    "cache_chunks": (
        *(Stream("full", block_size=size, tokens="chunks") for size in CHUNKS),
        *(Stream(SNAPKV, 10, block_size=size, tokens="chunks") for size in CHUNKS),
        Stream(H2O, 12, block_size=5),
        Stream(TOVA, 12, block_size=7),
    ),
    "cache_second_turn": (
        Stream("full", calls=TURNS),
        *(Stream(method, 14, calls=TURNS) for method in (H2O, LLM, SNAPKV, LAZY)),
        Stream(TOVA, 14, calls=TURNS, block_size=4),
    ),
    "cache_left_padding": (
        Stream("full", padding=UNEQUAL),
        *(Stream(method, 10, padding=UNEQUAL) for method in (H2O, LLM, SNAPKV)),
        Stream(TOVA, 10, padding=(5, 0), block_size=8, calls=(21, *[1] * 8)),
    ),
    "cache_unequal_turns": (Stream(H2O, 10, calls=TURNS, padding=UNEQUAL),),
    "cache_beams": (
        Stream("full", padding=(0, 0, 0), beams=True),
        *(Stream(method, 12, padding=(0, 0, 0), beams=True) for method in (H2O, TOVA)),
    ),
    "cache_in_place": tuple(
        Stream(method, 10, calls=LONG) for method in (LLM, H2O, TOVA, "caote:h2o@recent=4", LAZY)
    ),
    "cache_long": (
        Stream("full", calls=(280, 1, 1)),
        Stream(LLM, 40, calls=(270, 1, 1, 1), block_size=64),
        Stream(H2O, 130, calls=(262, 1, 1), block_size=130),
    ),
    "cache_budgets": tuple(
        Stream(method, budget, tokens="budgets") for method in (H2O, LLM) for budget in (8, 12, 20)
    ),
    "cache_sliding_layers": (
        Stream("full", sliding_window=8),
        Stream(LLM, 12, sliding_window=8),
        Stream(H2O, 12, sliding_window=8, block_size=5),
        Stream("full", sliding_window=8, calls=TURNS, padding=UNEQUAL),
    ),
    "cache_learned_sinks": (
        Stream("full", learned_sinks=True),
        Stream("full", learned_sinks=True, sliding_window=8, block_size=7),
    ),
    "cache_softcap": (Stream("full", softcap=3.0), Stream(H2O, 12, softcap=3.0)),
    "cache_quantised": (
        Stream("kivi@key_bits=2,value_bits=2,group=8,residual=16"),
        Stream("kivi@key_bits=4,value_bits=4,group=16,residual=16", calls=(20, *[1] * 4)),
        Stream("kivi@key_bits=4,value_bits=2,group=8,residual=8", calls=(18, 1, 1, 5, 1)),
        Stream("kivi@key_bits=2,value_bits=2,group=8,residual=8", block_size=10),
        Stream("kivi@key_bits=4,value_bits=4,group=8,residual=8", calls=(17, 1, 1), padding=(0, 5)),
    ),
}
"""Groups of the specification 1.0, by name."""

PADDED: Mapping[str, Any] = {
    "calls": (18, 1, 1, 6, 1, 1),
    "padding": (0, 11, 8),
    "block_size": 4,
}
"""Two rows begin with blocks of padding alone; in one, the padding ends inside a block."""

SECOND: Mapping[str, tuple[Stream, ...]] = {
    "cache_intervals": (
        Stream("h2o@recent=4,every=5", 12, calls=(16, 1, 1, 1, 9, 1, 1, 6, 1, 1, 1)),
        Stream("streaming_llm@sinks=2,every=16", 12, calls=(16, 1, 1, 9, *[1] * 7)),
        Stream("tova@every=4", 12, calls=(14, 1, 1, 10, 1, 1, 1, 1), block_size=3),
        Stream("h2o@recent=4,every=6", 10, **{**PADDED, "calls": (18, 1, 1, 7, 1, 1, 5, 1, 1)}),
    ),
    "cache_padded_blocks": (
        Stream("full", **PADDED),
        *(Stream(method, 6, **PADDED) for method in (H2O, LLM, TOVA, SNAPKV, LAZY)),
    ),
    "cache_budget_in_block": (
        *(Stream(each, 12, calls=(8, 1, 1, 9, 1, 1, 1)) for each in (H2O, LLM, TOVA, LAZY)),
        *(Stream(each, 12, calls=(14, 1, 1), block_size=5) for each in (H2O, LLM, TOVA)),
        Stream("streaming_llm@sinks=2,every=3", 12, calls=(8, 1, 1, 20, 1, 1), block_size=7),
    ),
    "cache_softcap_sinks": (
        Stream("full", softcap=3.0, learned_sinks=True, calls=(16, 1, 1, 5, 1)),
        Stream("full", softcap=1.5, learned_sinks=True, sliding_window=6, **PADDED),
    ),
    "cache_pages": (
        Stream("h2o@recent=4,page=4", 16),
        Stream("h2o@recent=4,page=4,page_score=max", 16, block_size=5),
        Stream("tova@page=4", 12, calls=LONG),
        Stream("h2o@recent=4,page=4", 16, calls=TURNS, padding=UNEQUAL),
    ),
    "cache_shared_heads": (
        Stream("h2o@recent=4,kv_heads=layer", 12),
        Stream("h2o@recent=4,kv_heads=union", 12, padding=UNEQUAL),
        Stream("h2o@recent=4,kv_heads=union,page=4", 16, calls=LONG),
    ),
    "cache_codes": (
        Stream("full@precision=fp8", block_size=8),
        Stream("full@precision=fp8_head", calls=(14, 1, 1, 5, 1), padding=(0, 3)),
        Stream("full@precision=fp8_e5m2", block_size=6),
        Stream("full@precision=nvfp4", block_size=8, padding=(0, 0, 0), beams=True),
        Stream("h2o@recent=4,precision=fp8", 12),
        Stream("full@precision=turboquant", block_size=8),
        Stream("full@precision=turboquant_prod_3bit", calls=(20, *[1] * 4)),
        Stream("h2o@recent=4,page=4,precision=turboquant_2bit", 16),
    ),
}
"""Groups that the specification 1.1 added."""

GROUPS: Mapping[str, Mapping[str, tuple[Stream, ...]]] = {"1.0": FIRST, "1.1": SECOND}
"""Groups by the specification that added them."""


def cache_cases(specification: str) -> Iterator[Case]:
    """Build the cases of whole caches that a version of the specification added.

    Raises:
        RuntimeError: if no stream of a group is steady.
        UncertainError: if a logit could be stored in two ways.
    """
    for group, streams in GROUPS[specification].items():
        for number in range(len(streams)):
            yield first_steady(group, number, streams)


def first_steady(group: str, number: int, streams: tuple[Stream, ...]) -> Case:
    """Return the case of the first draw that leaves no doubt, of one stream of a group."""
    stream = streams[number]
    attempt = steady_attempt(group, stream.tokens or number, streams)
    inputs = stream.inputs(Source(f"{group} {stream.tokens or number}", attempt))
    expected = whole_cache.expect_whole_cache(inputs, stream.parameters(), stream.method)
    exact = expected["logits"].value * GRID
    if (np.abs(exact - np.floor(exact) - 0.5) < UNCERTAIN).any():
        raise UncertainError
    rounded = replace(expected["logits"], value=np.rint(exact) / GRID)
    target = target_of("whole_cache", stream.method)
    return Case(
        f"{target}/{group}/{stream.method}/{number}",
        target,
        group,
        stream.method,
        stream.parameters(),
        inputs,
        {**expected, "logits": rounded},
    )


@lru_cache
def steady_attempt(group: str, which: str | int, streams: tuple[Stream, ...]) -> int:
    """Return the first draw that leaves no doubt in a stream, or in all that share its tokens.

    Raises:
        RuntimeError: if there is none.
    """
    alike = [each for each in streams if each.tokens == which] or [streams[int(which)]]
    for attempt in range(ATTEMPTS):
        inputs = alike[0].inputs(Source(f"{group} {which}", attempt))
        if all(whole_cache.is_steady(inputs, each.parameters(), each.method) for each in alike):
            return attempt
    raise RuntimeError(f"no stream of {group}/{which} leaves no doubt")
