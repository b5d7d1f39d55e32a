"""Measurements of a benchmark, kept as they come: one that was stopped goes on where it was."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvlab.fast.lab.benchmarks.results import machine, versions
from kvlab.fast.lab.files import folder_of, named
from kvlab.fast.lab.terminal import errors, refuse

Once = Callable[[str, Callable[[], Any]], Any]
"""Returns what was measured under a name, as plain data, or lets it be measured now."""


class Measurements:
    """What a benchmark has found so far: beside its result, a line of JSON for each name.

    The first line says who measured what; the last one may have been cut off.
    """

    def __init__(self, path: Path | None, about: Mapping[str, Any], total: int) -> None:
        """Read what is there of the same benchmark; another's is refused. None keeps nothing."""
        self.path, self.total, self.done = path, total, 0
        self.found: dict[str, Any] = {}
        lines = path.read_text("utf-8").splitlines(keepends=True) if path and path.exists() else []
        whole = [json.loads(line) for line in lines if line.endswith("\n")]
        about = json.loads(json.dumps(about))
        if whole and whole[0] != about:
            other = next(k for k in {**about, **whole[0]} if about.get(k) != whole[0].get(k))
            refuse(
                f"{path} holds what was measured with {other} = {whole[0].get(other)}, and this is "
                f"{about.get(other)}: remove the file, or give another --out"
            )
        self.found.update(whole[1:])
        if path is not None:
            with named(path), folder_of(path):
                path.write_text("".join(f"{json.dumps(x)}\n" for x in whole or [about]), "utf-8")

    def __call__(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return what was measured under a name, or measure it, say so, and keep it."""
        self.done += 1
        if name not in self.found:
            began = time.perf_counter()
            self.found[name] = measure()
            took = time.perf_counter() - began
            errors.print(f"{self.done} of {self.total}: {name}, {took:.1f} s", markup=False)
            if self.path is not None:
                with named(self.path), self.path.open("a", encoding="utf-8") as file:
                    file.write(f"{json.dumps([name, self.found[name]])}\n")
        return self.found[name]


@contextmanager
def measuring(
    out: Path | None, asked: Mapping[str, Any], device: str, total: int
) -> Iterator[Measurements]:
    """Keep measurements beside a result until it is written, which is when the context ends.

    Args:
        out: file of the result; None keeps nothing, because there is no place for it.
        asked: what the benchmark was asked for.
        device: where it runs.
        total: number of measurements, for who waits.
    """
    path = None if out is None else out.with_name(f"{out.name}.part")
    about = {"asked": asked, "machine": machine(device), "versions": versions()}
    once = Measurements(path, about, total)
    try:
        yield once
    except KeyboardInterrupt:
        kept = f"{path} holds {len(once.found)}: the same command goes on" if path else "none kept"
        errors.print(f"stopped after {once.done - 1} of {total} measurements; {kept}", markup=False)
        raise
    if path is not None:
        path.unlink()
