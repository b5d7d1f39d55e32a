"""Streams of tokens, one per group of vectors: what a group stresses is how its stream is made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from kvlab.reference.conformance.drawing import Source
from kvlab.reference.notation import Array


@dataclass(frozen=True)
class Stream:
    """Queries, keys and values of one layer, and how they arrive."""

    queries: Array
    keys: Array
    values: Array
    confidence: Array
    prompt: int
    """Tokens of the prompt, counted from token 0 even where ``first`` is not 0."""
    blocks: tuple[int, ...]
    first: int = 0
    """Position of the first token; where not 0, all before it have long left the cache."""
    softcap: float | None = None

    @property
    def length(self) -> int:
        """Tokens of the stream."""
        return self.keys.shape[1]


def random_stream(
    source: Source,
    heads: tuple[int, int, int] = (2, 1, 8),
    prompt: tuple[int, ...] = (10, 10),
    generated: int = 16,
    precise: bool = False,
) -> Stream:
    """Draw bell-shaped queries, keys and values; ``heads`` are G, rho and d."""
    G, rho, d = heads
    t = sum(prompt) + generated
    draw = source.precise if precise else source.normal
    confidence = source.uniform(t)
    confidence[: sum(prompt)] = np.nan
    return Stream(
        2 * draw(G, rho, t, d),
        draw(G, t, d),
        draw(G, t, d),
        confidence,
        sum(prompt),
        (*prompt, *[1] * generated),
    )


def plain(source: Source) -> Stream:
    """Two KV heads with one query head each; blocks of ten, then single tokens."""
    return random_stream(source)


def gqa(source: Source) -> Stream:
    """Three query heads per KV head."""
    return random_stream(source, heads=(2, 3, 8))


def mqa(source: Source) -> Stream:
    """One KV head for four query heads."""
    return random_stream(source, heads=(1, 4, 8))


def block_not_dividing(source: Source) -> Stream:
    """A prompt that its blocks do not divide, 12 channels, and a length that is no power of two."""
    return random_stream(source, heads=(1, 2, 12), prompt=(9, 9, 5), generated=14)


def extreme_logits(source: Source) -> Stream:
    """All logits near 724, where exp overflows in any format unless the largest is subtracted."""
    stream = random_stream(source)
    queries, keys = stream.queries.copy(), stream.keys.copy()
    queries[..., 0], keys[..., 0] = 64.0, 32.0
    return replace(stream, queries=queries, keys=keys)


def softcap(source: Source) -> Stream:
    """Logits squeezed into ±4, as Gemma 2 does."""
    return replace(random_stream(source), softcap=4.0)


def float32_inputs(source: Source) -> Stream:
    """Inputs that need all 24 bits of float32; all other groups are exact in 16 bits."""
    return random_stream(source, precise=True)


def bf16_inputs(source: Source) -> Stream:
    """A longer prompt with a flat attention, whose sums stall if they are added up in 16 bits."""
    stream = random_stream(source, heads=(1, 1, 8), prompt=(48, 48), generated=12)
    return replace(stream, queries=stream.queries / 16, values=stream.values + 2)


def ties(source: Source) -> Stream:
    """All keys zero: every entry gets the same attention, and equal age means equal score."""
    stream = random_stream(source)
    return replace(stream, keys=np.zeros_like(stream.keys))


def repeated_entries(source: Source) -> Stream:
    """Every key and value occurs twice: redundant to R-KV, of equal worth to others."""
    stream = random_stream(source)
    return replace(
        stream,
        keys=np.repeat(stream.keys[:, ::2], 2, axis=1)[:, : stream.length],
        values=np.repeat(stream.values[:, ::2], 2, axis=1)[:, : stream.length],
    )


def alpha_near_one(source: Source) -> Stream:
    """One entry gets all attention but about 1e-7, where α/(1 − α) loses its digits."""
    stream = random_stream(source)
    queries, keys = stream.queries / 4, stream.keys / 2
    queries[..., 0], keys[..., 0] = 4.0, 0.0
    keys[:, 7, 0] = 12.0
    return replace(stream, queries=queries, keys=keys)


def late_steps(source: Source) -> Stream:
    """Thousands of steps into a generation, where counters kept in float16 round."""
    stream = random_stream(source, prompt=(4,), generated=40)
    return replace(stream, blocks=(1,) * 44, first=4000)


STREAMS: Mapping[str, Callable[[Source], Stream]] = {
    function.__name__: function
    for function in (
        plain,
        gqa,
        mqa,
        block_not_dividing,
        extreme_logits,
        softcap,
        float32_inputs,
        bf16_inputs,
        ties,
        repeated_entries,
        alpha_near_one,
        late_steps,
    )
}
"""By the name of the group."""

SAME_STREAM = {
    "budget_ge_length": "plain",
    "equal_scores": "plain",
    "mri_zero": "plain",
    "at_threshold": "ties",
}
"""Groups whose stream is another's: what they stress lies in the method's parameters."""

PRECISE = ("float32_inputs",)
"""Groups whose inputs are not exact in 16 bits."""

TIED = (
    "ties",
    "equal_scores",
    "repeated_entries",
    "mri_zero",
    "at_threshold",
    "budget_ge_length",
)
"""Groups in which equal scores decide, by the rule that the later entry stays."""


def stream_of(group: str, attempt: int) -> Stream:
    """Return the stream of a group; another attempt draws other numbers."""
    name = SAME_STREAM.get(group, group)
    return STREAMS[name](Source(name, attempt))
