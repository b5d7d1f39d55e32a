"""Groups of test vectors: each stresses one thing, by the way its stream of tokens is made."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from kvlab.reference import methods
from kvlab.reference.method import Example
from kvlab.reference.policy import Full
from kvlab.reference.streams import Source, Stream, random_stream


def plain(source: Source) -> Stream:
    """Two KV heads with one query head each; blocks of ten, then single tokens."""
    return random_stream(source, block=10)


def gqa(source: Source) -> Stream:
    """Three query heads per KV head."""
    return random_stream(source, rho=3, block=10)


def mqa(source: Source) -> Stream:
    """One KV head for four query heads."""
    return random_stream(source, G=1, rho=4, block=10)


def block_not_dividing(source: Source) -> Stream:
    """A prompt that its blocks do not divide, 12 channels, and a length that is no power of two."""
    return random_stream(source, G=1, rho=2, d=12, prompt=23, generated=14, block=9)


def extreme_logits(source: Source) -> Stream:
    """All logits near 724, where exp overflows in any format unless the largest is subtracted."""
    stream = plain(source)
    queries, keys = stream.queries.copy(), stream.keys.copy()
    queries[..., 0], keys[..., 0] = 64.0, 32.0
    return replace(stream, queries=queries, keys=keys)


def softcap(source: Source) -> Stream:
    """Logits squeezed into ±4, as Gemma 2 does."""
    return replace(plain(source), softcap=4.0)


def float32_inputs(source: Source) -> Stream:
    """Inputs that need all 24 bits of float32; all other groups are exact in 16 bits."""
    return random_stream(source, block=10, precise=True)


def bf16_inputs(source: Source) -> Stream:
    """A longer prompt with a flat attention, whose sums stall if they are added up in 16 bits."""
    stream = random_stream(source, G=1, prompt=96, generated=12, block=48)
    return replace(stream, queries=stream.queries / 16, values=stream.values + 2)


def ties(source: Source) -> Stream:
    """All keys zero: every entry gets the same attention, and equal age means equal score."""
    stream = plain(source)
    return replace(stream, keys=np.zeros_like(stream.keys))


def repeated_entries(source: Source) -> Stream:
    """Every key and value occurs twice: redundant for R-KV, equally good for others."""
    stream = plain(source)
    return replace(
        stream,
        keys=np.repeat(stream.keys[:, ::2], 2, axis=1),
        values=np.repeat(stream.values[:, ::2], 2, axis=1),
    )


def alpha_near_one(source: Source) -> Stream:
    """One entry gets all attention but about 1e-7, where α/(1 − α) loses its digits."""
    stream = plain(source)
    queries, keys = stream.queries / 4, stream.keys / 2
    queries[..., 0], keys[..., 0] = 4.0, 0.0
    keys[:, 7, 0] = 12.0
    return replace(stream, queries=queries, keys=keys)


def late_steps(source: Source) -> Stream:
    """Thousands of steps into a generation, where counters kept in float16 round."""
    stream = random_stream(source, prompt=4, generated=40)
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
"""Functions that draw a stream, by the name of the group."""

SAME_STREAM = {
    "budget_ge_length": "plain",
    "equal_scores": "plain",
    "mri_zero": "plain",
    "at_threshold": "ties",
    "whole_pages": "plain",
    "shared_heads": "gqa",
    "stored_codes": "gqa",
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

OPTION = ("plain", "gqa")
"""Groups of an example that is not the main reading of its method."""

OPTIONS = "options"
"""Group under which the cases of such an example are listed."""


def stream_of(group: str, attempt: int) -> Stream:
    """Return the stream of a group; another attempt draws other numbers."""
    name = SAME_STREAM.get(group, group)
    return STREAMS[name](Source(name, attempt))


def composition(spec: str) -> str:
    """Return a method without its options, in registry syntax."""
    return methods.variants().get(spec, spec).partition("@")[0]


def examples_of(method: str) -> list[Example]:
    """Return the examples of a method without options, such as ``caote:h2o``."""
    given = methods.examples_of(method.partition(":")[0])
    return [example for example in given if composition(example.spec) == method]


def is_option(example: Example) -> bool:
    """Whether an earlier example is the main reading of the same composition."""
    return examples_of(composition(example.spec))[0].spec != example.spec


def groups_of(example: Example) -> tuple[str, ...]:
    """Return the groups of an example: the ones it names, or the ones that suit its kind of method.

    The main reading of a method is tested in all of them. Attention that crosses a threshold
    matters to scores that count steps, 16-bit sums to scores that add attention up.
    """
    if example.groups is not None:
        return (*example.groups, *example.extra_groups)
    if is_option(example):
        return (*OPTION, *example.extra_groups)
    policy = methods.get(example.spec, example.budget)
    counting = any(column.integer for column in policy.score.columns.values())
    groups = ["plain", "gqa", "mqa", "block_not_dividing"]
    groups += ["softcap"] if counting else ["extreme_logits", "softcap"]
    if isinstance(policy.precision, Full):
        groups += ["float32_inputs"] if counting else ["bf16_inputs", "float32_inputs"]
        if example.budget is not None:
            groups += ["budget_ge_length", *(["equal_scores"] if counting else [])]
            groups += ["repeated_entries"]
    return (*groups, *example.extra_groups)
