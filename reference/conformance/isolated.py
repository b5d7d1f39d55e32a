"""A Python file under test in a process of its own: a crash costs one case, not the run.

The process answers one case after the other. When it is lost, the case that it worked on has
failed, and the next case starts a new process.
"""

import os
import signal
import sys
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kvlab.reference.conformance.case import Case
from kvlab.reference.conformance.implementation import (
    LostError,
    NotTestedError,
    RaisedError,
    load,
)
from kvlab.reference.notation import Array

STARTING = 300.0
"""Seconds that loading the file may take: importing a compiler, or building an extension."""


@dataclass(frozen=True)
class Loading:
    """How a file is loaded: the arguments of `load`."""

    file: Path
    arrays: str | None = None
    device: str | None = None
    precision: str | None = None


@dataclass
class Isolated:
    """The functions of a file, called in another process. Close it when all cases are done."""

    loading: Loading
    timeout: float = 60.0
    """Seconds that one case may take."""
    precision: str = field(init=False)
    _process: Any = field(init=False, default=None, repr=False)
    _connection: Any = field(init=False, default=None, repr=False)
    _offered: dict[str, bool] = field(init=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Load the file once, so that what is wrong with it is said before a case runs.

        Raises:
            ValueError: if the file cannot be run, or defines no implementations.
            TypeError: if an implementation is no function.
            FileNotFoundError: if there is no such file.
        """
        self._start()

    def offers(self, target: str) -> bool:
        """Whether the file has a function for a target."""
        if target not in self._offered:
            self._offered[target] = self._ask("offers", target, STARTING)
        return self._offered[target]

    def answer(self, case: Case) -> dict[str, Array]:
        """Let the process answer a case.

        Raises:
            NotTestedError: if the function raises NotImplementedError.
            LostError: if the process crashes, or takes longer than the time limit.
            RaisedError: if the function raises anything else.
        """
        return self._ask("answer", case, self.timeout)

    def close(self) -> None:
        """End the process."""
        if self._process is None:
            return
        self._connection.close()
        self._process.kill()
        self._process.join()
        self._process = None

    def _start(self) -> None:
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self.loading), daemon=True)
        self._process.start()
        theirs.close()
        self.precision = self._receive(STARTING)

    def _ask(self, question: str, about: Any, seconds: float) -> Any:
        if self._process is None:
            self._start()
        try:
            self._connection.send((question, about))
        except OSError:
            raise LostError(self._last_words()) from None
        return self._receive(seconds)

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


def _serve(connection: Connection, loading: Loading) -> None:
    os.dup2(sys.stderr.fileno() if _has_file(sys.stderr) else 2, 1)  # stdout is the report's alone
    try:
        functions = load(loading.file, loading.arrays, loading.device, loading.precision)
    except (ValueError, TypeError, FileNotFoundError) as error:
        connection.send((type(error), str(error)))
        return
    connection.send((None, functions.precision))
    while True:
        try:
            question, about = connection.recv()
        except (EOFError, ConnectionError):
            return
        connection.send(_reply(functions, question, about))


def _reply(functions: Any, question: str, about: Any) -> tuple[type[Exception] | None, Any]:
    try:
        return None, getattr(functions, question)(about)
    except NotTestedError as why:
        return NotTestedError, str(why)
    except (Exception, SystemExit) as error:  # whatever a kernel does is a finding
        return RaisedError, f"{type(error).__name__}: {error}"


def _has_file(stream: Any) -> bool:
    try:
        return stream.fileno() >= 0
    except (AttributeError, OSError, ValueError):
        return False
