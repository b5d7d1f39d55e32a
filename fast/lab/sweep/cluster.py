"""The Ray engine: workers on a cluster, each with one model, that may die at any time.

The driver hands a worker one job at a time and keeps what it returns, so that no file system has to
be shared. A worker that dies is replaced, and its job is handed out again; nodes that join get
workers, and the sweep does not wait for nodes that leave. If the driver dies, Ray ends its workers.
"""

import logging
import os
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray warns where it is unset

import ray
from ray.exceptions import RayActorError, RayError

from kvlab.fast.lab.benchmarks.machine import versions
from kvlab.fast.lab.sweep.engines import Engine, Failure, Result, attempt_job
from kvlab.fast.lab.sweep.plan import Job
from kvlab.fast.lab.sweep.worker import Found, Worker

ADDRESS = "RAY_ADDRESS"
"""Environment variable that names the cluster."""

PATIENCE = 1.0
"""Seconds between two looks at the cluster's size."""

PATIENCE_FOR_CLUSTER = 10.0
"""Seconds until a cluster that does not answer counts as not there."""

MOST_DEATHS = 5
"""Workers that may die during one job before the job is given up. This tolerates accidents, and
ends a job that itself kills its workers, for example because it needs too much memory."""


@dataclass
class PooledWorker:
    """A worker, or one that waits until the cluster has room for it."""

    actor: Any
    pending: Any
    """The awaited reply: first the worker's versions, then the result of one job after another."""
    job: Job | None = None


class RayEngine(Engine):
    """Jobs on the cluster that ``RAY_ADDRESS`` names; without it, on one made for this run."""

    def __init__(self, workers: int | None = None, gpus: float | None = None) -> None:
        """Note the arguments; the cluster is contacted when results are asked for.

        Args:
            workers: at most so many; None: as many as the cluster has room for.
            gpus: per worker, parts allowed; None: 1 if the cluster has any.
        """
        self.workers, self.gpus = workers, gpus

    def results(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Yield every job once.

        Raises:
            ConnectionError: if the cluster cannot be reached.
            ValueError: if no worker fits the cluster, or a node has another version of kvlab.
        """
        with connected():
            gpus = self.gpus_per_worker()
            if not room(gpus):
                raise ValueError(f"gpus = {gpus:g} per worker is more than the cluster has")
            pool = WorkerPool(jobs, gpus, self.workers)
            try:
                yield from pool.work()
            finally:
                pool.stop_workers()

    def gpus_per_worker(self) -> float:
        """Return the GPUs that each worker asks for."""
        if self.gpus is not None:
            return self.gpus
        return 1.0 if ray.cluster_resources().get("GPU", 0) >= 1 else 0.0


class WorkerPool:
    """The workers of one sweep, and the jobs that are still to be handed out."""

    def __init__(self, jobs: Sequence[Job], gpus: float, most: int | None) -> None:
        self.waiting = deque(jobs)
        self.gpus, self.most = gpus, most
        self.workers: list[PooledWorker] = []
        self.deaths: dict[str, int] = {}
        self.failed_starts = 0
        """Workers in a row that died before they had a job."""

    def work(self) -> Iterator[Result]:
        """Yield every job once."""
        while self.waiting or any(worker.job for worker in self.workers):
            self.start_workers()
            pending = [worker.pending for worker in self.workers]
            ready, _ = ray.wait(pending, num_returns=1, timeout=PATIENCE)
            for worker in [each for each in self.workers if each.pending in ready]:
                yield from self.take_result(worker)

    def start_workers(self) -> None:
        """Ask for as many workers as the cluster has room for and jobs are left for."""
        wanted = min(self.most or room(self.gpus), room(self.gpus) or 1)
        busy = sum(worker.job is not None for worker in self.workers)
        for _ in range(min(wanted, busy + len(self.waiting)) - len(self.workers)):
            kind: Any = ray.remote(RemoteWorker)  # Ray does not restart it if it dies
            ask = kind.options(num_cpus=1, num_gpus=self.gpus, max_restarts=0, max_task_retries=0)
            actor = ask.remote()
            self.workers.append(PooledWorker(actor, actor.version.remote()))

    def take_result(self, worker: PooledWorker) -> Iterator[Result]:
        """Take what a worker has done, and hand it the next job."""
        job = worker.job
        try:
            answer: Any = ray.get(worker.pending)
        except RayActorError as error:
            self.workers.remove(worker)
            if job is not None:
                yield from self.retry_or_give_up(job, _one_line(error))
            else:
                self.count_failed_start(error)
            return
        except RayError as error:  # the answer was lost on its way
            answer = Failure(_one_line(error))
        if job is None:
            check_version(answer)
            self.failed_starts = 0
        else:
            yield job, answer
        self.assign_next_job(worker)

    def count_failed_start(self, error: RayError) -> None:
        """Raise ConnectionError if workers do not even start, as where kvlab is not installed."""
        self.failed_starts += 1
        if self.failed_starts >= MOST_DEATHS:
            raise ConnectionError(f"the cluster's workers do not start: {_one_line(error)}")

    def retry_or_give_up(self, job: Job, reason: str) -> Iterator[Result]:
        """Put the job of a dead worker back, or give it up."""
        self.deaths[job.id] = self.deaths.get(job.id, 0) + 1
        if self.deaths[job.id] < MOST_DEATHS:
            self.waiting.appendleft(job)
        else:
            yield job, Failure(f"{MOST_DEATHS} workers died of it: {reason}")

    def assign_next_job(self, worker: PooledWorker) -> None:
        """Give a worker the next job, of the model that it has loaded if there is one."""
        if not self.waiting:
            self.workers.remove(worker)
            ray.kill(worker.actor)
            return
        held = None if worker.job is None else worker.job.fingerprint
        number = next((n for n, j in enumerate(self.waiting) if j.fingerprint == held), 0)
        worker.job = self.waiting[number]
        del self.waiting[number]
        worker.pending = worker.actor.run.remote(worker.job)

    def stop_workers(self) -> None:
        """End the workers, whatever they are doing."""
        for worker in self.workers:
            ray.kill(worker.actor)
        self.workers.clear()


class RemoteWorker:
    """A `Worker` in a process of its own, somewhere in the cluster."""

    def __init__(self) -> None:
        self.worker = Worker()

    def version(self) -> dict[str, str | None]:
        """Return the versions that results depend on."""
        return relevant_versions()

    def run(self, job: Job) -> list[Found] | Failure:
        """Do a job."""
        return attempt_job(self.worker, job)


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
    places = int(resources.get("CPU", 0))
    return min(places, _devices(resources.get("GPU", 0), gpus)) if gpus else places


def _devices(present: float, wanted: float) -> int:
    """Workers that devices can be shared by; a worker of less than one device stays on one."""
    return int(present) * int(1 / wanted) if wanted < 1 else int(present / wanted)


def relevant_versions() -> dict[str, str | None]:
    """Return the versions on which results depend."""
    found = versions()
    return {name: found[name] for name in ("python", "kvlab", "torch", "transformers")}


def check_version(theirs: dict[str, str | None]) -> None:
    """Raise ValueError if a worker has other versions than the driver."""
    for name, ours in relevant_versions().items():
        if theirs[name] != ours:
            raise ValueError(f"a worker of the cluster has {name} {theirs[name]}, not {ours}")
