"""A Python file under test in a process of its own: a crash costs one case, not the run.

The process answers one case after the other. When it is lost, the case that it worked on has
failed, and the next case starts a new process.
"""

import os
import signal
from copy import copy
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kvlab.reference.conformance.implementation import (
    FailedError,
    LostError,
    NotTestedError,
    load,
    offered,
)
from kvlab.reference.conformance.vectors import Case
from kvlab.reference.notation import Array
from kvlab.reference.processes import without_interrupts

STARTING = 300.0
"""Seconds that loading the file may take: importing a compiler, or building an extension."""


@dataclass
class Isolated:
    """The functions of a file, called in another process. Close it when all cases are done.

    The file is loaded at once, so that what is wrong with it is said before a case runs.
    """

    file: Path
    arrays: str | None = None
    device: str | None = None
    precision: str = ""
    """As for `load`; at the end, the number format in which the functions work."""
    timeout: float = 60.0
    """Seconds that one case may take."""
    slices: bool = True
    """As for `Functions`."""
    _process: Any = field(init=False, default=None, repr=False)
    _connection: Any = field(init=False, default=None, repr=False)
    _offered: list[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Load the file, which raises what `load` raises."""
        self.precision, self._offered = self._start()

    def offers(self, target: str) -> bool:
        """Whether the file has a function for a target."""
        return offered(target, self._offered) is not None

    def answer(self, case: Case) -> dict[str, Array]:
        """Let the process answer a case."""
        if self._process is None:
            self._start()
        try:
            self._connection.send((case, self.slices))
        except OSError:
            raise LostError(self._last_words()) from None
        return self._receive(self.timeout)

    def another(self) -> "Isolated":
        """Return the same in a process of its own, which its first case starts."""
        other = copy(self)
        other._process = other._connection = None
        return other

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.join()
            self._process = None

    def _start(self) -> tuple[str, list[str]]:
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        loading = (self.file, self.arrays, self.device, self.precision or None)
        self._process = context.Process(target=_serve, args=(theirs, loading), daemon=True)
        with without_interrupts():
            self._process.start()
        theirs.close()
        return self._receive(STARTING)

    def _receive(self, seconds: float) -> Any:
        try:
            if not self._connection.poll(seconds):
                self.close()
                raise LostError(f"took longer than {seconds:g} s, and was ended")
            error, content = self._connection.recv()
        except (EOFError, ConnectionError):
            raise LostError(self._last_words()) from None
        if error is not None:
            raise error(content)
        return content

    def _last_words(self) -> str:
        self._process.join(STARTING)
        code = self._process.exitcode or 0
        self._process = None
        if code >= 0:
            return f"the process ended with exit code {code} in the middle of the case"
        return f"the process crashed: {signal.Signals(-code).name}"


def _serve(connection: Connection, loading: tuple[Any, ...]) -> None:
    os.dup2(2, 1)  # stdout is the report's alone
    try:
        functions = load(*loading)
    except (ValueError, TypeError, FileNotFoundError) as error:
        connection.send((type(error), str(error)))
        return
    connection.send((None, (functions.precision, [*functions.functions])))
    while True:
        try:
            case, functions.slices = connection.recv()
        except (EOFError, ConnectionError):
            return
        try:
            reply = None, functions.answer(case)
        except (NotTestedError, FailedError) as why:
            reply = type(why), str(why)
        except (Exception, SystemExit) as error:  # whatever a kernel does is a finding
            reply = FailedError, f"{type(error).__name__}: {error}"
        connection.send(reply)
