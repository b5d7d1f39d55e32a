"""How many slots a growing buffer has: the same formula plans memory and allocates it.

Entries are evicted in place, and buffers have room for entries to come, so that not every token
needs a new buffer.
"""

from dataclasses import dataclass

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


def room_for_more(rows: int) -> int:
    """Return the rows of a table's new buffer once one more than ``rows`` has no room."""
    return rows + min(MOST_SLACK, 1 + rows // 16)


@dataclass
class Rows:
    """The rows of a table of vectors in one precision, and of the buffer that they lie in."""

    used: int = 0
    room: int = 0
    first: int = 0
    """Rows of the buffer before those in use."""

    def add(self, rows: int) -> None:
        """Add rows at the end: one goes into the room behind the others, several are joined."""
        if rows > 1 or not self.used:
            self.first, self.room = 0, self.used + rows
        elif self.first + self.used >= self.room:
            self.first, self.room = 0, room_for_more(self.used)
        self.used += rows

    def remove(self, rows: int, oldest: bool) -> None:
        """Remove rows: if they are the ``oldest``, a few stay in the buffer, unused."""
        self.used -= rows
        if oldest and rows <= MOST_SLACK and self.used:
            self.first += rows
        else:
            self.first, self.room = 0, self.used
