"""Implementations in other languages: a program that reads and writes safetensors.

For every case it is run as ``program TARGET INPUT OUTPUT``: TARGET such as ``h2o.score``, INPUT a
safetensors file with the case's inputs, whose ``__metadata__`` holds every parameter as text, and
OUTPUT the safetensors file that it has to write. It exits with 0, or with 77 for what it does not
do. A program that stays is started once: it reads a line ``TARGET INPUT OUTPUT`` for every case and
answers with a line, the code with which it would have exited and what it would have said.
"""

import shlex
import shutil
import signal
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Timer
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from kvlab.reference.checks import check_choice
from kvlab.reference.conformance.implementation import FailedError, LostError, NotTestedError
from kvlab.reference.conformance.operation import DTYPES
from kvlab.reference.conformance.targets import operation_of
from kvlab.reference.conformance.vectors import PRECISIONS, Case
from kvlab.reference.notation import Array

SKIPPED = 77
"""Exit code of a program that does not do what a case asks for, as in Automake."""


@dataclass
class Program:
    """A program that answers cases through files."""

    command: str
    """As typed in a shell, without the three arguments that are added."""
    precision: str = "float32"
    """Number format in which the program works: sets the tolerance; files hold float32."""
    timeout: float = 60.0
    """Seconds that one case may take."""
    stays: bool = False
    """Whether one process answers case after case."""
    _process: "subprocess.Popen[str] | None" = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Raise ValueError unless there is such a program."""
        check_choice(PRECISIONS, precision=self.precision)
        words = shlex.split(self.command)
        if not words or shutil.which(words[0]) is None:
            raise ValueError(f"exec = {self.command!r} must be a program that can be run")

    def offers(self, target: str) -> bool:
        """Whether the program offers a target; only running it tells, so this is always true."""
        return True

    def answer(self, case: Case) -> dict[str, Array]:
        """Run the program on one case; the exit code 77 says that it is not tested."""
        with TemporaryDirectory(prefix="kvlab-") as folder:
            given, made = Path(folder, "input.safetensors"), Path(folder, "output.safetensors")
            given.write_bytes(request(case))
            self._run(case, given, made)
            if not made.exists():
                raise FailedError(f"the program wrote no {made.name}")
            return read_outputs(made.read_bytes())

    def another(self) -> "Program":
        """Return a program of its own where one stays, else itself."""
        return replace(self) if self.stays else self

    def close(self) -> None:
        """End the process, if one has stayed."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _run(self, case: Case, given: Path, made: Path) -> None:
        asked = [case.target, str(given), str(made)]
        code, said = self._asked(asked) if self.stays else self._started(asked)
        if code < 0:
            raise LostError(f"the program crashed: {signal.Signals(-code).name}")
        if code == SKIPPED:
            raise NotTestedError(said or f"exit code {SKIPPED}")
        if code:
            last = said.splitlines()[-1:] or ["nothing on stderr"]
            raise FailedError(f"the program exited with {code}: {last[0]}")

    def _asked(self, asked: list[str]) -> tuple[int, str]:
        """Let the process that stays answer; one that has ended is started again."""
        if self._process is None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                shlex.split(self.command), stdin=pipe, stdout=pipe, text=True, bufsize=1
            )
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        late = Event()
        watch = Timer(self.timeout, lambda: (late.set(), process.kill()))
        watch.start()
        try:
            print(*asked, file=process.stdin, flush=True)
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        watch.cancel()
        if not answer:
            code = process.wait()
            self.close()
            if late.is_set():
                raise LostError(f"the program took longer than {self.timeout:g} s")
            if code >= 0:
                raise LostError(f"the program ended with {code} instead of an answer")
            return code, ""
        code, _, said = answer.strip().partition(" ")
        if not code.isdigit():
            raise FailedError(f"the program answered {answer.strip()!r}, which is no exit code")
        return int(code), said

    def _started(self, asked: list[str]) -> tuple[int, str]:
        """Run the program for one case; return its exit code and what it said."""
        command = [*shlex.split(self.command), *asked]
        try:
            done = subprocess.run(command, capture_output=True, timeout=self.timeout, check=False)
        except subprocess.TimeoutExpired:
            raise LostError(f"the program took longer than {self.timeout:g} s") from None
        return done.returncode, done.stderr.decode(errors="replace").strip()


def request(case: Case) -> bytes:
    """Return a case's inputs and parameters as a safetensors file."""
    operation = operation_of(case.target)
    tensors = {
        name: np.ascontiguousarray(x, dtype=DTYPES[operation.input(name, x).kind])
        for name, x in case.inputs.items()
    }
    parameters = {name: _as_text(value) for name, value in case.parameters.items()}
    metadata = {**parameters, "method": case.method or "none"}
    return save(tensors, metadata)


def _as_text(value: Any) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_outputs(content: bytes) -> dict[str, Array]:
    """Read the arrays of a safetensors file; 16-bit formats become float32."""
    try:
        found = load(content)
    except Exception as error:  # safetensors raises its own exception, without a public name
        raise FailedError(f"the output is no safetensors file: {error}") from None
    return {
        name: x.astype(np.float32) if x.dtype.name in ("float16", "bfloat16") else x
        for name, x in found.items()
    }
