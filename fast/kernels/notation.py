"""What shapes are written in: jaxtyping's kinds, PyTorch's tensor, and array types that recur.

Axes are those of `kvlab.reference.notation`, with the batch ``N`` in front.
"""

from collections.abc import Callable, Sequence

from jaxtyping import Bool as Bool, Float as Float, Int as Int, Shaped as Shaped, UInt8 as UInt8
from torch import Tensor as Tensor

Queries = Float[Tensor, "N G rho m d"]
NewestQueries = Float[Tensor, "N G rho 1 d"]
"""Queries, or outputs, of one token."""
RowVectors = Float[Tensor, "*rows d"]
"""Vectors whatever their axes are."""
Vectors = Float[Tensor, "N G n d"]
"""Keys or values of all slots."""
Probabilities = Float[Tensor, "N G rho m n"]
PerRow = Float[Tensor, "N G k n"]
"""Weights of the entries, one row per query head or per KV head."""
Positions = Int[Tensor, "N G n"]
"""Absolute positions of the entries, -1 where a slot is empty."""
QueryPositions = Int[Tensor, "N m"]
"""Absolute positions of queries, -1 for padding."""
Real = Bool[Tensor, "N m"]
"""Marks tokens that are no padding."""
Slots = Int[Tensor, "N G kept"]
Marks = Bool[Tensor, "N G n"]
PerEntry = Float[Tensor, "N G n"]
Scores = Float[Tensor, "N #G n"]
"""Score of every slot; one row for all heads if they decide together."""
Candidates = Bool[Tensor, "N G n"] | None
"""Entries that may be evicted; None: all may."""
Room = Sequence[int]
"""How many candidates of each sequence may be kept."""
Change = Callable[[Tensor], Tensor]
"""A change of the batch axis, such as a choice of rows."""
