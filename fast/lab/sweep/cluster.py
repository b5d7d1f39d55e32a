"""The Ray engine: jobs as tasks on a cluster whose processes may die at any time.

The driver hands jobs to Ray and keeps what they return, so that no file system has to be shared.
Ray starts the processes, which keep their model from job to job. A job whose process dies is handed
out again; nodes that join get jobs, and the sweep does not wait for nodes that leave. If the driver
dies, Ray ends its tasks.
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

from kvlab.fast.lab.evaluate.backends import device_here
from kvlab.fast.lab.steps import versions
from kvlab.fast.lab.sweep.jobs import Done, Failure, Result, attempt
from kvlab.fast.lab.sweep.plan import Job
from kvlab.reference.methods import discover_again
from kvlab.reference.outside import OUTSIDE, named

ADDRESS = "RAY_ADDRESS"

PATIENCE = 10.0
"""Seconds until a cluster that does not answer counts as not there."""

MOST_QUEUED = 1000
"""Jobs that Ray is given at a time; it runs as many as the cluster has room for."""

MOST_DEATHS = 5
"""Processes that may die of one job, as for want of memory, before the job is given up."""


def on_cluster(
    jobs: Sequence[Job], workers: int | None = None, gpus: float | None = None
) -> Iterator[Done]:
    """Do jobs on the cluster that ``RAY_ADDRESS`` names; without it, on one made for this run.

    ``workers`` None does as many jobs at a time as fit; ``gpus`` are per job, parts allowed, None
    asks for 1 if there is any. ConnectionError if the cluster cannot be reached, or cannot run
    kvlab; ValueError if no worker fits it, or a node has another version of kvlab.
    """
    with connected():
        gpus = gpus_per_worker(gpus)
        options: Any = {"num_cpus": 1, "num_gpus": gpus, "max_retries": 0, "max_calls": 0}
        task, ours = ray.remote(**options)(run_job), relevant_versions()
        outside = os.pathsep.join(named())
        waiting, deaths = deque(jobs), Counter[str]()
        running: dict[Any, Job] = {}
        try:
            while waiting or running:
                while waiting and len(running) < (workers or MOST_QUEUED):
                    job = waiting.popleft()
                    running[task.remote(job, attempt, ours, outside)] = job
                (reference,), _ = ray.wait(list(running), num_returns=1)
                job = running.pop(reference)
                found = _found(reference)
                deaths[job.id] += found is None
                if found is not None:
                    yield job, found
                elif deaths[job.id] < MOST_DEATHS:
                    waiting.appendleft(job)
                else:
                    yield job, Failure(f"{MOST_DEATHS} processes died of it")
        finally:
            for reference in running:
                ray.cancel(reference, force=True)


def device_of_workers(gpus: float | None, device: str | None = None) -> str | None:
    """Return what computes on the cluster; None without an address, as it is this machine then."""
    if not os.environ.get(ADDRESS):
        return None
    with connected():
        options: Any = {"num_cpus": 1, "num_gpus": gpus_per_worker(gpus)}
        task: Any = ray.remote(**options)(device_here)
        try:
            return ray.get(task.remote("fast", device))
        except RayError as error:
            raise ConnectionError(f"the cluster cannot run kvlab: {_one_line(error)}") from None


def gpus_per_worker(asked: float | None) -> float:
    """Return the GPUs that each job asks for; ValueError if no node has so many."""
    most = max(node["Resources"].get("GPU", 0.0) for node in ray.nodes() if node["Alive"])
    if asked is not None and asked > most:
        raise ValueError(f"gpus = {asked:g} per worker is more than a node of the cluster has")
    return min(most, 1.0) if asked is None else asked


def _found(reference: Any) -> list[Result] | Failure | None:
    """Return what a task has returned; None if its process died, or the answer was lost."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error, ValueError):
            raise ValueError(str(error.cause)) from None
        raise ConnectionError(f"the cluster cannot run kvlab: {_one_line(error)}") from None
    except RayError:
        return None


def run_job(
    job: Job, do: Any, theirs: dict[str, str | None], outside: str
) -> list[Result] | Failure:
    """Do a job in a process of the cluster, where versions and places are those of the driver."""
    if os.environ.get(OUTSIDE, "") != outside:
        os.environ[OUTSIDE] = outside
        discover_again()
    for name, ours in relevant_versions().items():
        if theirs[name] != ours:
            raise ValueError(f"a worker of the cluster has {name} {ours}, not {theirs[name]}")
    return do(job)


def relevant_versions() -> dict[str, str | None]:
    """Return the versions on which results depend."""
    found = versions()
    return {name: found[name] for name in ("python", "kvlab", "torch", "transformers")}


@contextmanager
def connected() -> Iterator[None]:
    """Connect to the cluster, and leave or end it."""
    address = os.environ.get(ADDRESS) or "local"
    own: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    already = ray.is_initialized()
    try:
        _check_reachable(address)
        ray.init(
            address,
            ignore_reinit_error=already,
            log_to_driver=False,
            logging_level=logging.ERROR,
            namespace="kvlab",
            **own,
        )
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        raise ConnectionError(
            f"{ADDRESS} = {address} cannot be reached: {_one_line(error)}"
        ) from None
    try:
        yield
    finally:
        if not already:
            ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise OSError if nobody answers at ``host:port``; Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()


def _one_line(error: Exception) -> str:
    """Return the line of Ray's report that says most."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if "Error: " in line]
    return (causes or lines or [type(error).__name__])[-1 if causes else 0].strip()
