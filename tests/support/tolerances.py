"""The one table of tolerances; every row says why."""

EXACT = 0.0
"""Copies, codes, indices, counts: nothing is computed."""

FLOAT64 = 1e-9
"""Two float64 computations of one quantity in another order; rounding is about 1e-15 per term."""

DECIMALS = 1e-6
"""Figures written with six digits in the text that they are compared with."""

FLOAT32_LOGITS = 1e-4
"""Logits of a float32 model against float64: tens of thousands of products, each off by 6e-8."""

FLOAT32_ANGLES = 1e-5
"""RoPE's angles are float32, so turning twice differs from turning once by 6e-8 per radian."""

FLOAT16_METADATA = 1e-3
"""Scale and zero point are stored in float16, whose relative spacing is 9.8e-4."""

MONTE_CARLO = 4.0
"""Standard errors that a sampled mean may be off: a false alarm once in 16,000 tests."""

FLOAT32_SCORES = 2e-5
"""Scores and outputs of float32 against float64, relative to the largest: sums of some hundred
products and of some hundred steps, each off by 6e-8."""

BFLOAT16_OUTPUT = 2.0**-6
"""An output below 4 in size, rounded to bfloat16's 8 bits: half a step is 2^-7."""

FLOAT16_WEIGHTS = 2.0**-11
"""A sum of values by weights, relative to its size, where every weight is rounded to float16's 11
bits: half a step is at most 2^-11 of a weight."""

THEOREM = 1e-12
"""A theorem's two sides in float64, of sizes near 1: some hundred operations, each off by 1e-16."""
