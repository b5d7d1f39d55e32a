"""Draws what engines add to a method: pages named by a block table, and codes of precisions."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from kvlab.reference.conformance import blocks
from kvlab.reference.conformance.building import ATTEMPTS, example_cases
from kvlab.reference.conformance.case import Case
from kvlab.reference.conformance.code_cases import Draw, Drawn, later
from kvlab.reference.conformance.storing import UncertainError
from kvlab.reference.method import Example
from kvlab.reference.notation import Array
from kvlab.reference.streams import Source

# --- pages ---------------------------------------------------------------------------------------

SPARE = 3
"""Pages of the memory that do not belong to the sequence."""


@later
def paged(
    source: Source, places: int, page: int, freed: tuple[int, ...] = (), m: int = 1, rho: int = 2
) -> Drawn:
    """Draw a memory of pages, of which a sequence has some; its last page is not full."""
    G, d, last = 2, 8, places * page - 2
    table = source.permutation(places + SPARE)[:places]
    table[[*freed]] = -1
    return {
        "queries": 2 * source.normal(G, rho, m, d),
        "key_pages": source.normal(places + SPARE, page, G, d),
        "value_pages": 8 * source.normal(places + SPARE, page, G, d),
        "table": table,
        "query_positions": np.arange(last - m, last),
    }, {"softcap": None}


@later
def moves(source: Source, places: int, page: int, kept: int) -> Drawn:
    """Draw a memory of pages, and for each head the entries of one sequence that stay."""
    G, d = 2, 8
    written = places * page - 1
    return {
        "key_pages": source.normal(places + SPARE, page, G, d),
        "value_pages": source.normal(places + SPARE, page, G, d),
        "table": source.permutation(places + SPARE)[:places],
        "keep": np.stack([np.sort(source.permutation(written)[:kept]) for _ in range(G)]),
    }, {}


# --- codes ---------------------------------------------------------------------------------------

NUDGE = 5e-6
"""Relative noise under which no code may change: as much as float32 loses."""

NUDGES = 8


@later
def to_encode(
    source: Source,
    precision: str,
    d: int = 16,
    change: Callable[[Array], Array] = lambda x: x,
) -> Drawn:
    """Draw vectors, of which the first four are those of the layer's first block.

    Raises:
        UncertainError: if an element lies near the border of two codes.
    """
    x, parameters = change(source.normal(2, 7, d)), {"precision": precision}
    code, first = blocks.code_of(parameters), x[:, :4]
    codes, parts, _ = blocks.encoded(code, x, first)
    for number in range(NUDGES):
        noise = 1 + NUDGE * Source("nudge of a code", number).normal(*x.shape)
        moved, others, _ = blocks.encoded(code, x * noise, first)
        whole = [(a, b) for a, b in zip(parts, others, strict=True) if a.dtype == np.uint8]
        if not all(np.array_equal(a, b) for a, b in ((codes, moved), *whole)):
            raise UncertainError
    inputs = {"x": x, "first": first}
    return dict(blocks.with_matrices(inputs, parameters, None)), parameters


def heads_apart(x: Array) -> Array:
    """Make the second head eight times as large."""
    return x * np.array([1.0, 8.0])[:, None, None]


def larger_later(x: Array) -> Array:
    """Make everything after the first block four times as large."""
    return x * np.where(np.arange(x.shape[1]) < 4, 1.0, 4.0)[:, None]


def blocks_apart(x: Array) -> Array:
    """Make each block of 16 channels twice as large as the one before."""
    return x * 2.0 ** (np.arange(x.shape[2]) // 16)


def lengths_apart(x: Array) -> Array:
    """Make each vector twice as long as the one before, about."""
    return x * 2.0 ** (np.arange(x.shape[1]) - 3)[:, None]


def some_zero(x: Array) -> Array:
    """Make every third vector zero."""
    return np.where(np.arange(x.shape[1])[:, None] % 3 == 1, 0.0, x)


def by_precision(
    *names: str, d: int = 16, change: Callable[[Array], Array] = lambda x: x
) -> tuple[Draw, ...]:
    """Return a case for each precision."""
    return tuple(to_encode(name, d, change) for name in names)


FLOATS = ("fp8", "fp8_head", "fp8_e5m2", "nvfp4")

ENGINES: Mapping[str, Mapping[str, tuple[Draw, ...]]] = {
    "attend_pages": {
        "block_table": (paged(4, 4), paged(3, 16), paged(5, 4, m=6), paged(4, 4, rho=1)),
        "freed_pages": (paged(6, 4, (0, 3)), paged(5, 4, (1, 2), m=3), paged(3, 16, (0,))),
    },
    "compact_pages": {
        "moves_in_pages": (moves(4, 4, 9), moves(3, 16, 32), moves(5, 4, 3)),
        "one_leaves": (moves(3, 4, 10),),
        "one_stays": (moves(3, 4, 1),),
    },
    "encode": {
        "float_codes": by_precision("fp8", "fp8_e5m2", change=lambda x: 4 * x),
        "head_scales": by_precision("fp8_head", "fp8_e5m2_head", change=heads_apart),
        "block_scales": by_precision("nvfp4", d=64, change=blocks_apart),
        "block_not_dividing": by_precision("nvfp4", d=20),
        "later_vectors": by_precision(*FLOATS, change=larger_later),
        "rotated_codes": by_precision(
            *("turboquant", "turboquant_3bit", "turboquant_2bit", "turboquant_1bit"),
            change=lengths_apart,
        ),
        "residual_signs": by_precision(
            "turboquant_prod", "turboquant_prod_3bit", "turboquant_prod_2bit"
        ),
        "zero_vectors": by_precision(*FLOATS, "turboquant", change=some_zero),
    },
}
"""Building block → group → cases, of the specification 1.1."""


# --- steps of a method ---------------------------------------------------------------------------

STEPS: Mapping[str, tuple[Example, ...]] = {
    "whole_pages": (
        Example("h2o@recent=2,page=4", 16),
        Example("h2o@recent=2,page=4,page_score=max", 16),
        Example("tova@page=4", 14),
        Example("caote:h2o@recent=2,page=4", 16),
    ),
    "shared_heads": (
        Example("h2o@recent=2,kv_heads=layer"),
        Example("h2o@recent=2,kv_heads=union"),
        Example("h2o@recent=2,kv_heads=union,page=4", 16),
    ),
    "stored_codes": (
        *(
            Example(f"full@precision={name}", None)
            for name in ("fp8", "fp8_head", "fp8_e5m2", "nvfp4", "turboquant", "turboquant_prod")
        ),
        Example("h2o@recent=4,precision=fp8"),
        Example("h2o@recent=2,page=4,precision=turboquant_2bit", 16),
    ),
}
"""Group → methods, of the specification 1.1."""

ASKED = ("select", "run")
"""Steps that show what pages, shared heads and codes change. `keep` knows no scores of whole pages;
means over a page or over heads of stored scores lie in the middle between two float32 numbers."""


def engine_cases() -> Iterator[Case]:
    """Build the cases of steps of methods under the options that fit every method.

    Raises:
        RuntimeError: if no stream of a group leads to clear decisions.
    """
    for group, examples in STEPS.items():
        for example in examples:
            yield from example_cases(example, group, ATTEMPTS, ASKED)
