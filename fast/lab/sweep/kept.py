"""What a process keeps from one job of a sweep to the next: the model, questions and answers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvlab.fast.lab.evaluate.backends import (
    AS_STORED,
    Backend,
    devices_of,
    fingerprint,
    load_backend,
)
from kvlab.fast.lab.sweep.plan import Job
from kvlab.fast.models import model_location
from kvlab.reference.generators import seeded

_kept: dict[str, tuple[Any, Any]] = {}

number = 0
"""Of this process among the workers of one machine, which take its devices in turn."""


def once(kind: str, key: Any, make: Callable[[], Any]) -> Any:
    """Return what was made last if the key is the same; else free it, and make another one.

    Neither changes what the job draws.
    """
    if kind not in _kept or _kept[kind][0] != key:
        _kept.pop(kind, None)
        with seeded(0):
            _kept[kind] = key, make()
    return _kept[kind][1]


def start(place: Any = None, loaded: Backend | None = None) -> None:
    """Forget everything, but take a backend that was loaded for a place, as `place_of` says it."""
    _kept.clear()
    if loaded is not None:
        _kept["model"] = place, loaded


def place_of(job: Job) -> tuple[Any, ...]:
    """Return backend and model, and how this process loads it: what `load_backend` takes."""
    location, (dtype, device, parallel) = _location(job), job.loading
    if job.backend == "fast" and parallel is None:
        devices = devices_of(device)
        device = str(devices[number % len(devices)])
    return job.backend, location, dtype, device, parallel


def backend_of(job: Job) -> Backend:
    """Return the job's model, loaded."""
    return once("model", place_of(job), lambda: _checked(job, load_backend(*place_of(job))))


def _location(job: Job) -> str:
    return model_location(job.model, hub=job.backend == "fast")


def _checked(job: Job, backend: Backend) -> Backend:
    """Return a backend; ValueError if it is not as planned. A directory's weights are not read."""
    location = _location(job)
    dtype = backend.dtype if job.dtype == AS_STORED else job.dtype
    mark = job.fingerprint if Path(location).is_dir() else fingerprint(location)
    for what, planned, found in (
        ("device", job.device, backend.device),
        ("number format", dtype, backend.dtype),
        ("revision", job.fingerprint, mark),
    ):
        if planned not in ("", found):
            raise ValueError(f"the {what} of {job.model} is {found} here, and the plan's {planned}")
    return backend
