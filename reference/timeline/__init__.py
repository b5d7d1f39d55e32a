"""Timelines: what a method did with every token of a generation, step by step.

`record_generation` lets the NumPy transformer write under a method, `record_replay` asks a method
about a trace (of any model); `write` and `read` turn timelines into JSON and back.
"""

from kvlab.reference.timeline.recorder import record_generation, record_replay, token_texts
from kvlab.reference.timeline.run import Events, Run, Snapshot, Timeline, read, write

__all__ = [
    "Events",
    "Run",
    "Snapshot",
    "Timeline",
    "read",
    "record_generation",
    "record_replay",
    "token_texts",
    "write",
]
