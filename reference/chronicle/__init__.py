"""Chronicles: what a method did with every token of a generation, step by step.

`record` lets the NumPy transformer write under a method, `record_trace` asks a method about a trace
(of any model); `write` and `read` turn chronicles into JSON, whose schema ``file.py`` states.
"""

from kvlab.reference.chronicle.file import read, write
from kvlab.reference.chronicle.record import record, record_trace
from kvlab.reference.chronicle.run import Chronicle, Events, Run, Snapshot

__all__ = ["Chronicle", "Events", "Run", "Snapshot", "read", "record", "record_trace", "write"]
