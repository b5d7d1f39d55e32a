"""Streams of tokens for cases of methods, by group: ``groups.toml`` says what each stresses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvlab.reference import methods
from kvlab.reference.conformance.draws import ATTENTION
from kvlab.reference.method import Example
from kvlab.reference.policy import Full
from kvlab.reference.streams import Source, Stream, random_stream


def _plain(source: Source) -> Stream:
    return random_stream(source, block=10)


def _changed(variant: str) -> Callable[[Source], Stream]:
    """Return a function that draws a stream with a variant of attention's queries and keys."""

    def draw(source: Source) -> Stream:
        stream = _plain(source)
        ATTENTION[variant]({"queries": stream.queries, "keys": stream.keys})
        return stream

    return draw


def _flat(source: Source) -> Stream:
    stream = random_stream(source, G=1, prompt=96, generated=12, block=48)
    return replace(stream, queries=stream.queries / 16, values=stream.values + 2)


def _twice(source: Source) -> Stream:
    stream = _plain(source)
    keys, values = (np.repeat(x[:, ::2], 2, axis=1) for x in (stream.keys, stream.values))
    return replace(stream, keys=keys, values=values)


def _one_heavy(source: Source) -> Stream:
    stream = _plain(source)
    queries, keys = stream.queries / 4, stream.keys / 2
    queries[..., 0], keys[..., 0] = 4.0, 0.0
    keys[:, 7, 0] = 12.0
    return replace(stream, queries=queries, keys=keys)


def _late(prompt: int, first: int, **sizes: Any) -> Callable[[Source], Stream]:
    """Return a function that draws single tokens, of which all earlier ones have left."""

    def draw(source: Source) -> Stream:
        stream = random_stream(source, prompt=prompt, **sizes)
        return replace(stream, blocks=(1,) * stream.tokens, first=first)

    return draw


STREAMS: Mapping[str, Callable[[Source], Stream]] = {
    "plain": _plain,
    "gqa": lambda source: random_stream(source, rho=3, block=10),
    "mqa": lambda source: random_stream(source, G=1, rho=4, block=10),
    "block_not_dividing": lambda source: random_stream(source, 1, 2, 12, 23, 14, 9),
    "extreme_logits": _changed("extreme_logits"),
    "softcap": lambda source: replace(_plain(source), softcap=4.0),
    "float32_inputs": lambda source: random_stream(source, block=10, precise=True),
    "bf16_inputs": _flat,
    "ties": _changed("ties"),
    "repeated_entries": _twice,
    "alpha_near_one": _one_heavy,
    "late_steps": _late(4, 4000, generated=40),
}
"""Functions that draw a stream, by the name of the group."""

SAME_STREAM = {
    "budget_ge_length": "plain",
    "equal_scores": "plain",
    "mri_zero": "plain",
    "at_threshold": "ties",
}
"""Groups whose stream is another's: what they stress lies in the method's parameters."""

TIED = (
    *("ties", "equal_scores", "repeated_entries", "mri_zero", "at_threshold"),
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


@dataclass(frozen=True)
class Sized:
    """A stream at the size of kernels, and the budget that suits it."""

    draw: Callable[[Source], Stream]
    budget: int
    counters: bool = False
    """Whether only methods that count something of every entry use it."""


def _second_turn(source: Source) -> Stream:
    """A prompt in blocks, single tokens, and two later blocks of several tokens."""
    stream = random_stream(source, 1, 5, 80, 66, 30, 33)
    return replace(stream, blocks=(33, 33, 1, 1, 1, 12, 1, 1, 9, 1, 1, 1, 1))


SIZED: Mapping[str, Mapping[str, Sized]] = {
    "kernel": {
        "stream_heads": Sized(lambda s: random_stream(s, 1, 16, 64, 70, 8, 35), 48),
        "stream_tiles": Sized(lambda s: random_stream(s, 2, 4, 128, 257, 6, 130), 193),
        "stream_turns": Sized(_second_turn, 61),
        "stream_counters": Sized(_late(4, 70000, G=1, rho=2, d=64, generated=36), 12, True),
    },
    "long": {"stream_long": Sized(lambda s: random_stream(s, 1, 2, 64, 1025, 5, 512), 600)},
}
"""Streams of a size, by group."""


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
