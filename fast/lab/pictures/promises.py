"""What a check of a policy's promises found."""

from collections.abc import Sequence

from kvlab.fast.lab.pictures.table import Table
from kvlab.reference.invariants import Kept


def promises(found: Sequence[Kept]) -> Table:
    """List every promise, and what is wrong."""
    return Table(
        ("promise", "streams", "verdict"),
        [(each.promise, str(each.streams), each.objection or "kept") for each in found],
        words=3,
        wrap=True,
    )
