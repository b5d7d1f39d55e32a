"""Makes the test vectors of the building blocks, group by group."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from kvlab.reference.conformance.case import Case
from kvlab.reference.conformance.code_cases import (
    CHANNEL_QUANTISING,
    CODED_ATTENTION,
    DEQUANTISING,
    ERRORS,
    OUTLIERS,
    PACKING,
    POOLING,
    QUANTISING,
    Draw,
    Drawn,
    later,
)
from kvlab.reference.conformance.engine_cases import ENGINES
from kvlab.reference.conformance.storing import UncertainError, finished
from kvlab.reference.notation import Array
from kvlab.reference.streams import Source

ATTEMPTS = 100


def block_cases(specification: str) -> Iterator[Case]:
    """Build the cases of building blocks that a version of the specification added."""
    for operation, groups in ADDED[specification].items():
        for group, makers in groups.items():
            for number, make in enumerate(makers):
                yield first_certain(operation, group, number, make)


def first_certain(operation: str, group: str, number: int, make: Draw) -> Case:
    """Return the case of the first draw whose numbers can be stored in one way only.

    Raises:
        RuntimeError: if there is none.
    """
    for attempt in range(ATTEMPTS):
        try:
            inputs, parameters = make(Source(f"{operation} {group} {number}", attempt))
            return finished(operation, None, group, str(number), parameters, inputs)
        except UncertainError:
            continue
    raise RuntimeError(f"no draw of {operation}/{group}/{number} can be stored in one way only")


# --- attention -----------------------------------------------------------------------------------


def attention_inputs(
    source: Source,
    shape: tuple[int, int, int, int, int],
    scale: float = 1.0,
    precise: bool = False,
    softcap: float | None = None,
    gaps: bool = False,
) -> Drawn:
    """Draw queries of the newest tokens; ``shape`` is G, rho, m, n, d."""
    G, rho, m, n, d = shape
    draw = source.precise if precise else source.normal
    positions = np.tile(np.arange(n), (G, 1))
    if gaps:
        kept = np.stack([np.sort(source.permutation(4 * n)[: n - m]) for _ in range(G)])
        positions = np.concatenate([kept, np.tile(4 * n + np.arange(m), (G, 1))], axis=1)
    inputs = {
        "queries": scale * draw(G, rho, m, d),
        "keys": draw(G, n, d),
        "values": draw(G, n, d),
        "positions": positions,
        "query_positions": positions[0, n - m :],
    }
    return inputs, {"softcap": softcap}


def without_values(drawn: Drawn) -> Drawn:
    """Leave the values out."""
    inputs, parameters = drawn
    return {name: x for name, x in inputs.items() if name != "values"}, parameters


def huge_logits(source: Source) -> Drawn:
    """Make all logits about 724."""
    inputs, parameters = attention_inputs(source, (2, 2, 3, 24, 8))
    inputs["queries"][..., 0], inputs["keys"][..., 0] = 64.0, 32.0
    return inputs, parameters


def low_logits(source: Source) -> Drawn:
    """Make all logits about −1448: a masked entry must not count for more than a visible one."""
    inputs, parameters = attention_inputs(source, (2, 2, 3, 24, 8))
    inputs["queries"][..., 0], inputs["keys"][..., 0] = 64.0, -64.0
    return inputs, parameters


def rows_apart(source: Source) -> Drawn:
    """Make rows of logits about 1448 and −1448 in turn, and the newest entry's twice as large.

    Each row has to subtract its own largest logit, and that of a visible entry.
    """
    inputs, parameters = attention_inputs(source, (2, 2, 4, 24, 8))
    inputs["queries"][..., 0] = 64.0 * (-1.0) ** np.add.outer(np.arange(2), np.arange(4))
    inputs["keys"][..., 0], inputs["keys"][:, -1, 0] = 64.0, 128.0
    return inputs, parameters


def far_positions(source: Source) -> Drawn:
    """Put entries around 2^15 and the block's own beyond 2^16: more than 16 bits hold."""
    inputs, parameters = attention_inputs(source, (2, 2, 3, 20, 8), 2.0, gaps=True)
    own = 70001 + np.arange(3)
    positions = inputs["positions"] + 2**15 - 40
    positions[:, -3:] = own
    return {**inputs, "positions": positions, "query_positions": own}, parameters


