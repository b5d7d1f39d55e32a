"""Wrong answers to the notebooks' exercises; each must fail the check of its exercise.

By notebook and number of the exercise: code that takes the place of the solution.
"""

from collections.abc import Mapping

WRONG: Mapping[str, Mapping[int, tuple[str, ...]]] = {
    "00_kv_cache": {
        1: (
            "def without_grouping(shape): return shape.token_bytes",
            "def without_grouping(shape): return 4 * shape.token_bytes",
        ),
        2: (
            "def longest_text(shape, hardware, batch):\n"
            "    return int(hardware.memory // (batch * shape.token_bytes))",
            "def longest_text(shape, hardware, batch):\n"
            "    return int((hardware.memory - shape.weight_bytes) // shape.token_bytes)",
        ),
        3: (
            "def tokens_until_cache_dominates(shape):\n"
            "    return shape.weight_bytes // shape.token_bytes",
        ),
    },
    "01_four_questions": {
        1: ('spec = "h2o@every=16"', 'spec = "tova@every=16"', 'spec = "h2o@every=8,recent=16"'),
        2: (
            'tova_with_sinks = methods.get("tova", 120)',
            'tova_with_sinks = replace(methods.get("tova", 120), protect=Edges(recent=4))',
            'tova_with_sinks = methods.get("streaming_llm", 120)',
        ),
        3: (
            "h2o_that_waits = replace(h2o, schedule=lazy.schedule)",
            "h2o_that_waits = replace(lazy, budget=h2o.budget)",
        ),
    },
}
