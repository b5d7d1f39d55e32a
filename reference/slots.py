"""How many slots a growing buffer has: the same formula plans memory and allocates it.

Entries are evicted in place, and buffers have room for entries to come, so that not every token
needs a new buffer.
"""

MOST_SLACK = 64
"""Slots that a buffer may have beyond those in use once a step is done."""

MOST_WAITING = 32
"""Queries that wait between two decisions, until the score observes them together."""


def slack(entries: int) -> int:
    """Slots to allocate beyond ``entries``."""
    return min(MOST_SLACK, 8 + entries // 32)


def grown(capacity: int, entries: int) -> int:
    """Return the slots of a buffer once it has to hold ``entries``; the first ones fit exactly."""
    if entries <= capacity:
        return capacity
    return entries + slack(entries) if capacity else entries


def shrunk(capacity: int, entries: int) -> int:
    """Return the slots of a buffer once all but ``entries`` were moved out of it."""
    return capacity if capacity <= entries + MOST_SLACK else entries + slack(entries)
