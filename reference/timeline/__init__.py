"""Timelines: what a method did with every token of a generation, step by step.

`record` lets the NumPy transformer write under a method, `record_trace` asks a method about a trace
(of any model); `write` and `read` turn timelines into JSON, whose schema ``file.py`` states.
"""

from kvlab.reference.timeline.file import read, write
from kvlab.reference.timeline.recorder import record, record_trace
from kvlab.reference.timeline.run import Events, Run, Snapshot, Timeline

__all__ = ["Events", "Run", "Snapshot", "Timeline", "read", "record", "record_trace", "write"]
