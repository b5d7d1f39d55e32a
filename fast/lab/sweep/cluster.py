"""The Ray engine: jobs as tasks on a cluster whose processes may die at any time.

The driver hands jobs to Ray and keeps what they return, so that no file system has to be shared.
Ray starts the processes, which keep their model from job to job. A job whose process dies is handed
out again; nodes that join get jobs, and the sweep does not wait for nodes that leave. If the driver
dies, Ray ends its tasks; a cluster of its own ends with it, because a `keeper` holds that.
"""

import logging
import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray warns where it is unset

import ray
from ray.exceptions import RayError, RayTaskError

from kvlab.fast.lab.evaluate.backends import device_here
from kvlab.fast.lab.provenance import versions
from kvlab.fast.lab.sweep.jobs import Done, Failure, Result, attempt
from kvlab.fast.lab.sweep.keeper import REACHED
from kvlab.fast.lab.sweep.plan import Job
from kvlab.reference.methods import discover_again
from kvlab.reference.outside import OUTSIDE, named

ADDRESS = "RAY_ADDRESS"

STARTING = 90.0
"""Seconds until Ray that does not start counts as broken."""

PATIENCE = 10.0
"""Seconds until a cluster that does not answer, or does not end, counts as not there."""

MOST_QUEUED = 1000
"""Jobs that Ray is given at a time; it runs as many as the cluster has room for."""

MOST_DEATHS = 5
"""Processes that may die of one job, as for want of memory, before the job is given up."""


def on_cluster(
    jobs: Iterable[Job], workers: int | None = None, gpus: float | None = None
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
        jobs, again, deaths = iter(jobs), deque[Job](), Counter[str]()
        running: dict[Any, Job] = {}
        try:
            while True:
                while len(running) < (workers or MOST_QUEUED):
                    job = again.popleft() if again else next(jobs, None)
                    if job is None:
                        break
                    running[task.remote(job, attempt, ours, outside)] = job
                if not running:
                    return
                (reference,), _ = ray.wait(list(running), num_returns=1)
                job = running.pop(reference)
                if (found := _found(reference)) is not None:
                    yield job, found
                    continue
                deaths[job.id] += 1
                if deaths[job.id] < MOST_DEATHS:
                    again.append(job)
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
    job: Job, do: Any, driver: dict[str, str | None], outside: str
) -> list[Result] | Failure:
    """Do a job in a process of the cluster, where versions and places are those of the driver."""
    if os.environ.get(OUTSIDE, "") != outside:
        os.environ[OUTSIDE] = outside
        discover_again()
    for name, here in relevant_versions().items():
        if driver[name] != here:
            raise ValueError(f"a worker of the cluster has {name} {here}, not {driver[name]}")
    return do(job)


def relevant_versions() -> dict[str, str | None]:
    """Return the versions on which results depend."""
    found = versions()
    return {name: found[name] for name in ("python", "kvlab", "torch", "transformers")}


@contextmanager
def connected() -> Iterator[None]:
    """Connect to the cluster, and leave or end it; ConnectionError if there is none to connect to.

    One that is made for this run ends with this process, also if that is killed.
    """
    if ray.is_initialized():
        yield
        return
    asked = os.environ.get(ADDRESS)
    with ExitStack() as stack:
        try:
            if asked:
                _check_reachable(asked)
            else:
                _ask_for_token()
            address = stack.enter_context(_kept(asked or "local"))
            stack.callback(ray.shutdown)
            quiet: Any = {"log_to_driver": False, "logging_level": logging.ERROR}
            ray.init(address, namespace="kvlab", **quiet)
        except (OSError, OverflowError, RuntimeError, ValueError) as error:
            what = f"{ADDRESS} = {asked} cannot be reached" if asked else "Ray cannot start here"
            raise ConnectionError(f"{what}: {_one_line(error)}") from None
        yield


def _ask_for_token() -> None:
    """Let the cluster of this run ask for a token, as Ray's do that `ray.init` starts."""
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        with suppress(ImportError):  # the module moves, and older versions know no tokens
            from ray._raylet import Config  # type: ignore[attr-defined]

            Config.initialize("")  # read again what was read when Ray was imported


@contextmanager
def _kept(address: str) -> Iterator[str]:
    """Let a `keeper` reach a cluster, or start one; return the address to connect to.

    OSError with what Ray said if it fails, or takes longer than `STARTING` seconds.
    """
    command = [sys.executable, "-m", "kvlab.fast.lab.sweep.keeper", address]
    with TemporaryDirectory(prefix="kvlab-ray-", ignore_cleanup_errors=True) as room:
        said = Path(room) / "said.txt"
        with said.open("wb") as file:
            streams: Any = {"stdin": subprocess.PIPE, "stdout": file, "stderr": file}
            process: Any = subprocess.Popen(command, start_new_session=True, **streams)
        try:
            reached = _address_in(said, process)
            try:
                yield reached
            finally:
                process.stdin.close()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(PATIENCE)
        finally:
            process.kill()
            process.communicate()


def _address_in(said: Path, process: Any) -> str:
    """Wait for the line of a `keeper` that has the address; OSError if it does not come."""
    end, ended, text = time.monotonic() + STARTING, False, ""
    while not ended and time.monotonic() < end:
        time.sleep(0.05)
        ended = process.poll() is not None
        text = said.read_text(encoding="utf-8", errors="replace")
        if found := re.search(rf"^{REACHED}(.+)\n", text, re.MULTILINE):
            return found[1]
    raise OSError(text if ended else f"no answer within {STARTING:g} seconds")


def _check_reachable(address: str) -> None:
    """Raise OSError if nobody answers at ``host:port``; Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()


def _one_line(error: Exception) -> str:
    """Return the line of Ray's report that says most."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if "Error: " in line] or lines[:1]
    return (causes or [type(error).__name__])[-1].strip()
