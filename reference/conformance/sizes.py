"""Cases at the sizes of real kernels, drawn from a seed and answered by the reference on the spot.

Tiles, splits, vector widths and counters end at powers of two; the published vectors are too small
to reach them, and cases of these sizes are too large to be published.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from kvlab.reference import methods
from kvlab.reference.conformance import stages
from kvlab.reference.conformance.block_cases import (
    attention_inputs,
    distinct,
    few_values,
    moving,
    selection,
    without_values,
)
from kvlab.reference.conformance.building import (
    Event,
    event_inputs,
    is_clear,
    parameters_of,
    recording,
    run_inputs,
)
from kvlab.reference.conformance.case import Case
from kvlab.reference.conformance.code_cases import (
    Draw,
    as_drawn,
    coded_cache,
    codes_to_pack,
    pooling,
    retention,
    stored,
    vectors,
    with_outliers,
)
from kvlab.reference.conformance.groups import is_option
from kvlab.reference.conformance.minimise import answered
from kvlab.reference.conformance.targets import target_of
from kvlab.reference.method import Example
from kvlab.reference.streams import Source, Stream, random_stream

Wanted = Callable[[str], bool]
"""Whether cases of a target are asked for."""

Shape = tuple[int, int, int, int, int]

SHAPES: Mapping[str, Mapping[str, tuple[Shape, ...]]] = {
    "kernel": {
        "tiles": (
            (2, 1, 1, 63, 64),
            (2, 2, 1, 64, 64),
            (1, 2, 1, 65, 64),
            (1, 4, 1, 128, 128),
            (1, 2, 3, 192, 64),
        ),
        "splits": (
            (1, 2, 1, 255, 64),
            (1, 2, 1, 256, 128),
            (2, 2, 1, 257, 64),
            (1, 2, 1, 1023, 64),
            (1, 1, 1, 1024, 64),
            (1, 4, 1, 1025, 128),
            (1, 1, 1, 4096, 64),
            (1, 2, 1, 4099, 64),
        ),
        "channels": ((1, 2, 2, 66, 80), (1, 2, 1, 70, 96), (2, 1, 2, 65, 128), (1, 2, 1, 64, 256)),
        "query_heads": tuple((2, rho, 1, 40, 64) for rho in (3, 5, 7, 8, 9, 12, 16)),
        "query_blocks": (
            (1, 2, 16, 80, 64),
            (1, 2, 64, 64, 64),
            (1, 1, 65, 129, 64),
            (2, 2, 130, 257, 64),
        ),
    },
    "long": {
        "long_cache": ((1, 2, 1, 16385, 64), (1, 1, 1, 65537, 128), (1, 1, 2, 70001, 64)),
        "long_blocks": ((1, 2, 128, 4097, 64), (1, 1, 257, 2049, 128)),
    },
}
"""Size → group → G, rho, m, n, d of attention."""

LENGTHS = {"kernel": (64, 65, 128, 256, 257, 1024, 1025, 4096), "long": (16385, 65537, 131073)}
"""Entries n of selections, moves and the like."""

WIDE = {"kernel": ((32, 128), (64, 64), (32, 80), (128, 256)), "long": ((128, 4096),)}
"""Group and length of vectors that are quantised."""


def sized_cases(size: str, seed: int, wanted: Wanted) -> Iterator[Case]:
    """Draw the cases of a size, of all targets that are wanted.

    Args:
        size: ``kernel`` or ``long``.
        seed: other seeds draw other numbers of the same shapes.
        wanted: whether a target is tested.
    """
    for operation, group, number, draw in drawn_blocks(size):
        if wanted(operation):
            inputs, parameters = draw(Source(f"{size} {operation} {group} {number}", seed))
            yield judged(operation, None, group, str(number), inputs, parameters)
    for name in methods.names():
        for example in methods.examples_of(name):
            if not is_option(example):
                yield from method_cases(example, size, seed, wanted)


def judged(operation, method, group, number, inputs, parameters) -> Case:
    """Return a case with the reference's answer.

    Raises:
        ValueError: if the reference refuses its own inputs.
    """
    target = target_of(operation, method)
    name = "/".join(part for part in (target, group, method, number) if part)
    blank = Case(name, target, group, method, parameters, inputs, {})
    case = answered(blank, inputs, parameters)
    if case is None:
        raise ValueError(f"the reference refuses its own inputs of {name}")
    return replace(case, name=name)


# --- building blocks -----------------------------------------------------------------------------


def drawn_blocks(size: str) -> Iterator[tuple[str, str, int, Draw]]:
    """Yield operation, group, number and inputs of the building blocks."""
    for group, shapes in SHAPES[size].items():
        for number, shape in enumerate(shapes):
            gaps = number % 2 == 1
            attention = partial(attention_inputs, shape=shape, scale=2.0, gaps=gaps)
            flat = partial(attention_inputs, shape=shape, scale=1 / 16)
            yield "attend", group, number, attention
            yield "attention", group, number, partial(valueless, attention)
            yield "received_attention", group, number, partial(valueless, flat)
    for number, n in enumerate(LENGTHS[size]):
        yield "keep_set", "lengths", number, selection(distinct, 2, n, 5, n // 2)
        yield "keep_set", "lengths_ties", number, selection(few_values, 1, n, 3, n - 7)
        yield "compact", "lengths", number, moving(1, n, 64 if n < 5000 else 8, n - n // 3)
        yield "pool", "lengths", number, pooling(n, 7, ("mean", "max")[number % 2], "zero")
        yield "eviction_error", "lengths", number, retention(as_drawn, (1, 2, n, 64), False)
    for number, (group, length) in enumerate(WIDE[size]):
        for bits in (2, 4, 8):
            wide, codes = f"wide_{bits}_bits", {"bits": bits, "group": group}
            yield "quantize", wide, number, vectors(9, length, **codes)
            yield "quantize_dequantize", wide, number, vectors(9, length, **codes)
            yield "quantize_channels", wide, number, vectors(2 * group, 65, **codes)
            yield "dequantize", wide, number, stored(9, length, bits, group)
            yield "pack", wide, number, codes_to_pack(9, length + 1, bits)
            coded = coded_cache((1, 8, length + 1, length if length < 300 else 64), bits, group)
            yield "attend_coded", wide, number, coded
        yield "outlier_score", "wide", number, vectors(9, length, with_outliers, over="outliers")


def valueless(draw: Draw, source: Source):
    """Leave the values out."""
    return without_values(draw(source))


# --- methods -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sized:
    """A stream and the budget that suits it."""

    draw: Callable[[Source], Stream]
    budget: int
    counters: bool = False
    """Whether only methods that count something of every entry use it."""


def second_turn(source: Source) -> Stream:
    """A prompt in blocks, single tokens, and two later blocks of several tokens."""
    stream = random_stream(source, 1, 5, 80, 66, 30, 33)
    return replace(stream, blocks=(33, 33, 1, 1, 1, 12, 1, 1, 9, 1, 1, 1, 1))


def late_counters(source: Source) -> Stream:
    """Tokens beyond 2¹⁶, after all earlier ones have left."""
    stream = random_stream(source, 1, 2, 64, 4, 36)
    return replace(stream, blocks=(1,) * 40, first=70000)


STREAMS: Mapping[str, Mapping[str, Sized]] = {
    "kernel": {
        "stream_heads": Sized(lambda s: random_stream(s, 1, 16, 64, 70, 8, 35), 48),
        "stream_tiles": Sized(lambda s: random_stream(s, 2, 4, 128, 257, 6, 130), 193),
        "stream_turns": Sized(second_turn, 61),
        "stream_counters": Sized(late_counters, 12, counters=True),
    },
    "long": {"stream_long": Sized(lambda s: random_stream(s, 1, 2, 64, 1025, 5, 512), 600)},
}


def method_cases(example: Example, size: str, seed: int, wanted: Wanted) -> Iterator[Case]:
    """Take the steps of the blocks that decide from streams of a size."""
    steps = [name for name in stages.STEPS if wanted(target_of(name, example.spec))]
    if not steps:
        return
    for group, sized in STREAMS[size].items():
        stream = sized.draw(Source(f"{size} {group} {example.spec}", seed))
        budget = None if example.budget is None else sized.budget
        policy = methods.get(example.spec, budget)
        if sized.counters and not any(each.integer for each in policy.score.columns.values()):
            continue
        try:
            events = [*recording(policy, stream)]
        except ValueError:  # a prompt that the method protects and that exceeds the budget
            continue
        parameters = parameters_of(example.spec, budget, stream)
        for number, event in enumerate(picked(events)):
            here = parameters | stages.clock_parameters(event.seen.clock)
            for name, inputs, more in event_inputs(policy, event, group):
                if name in steps:
                    given = {**here, **more}
                    yield judged(name, example.spec, group, str(number), inputs, given)
        clear = all(is_clear(policy, event, example.ties) for event in events)
        if "run" in steps and clear and stream.first == 0:
            given = run_inputs(policy, stream, events)
            yield judged("run", example.spec, group, "0", given, parameters)


def picked(events: list[Event]) -> list[Event]:
    """Return the blocks that decide: of the prompt, of a later turn, and the last single token."""
    due = [event for event in events if event.keep is not None]
    deciding = [event for event in due if event.evicts or (event.fresh and event.codes)]
    kinds: dict[tuple[bool, bool], Event] = {}
    for event in deciding:
        clock = event.seen.clock
        kinds[clock.prefilling, clock.block > 1] = event
    return [*kinds.values()]
