"""Array types that recur; axes as in `kvlab.reference.notation`, with the batch ``N`` in front."""

from collections.abc import Sequence

from jaxtyping import Bool, Float, Int
from torch import Tensor

Queries = Float[Tensor, "N G rho m d"]
Vectors = Float[Tensor, "N G n d"]
"""Keys or values of all slots."""
Probabilities = Float[Tensor, "N G rho m n"]
Positions = Int[Tensor, "N G n"]
"""Absolute positions of the entries, -1 where a slot is empty."""
QueryPositions = Int[Tensor, "N m"]
"""Absolute positions of queries, -1 for padding."""
Marks = Bool[Tensor, "N G n"]
PerEntry = Float[Tensor, "N G n"]
Scores = Float[Tensor, "N #G n"]
"""Score of every slot; one row for all heads if they decide together."""
Candidates = Bool[Tensor, "N G n"] | None
"""Entries that may be evicted; None: all may."""
Room = Sequence[int]
"""How many candidates of each sequence may be kept."""
