"""The methods as the shared tests run them: with the options of their examples."""

from kvlab.reference import methods
from kvlab.reference.method import Example
from kvlab.reference.policy import Full

EXAMPLES = tuple(example for example in methods.examples() if example.shared)

BUDGETED = tuple(example.spec for example in EXAMPLES if example.budget is not None)
"""Methods that evict down to a budget."""

GRANULAR = (
    "h2o@recent=3,page=4",
    "h2o@recent=3,kv_heads=union",
    "tova@per_head=true,sinks=3,recent=6,page=4,page_score=max",
    "caote:h2o@recent=0,kv_heads=layer,page=4",
    "lazy_eviction@window=4,threshold=0.05,page=4",
    "nacl@proxy_share=0.2,sinks=2,recent=3,page=4",
    "rkv@every=5,kv_heads=union",
    "random@page=4,kv_heads=layer",
    "random:caote:tova@heads=layer,recent=3",
    "snapkv@window=4,kv_heads=layer,page=4,page_score=max",
    "keydiff@every=4,page=2",
)
"""Methods whose entries are evicted page by page, or in all heads at once."""

CODED = (
    "full@precision=fp8",
    "h2o@precision=fp8_e5m2_head",
    "caote:h2o@recent=3,page=4,precision=turboquant",
    "tova@kv_heads=union,precision=nvfp4",
    "rkv@every=5,window=3,precision=turboquant_prod_3bit",
    "lazy_eviction@window=4,threshold=0.05,precision=fp8_head",
    "streaming_llm@sinks=2,precision=turboquant_2bit",
)
"""Methods whose entries are coded on arrival."""


def has_codes(example: Example) -> bool:
    """Whether a method stores entries in fewer than 16 bits, as its options say."""
    precision = methods.get(example.spec, example.budget).precision
    return not isinstance(precision, Full) and "low_bits=16,high_bits=16" not in example.spec


QUANTIZING = tuple(example.spec for example in EXAMPLES if has_codes(example))
"""Methods that store codes."""

SELF_SIZED = tuple(
    example.spec
    for example in EXAMPLES
    if example.budget is None and example.spec not in QUANTIZING
)
"""Methods that evict by their own rule, or not at all, at full precision."""

ALL = (*BUDGETED, *SELF_SIZED, *QUANTIZING)

ONE_EACH = tuple({methods.base_name(spec): spec for spec in reversed(ALL)}.values())
"""One example of every method."""

KINDS = tuple(
    spec
    for spec in ONE_EACH
    if methods.base_name(spec)
    in ("full", "h2o", "snapkv", "lazy_eviction", "caote", "random", "kivi", "desirekv")
)
"""One example of every kind: sums, windows, counters, values, draws, codes, confidence."""


def budget_of(spec: str, budget: int = 12) -> int | None:
    """Return a budget for a method that takes one."""
    return budget if methods.takes_budget(spec) else None


DRAWING = ("nacl", "random", "random_attention", "vase")

RANDOM = tuple(
    spec for spec in ALL + GRANULAR if methods.base_name(spec) in DRAWING and "kv_heads" not in spec
)
"""Methods that draw noise per head, which a permutation of the heads does not permute."""
