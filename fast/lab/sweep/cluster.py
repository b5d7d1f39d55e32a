"""The Ray engine: jobs as tasks on a cluster whose processes may die at any time.

The driver keeps as many tasks running as the cluster has room for, and keeps what they return, so
that no file system has to be shared. Ray starts the processes, which keep their model from job to
job. A job whose process dies is handed out again; nodes that join get jobs, and the sweep does not
wait for nodes that leave. If the driver dies, Ray ends its tasks.
"""

import logging
import os
import socket
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray warns where it is unset

import ray
from ray.exceptions import RayError, RayTaskError

from kvlab.fast.lab.benchmarks.machine import versions
from kvlab.fast.lab.sweep.plan import Job
from kvlab.fast.lab.sweep.worker import Engine, Failure, Found, Result, Worker

ADDRESS = "RAY_ADDRESS"
"""Environment variable that names the cluster."""

PATIENCE = 1.0
"""Seconds between two looks at the cluster's size."""

PATIENCE_FOR_CLUSTER = 10.0
"""Seconds until a cluster that does not answer counts as not there."""

MOST_DEATHS = 5
"""Processes that may die of one job before the job is given up. This tolerates accidents, and ends
a job that itself kills its processes, for example because it needs too much memory."""


class RayEngine(Engine):
    """Jobs on the cluster that ``RAY_ADDRESS`` names; without it, on one made for this run."""

    def __init__(self, workers: int | None = None, gpus: float | None = None) -> None:
        """Note the arguments; the cluster is contacted when results are asked for.

        Args:
            workers: jobs at a time at most; None: as many as the cluster has room for.
            gpus: per job, parts allowed; None: 1 if the cluster has any.
        """
        self.workers, self.gpus = workers, gpus

    def results(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Yield every job once.

        Raises:
            ConnectionError: if the cluster cannot be reached, or cannot run kvlab.
            ValueError: if no worker fits the cluster, or a node has another version of kvlab.
        """
        with connected():
            gpus = self.gpus_per_worker()
            if not room(gpus):
                raise ValueError(f"gpus = {gpus:g} per worker is more than the cluster has")
            options: Any = {"num_cpus": 1, "num_gpus": gpus, "max_retries": 0, "max_calls": 0}
            task = ray.remote(**options)(run_job)
            waiting, deaths = deque(jobs), Counter[str]()
            running: dict[Any, Job] = {}
            try:
                while waiting or running:
                    places = min(self.workers or room(gpus), room(gpus) or 1)
                    while waiting and len(running) < places:
                        job = waiting.popleft()
                        running[task.remote(job, Worker, relevant_versions())] = job
                    ready, _ = ray.wait(list(running), num_returns=1, timeout=PATIENCE)
                    for reference in ready:
                        job = running.pop(reference)
                        found = _found(reference)
                        if found is None and deaths[job.id] < MOST_DEATHS - 1:
                            deaths[job.id] += 1
                            waiting.appendleft(job)
                        else:
                            yield job, found or Failure(f"{MOST_DEATHS} processes died of it")
            finally:
                for reference in running:
                    ray.cancel(reference, force=True)

    def gpus_per_worker(self) -> float:
        """Return the GPUs that each job asks for."""
        if self.gpus is not None:
            return self.gpus
        return 1.0 if ray.cluster_resources().get("GPU", 0) >= 1 else 0.0


def _found(reference: Any) -> list[Found] | Failure | None:
    """Return what a task has returned; None if its process died, or the answer was lost."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error, ValueError):
            raise ValueError(str(error.cause)) from None
        raise ConnectionError(f"the cluster cannot run kvlab: {_one_line(error)}") from None
    except RayError:
        return None


_kept: list[Worker] = []
"""The worker of this process, if it has done a job."""


def run_job(job: Job, kind: type[Worker], versions: dict[str, str | None]) -> list[Found] | Failure:
    """Do a job, in a process somewhere in the cluster.

    Raises:
        ValueError: if versions differ from those of the driver.
    """
    for name, ours in relevant_versions().items():
        if versions[name] != ours:
            raise ValueError(f"a worker of the cluster has {name} {ours}, not {versions[name]}")
    if not _kept:
        _kept.append(kind())
    return _kept[0].attempt(job)


@contextmanager
def connected() -> Iterator[None]:
    """Connect to the cluster, and leave or end it.

    Raises:
        ConnectionError: if it cannot be reached.
    """
    address = os.environ.get(ADDRESS) or "local"
    _check_reachable(address)
    own: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    already = ray.is_initialized()
    try:
        ray.init(
            address,
            ignore_reinit_error=already,
            log_to_driver=False,
            logging_level=logging.ERROR,
            namespace="kvlab",
            **own,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConnectionError(
            f"{ADDRESS} = {address} cannot be reached: {_one_line(error)}"
        ) from None
    try:
        yield
    finally:
        if not already:
            ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise ConnectionError if nobody answers at ``host:port``; Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE_FOR_CLUSTER).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"{ADDRESS} = {address} cannot be reached: {error}") from None


def _one_line(error: Exception) -> str:
    """Return the line of Ray's report that says most."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if "Error: " in line]
    return (causes or lines or [type(error).__name__])[-1 if causes else 0].strip()


def room(gpus: float) -> int:
    """Return the workers that the nodes of the cluster have room for."""
    alive: list[dict[str, Any]] = [node for node in ray.nodes() if node["Alive"]]
    return sum(_room_on(node["Resources"], gpus) for node in alive)


def _room_on(resources: dict[str, float], gpus: float) -> int:
    places, devices = int(resources.get("CPU", 0)), resources.get("GPU", 0)
    if not gpus:
        return places
    if gpus < 1:  # a worker of less than one device stays on one
        return min(places, int(devices) * int(1 / gpus))
    return min(places, int(devices / gpus))


def relevant_versions() -> dict[str, str | None]:
    """Return the versions on which results depend."""
    found = versions()
    return {name: found[name] for name in ("python", "kvlab", "torch", "transformers")}
