"""The methods as the shared tests run them: with the options of their examples."""

from shapes import shapes_checked

from kvlab.reference import methods
from kvlab.reference.method import Example
from kvlab.reference.policy import EveryBlock
from kvlab.reference.streams import Source, random_stream, run_stream

EXAMPLES = tuple(example for example in methods.examples() if example.shared)

BUDGETED = tuple(example.spec for example in EXAMPLES if example.budget is not None)
"""Methods that evict down to a budget."""

HOLDS_BUDGET_ALWAYS = tuple(
    spec for spec in BUDGETED if methods.get(spec, 12).schedule == EveryBlock()
)
"""Those that are due after every block and step."""


def stores_codes(example: Example) -> bool:
    """Whether an entry has fewer than 16 bits after a stream of three dozen tokens."""
    *_, last = run_stream(methods.get(example.spec, example.budget), random_stream(Source("codes")))
    return bool((last.cache.keys.bits < 16).any())


def draws(example: Example) -> bool:
    """Whether a method draws numbers when it decides."""
    policy = methods.get(example.spec, example.budget)
    return any(
        policy.score.drawn(each.seen) for each in run_stream(policy, random_stream(Source("codes")))
    )


with shapes_checked(False):
    QUANTIZING = tuple(example.spec for example in EXAMPLES if stores_codes(example))
    """Methods that store codes."""

    SELF_SIZED = tuple(
        example.spec
        for example in EXAMPLES
        if example.budget is None and example.spec not in QUANTIZING
    )
    """Methods that evict by their own rule, or not at all, at full precision."""

    RANDOM = tuple(example.spec for example in EXAMPLES if draws(example))
    """Methods that draw noise per head, which a permutation of the heads does not permute."""
