"""Names that every file uses.

Axes, always in this order:

| axis | counts |
|---|---|
| `G` | KV heads |
| `rho` | query heads that share one KV head, H/G |
| `m` | queries of the current block |
| `n` | entries in the cache of one layer and KV head |
| `d` | channels of a head |
| `w` | remembered queries |
| `t` | tokens seen so far |

So attention is ``[G, rho, m, n]``, queries ``[G, rho, m, d]``, keys and values ``[G, n, d]``,
scores and per-entry state ``[G, n]``. ``B`` is a budget in entries, ``W`` an observation window and
``P`` a compression interval in tokens.
"""

import numpy as np
from jaxtyping import Bool as Bool, Float as Float, Int as Int, Shaped as Shaped, UInt8 as UInt8

Array = np.ndarray
"""An array of the reference: float64, integers or booleans, for one sequence."""

Queries = Float[Array, "G rho m d"]
Attention = Float[Array, "G rho m n"]
Vectors = Float[Array, "G n d"]
"""Keys or values of all entries."""

NewVectors = Float[Array, "G m d"]
"""Keys or values of a block."""

Rows = Float[Array, "rows d"]
"""Vectors of which a code knows nothing else."""

RowVectors = Float[Array, "*rows d"]
"""Vectors whatever their axes are."""

WindowQueries = Float[Array, "G rho w d"]
WindowLogits = Float[Array, "G rho w n"]
"""Logits of remembered queries, or their attention."""

OverEntries = Float[Array, "... n"]
"""One number per entry, whatever the axes before them are."""

Positions = Int[Array, "G n"]

Scores = Float[Array, "G n"]
"""One number per entry."""

Marks = Bool[Array, "G n"]
"""Marks of some entries: true for a marked entry."""

KeepSet = Int[Array, "G kept"]
"""Indices of the kept entries, ascending; every KV head keeps equally many."""