def equal_logits(source: Source) -> Drawn:
    """Make all logits zero."""
    inputs, parameters = attention_inputs(source, (2, 2, 2, 16, 8))
    return {**inputs, "keys": np.zeros_like(inputs["keys"])}, parameters


def one_heavy(source: Source) -> Drawn:
    """Let one entry have nearly all attention."""
    inputs, parameters = attention_inputs(source, (2, 2, 1, 24, 8))
    inputs["queries"][..., 0], inputs["keys"][..., 0] = 4.0, 0.0
    inputs["keys"][:, 7, 0] = 12.0
    return inputs, parameters


def flat_and_long(source: Source) -> Drawn:
    """Make attention flat over many entries."""
    inputs, parameters = attention_inputs(source, (1, 2, 1, 200, 8), scale=1 / 16)
    return {**inputs, "values": inputs["values"] + 2}, parameters


ATTENTION: Mapping[str, Draw] = {
    "plain": lambda s: attention_inputs(s, (2, 1, 1, 24, 8), 2.0),
    "gqa": lambda s: attention_inputs(s, (2, 3, 1, 24, 8), 2.0),
    "mqa": lambda s: attention_inputs(s, (1, 8, 1, 24, 16), 2.0),
    "causal_block": lambda s: attention_inputs(s, (2, 2, 6, 20, 8), 2.0),
    "gaps": lambda s: attention_inputs(s, (2, 2, 3, 20, 8), 2.0, gaps=True),
    "block_not_dividing": lambda s: attention_inputs(s, (1, 2, 1, 131, 8), 2.0),
    "odd_shapes": lambda s: attention_inputs(s, (3, 1, 3, 7, 5), 2.0),
    "single_entry": lambda s: attention_inputs(s, (2, 2, 1, 1, 8)),
    "ties": equal_logits,
    "extreme_logits": huge_logits,
    "low_logits": low_logits,
    "rows_apart": rows_apart,
    "far_positions": far_positions,
    "alpha_near_one": one_heavy,
    "softcap": lambda s: attention_inputs(s, (2, 2, 2, 24, 8), 4.0, softcap=4.0),
    "bf16_inputs": flat_and_long,
    "float32_inputs": lambda s: attention_inputs(s, (2, 2, 2, 24, 8), 2.0, precise=True),
}


# --- selection -----------------------------------------------------------------------------------


@later
def selection(
    source: Source,
    scores: Callable[[Source, int, int], Array],
    heads: int,
    n: int,
    safe: int,
    room: int,
) -> Drawn:
    """Draw scores and as many safe entries in every head."""
    marked = source.marks(safe, heads, n)
    return {"scores": scores(source, heads, n), "safe": marked}, {"room": room}


def distinct(source: Source, G: int, n: int) -> Array:
    """Draw positive scores, all different."""
    return np.stack([source.permutation(n) for _ in range(G)]) / 32.0 + 1 / 32


def signed(source: Source, G: int, n: int) -> Array:
    """Draw scores around zero, all different."""
    return distinct(source, G, n) - n / 64


def below_zero(source: Source, G: int, n: int) -> Array:
    """Draw negative scores, all different."""
    return -distinct(source, G, n)


def above(power: int) -> Callable[[Source, int, int], Array]:
    """Return a function that draws different scores, all above 2^power."""

    def draw(source: Source, G: int, n: int) -> Array:
        return 2.0**power * (1 + distinct(source, G, n))

    return draw


def few_values(source: Source, G: int, n: int) -> Array:
    """Draw scores of three values."""
    return source.integers(0, 3, G, n) / 2.0


def all_equal(source: Source, G: int, n: int) -> Array:
    """Give every entry the same score."""
    return np.full((G, n), 0.375)


def both_zeros(source: Source, G: int, n: int) -> Array:
    """Give every entry the score 0 or −0, which are equal."""
    return np.where(source.marks(n // 2, G, n), 0.0, -0.0)


def wide_range(source: Source, G: int, n: int) -> Array:
    """Draw scores between 2^-120 and 2^120."""
    return 2.0 ** (source.integers(-120, 120, G, n)) * (1 + distinct(source, G, n) / 64)


def neighbours(source: Source, G: int, n: int) -> Array:
    """Draw scores that differ in their last digits."""
    return 1 + distinct(source, G, n) * 2.0**-18


def infinite(count: int) -> Callable[[Source, int, int], Array]:
    """Return a function that draws scores of which ``count`` are infinite."""

    def draw(source: Source, G: int, n: int) -> Array:
        return np.where(source.marks(count, G, n), np.inf, distinct(source, G, n))

    return draw


SELECTION = {
    "plain": (selection(distinct, 2, 24, 4, 8), selection(distinct, 3, 131, 9, 50)),
    "nobody_safe": (selection(distinct, 2, 24, 0, 8),),
    "ties": (
        selection(few_values, 2, 24, 4, 8),
        selection(all_equal, 2, 17, 3, 5),
        selection(few_values, 1, 200, 16, 100),
        selection(infinite(18), 2, 24, 4, 8),
    ),
    "signed_zero": (selection(both_zeros, 2, 24, 4, 8),),
    "negative_scores": (
        selection(signed, 2, 24, 4, 8),
        selection(signed, 2, 24, 4, 16),
        selection(below_zero, 2, 24, 4, 8),
    ),
    "large_scores": (selection(above(17), 2, 24, 4, 8), selection(above(126), 2, 24, 4, 8)),
    "wide_range": (selection(wide_range, 2, 24, 4, 8),),
    "close_scores": (selection(neighbours, 2, 64, 4, 30),),
    "infinite_scores": (selection(infinite(3), 2, 24, 4, 8),),
    "no_room": (selection(distinct, 2, 24, 6, 0),),
    "budget_ge_length": (selection(distinct, 2, 12, 4, 8), selection(distinct, 2, 12, 4, 50)),
    "one_leaves": (selection(distinct, 2, 33, 8, 24),),
}


@later
def moving(source: Source, G: int, n: int, d: int, kept: int, first: int = 0) -> Drawn:
    """Draw entries, their state and a keep set; whole numbers begin at ``first``."""
    keep = np.stack([np.sort(source.permutation(n)[:kept]) for _ in range(G)])
    gaps = np.cumsum(source.integers(1, 5, G, n), axis=1)
    return {
        "keys": source.normal(G, n, d),
        "values": source.normal(G, n, d),
        "positions": first + gaps,
        "accumulated": source.uniform(G, n),
        "stamp": first + source.integers(0, 5000, G, n),
        "keep": keep,
    }, {}


COMPACTION = {
    "plain": (moving(2, 16, 8, 9),),
    "odd_shapes": (moving(3, 33, 5, 17),),
    "one_leaves": (moving(2, 12, 4, 11),),
    "one_stays": (moving(2, 12, 4, 1),),
    "budget_ge_length": (moving(2, 7, 4, 7),),
    "far_positions": (moving(2, 16, 8, 9, first=70000),),
}


def each(makers: Mapping[str, Draw]):
    """Return one case per group."""
    return {group: (make,) for group, make in makers.items()}


def valueless(makers: Mapping[str, Draw]):
    """Return the same cases without values."""
    return {
        group: (lambda source, make=make: without_values(make(source)),)
        for group, make in makers.items()
    }


FIRST: Mapping[str, Mapping[str, tuple[Draw, ...]]] = {
    "attend": each(ATTENTION),
    "attention": valueless(ATTENTION),
    "received_attention": valueless(ATTENTION),
    "keep_set": SELECTION,
    "compact": COMPACTION,
    "quantize": QUANTISING,
    "quantize_channels": CHANNEL_QUANTISING,
    "dequantize": DEQUANTISING,
    "quantize_dequantize": {k: v for k, v in QUANTISING.items() if k != "halves"},
    "pack": PACKING,
    "attend_coded": CODED_ATTENTION,
    "eviction_error": ERRORS,
    "pool": POOLING,
    "outlier_score": OUTLIERS,
}

ADDED: Mapping[str, Mapping[str, Mapping[str, tuple[Draw, ...]]]] = {"0.9": FIRST, "1.1": ENGINES}
"""Groups of each building block, by the specification that added them."""

GROUPS = {operation: groups for own in ADDED.values() for operation, groups in own.items()}
"""Building block → group → cases."""
