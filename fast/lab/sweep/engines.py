"""Who does the jobs: this process, several processes, or (`cluster`) the workers of a cluster."""

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from traceback import format_exc

from kvlab.fast.lab.sweep.plan import Job
from kvlab.fast.lab.sweep.worker import Found, Worker

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Failure:
    """Why a job was given up; the job counts as missing, and the next run tries it again."""

    reason: str
    trace: str = ""
    """Traceback of the error."""


Result = tuple[Job, list[Found] | Failure]


class Engine(ABC):
    """Does jobs, in any order."""

    @abstractmethod
    def results(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Yield every job once, as soon as it is done or given up.

        Closing the iterator stops what is running.
        """


class LocalEngine(Engine):
    """One job after the other, in this process."""

    def results(self, jobs: Sequence[Job]) -> Iterator[Result]:
        worker = Worker()
        for job in jobs:
            yield job, attempt_job(worker, job)


class ProcessEngine(Engine):
    """Processes of this machine, each with one thread and a model of its own.

    With one thread each, the times of methods are comparable.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def results(self, jobs: Sequence[Job]) -> Iterator[Result]:
        for variable in THREADS:
            os.environ.setdefault(variable, "1")
        others = set(active_children())
        with ProcessPoolExecutor(self.workers, get_context("spawn"), _start) as pool:
            futures = {pool.submit(_run, job): job for job in jobs}
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
            except BaseException:  # Ctrl-C, or nobody wants the other results: jobs take minutes
                for process in set(active_children()) - others:
                    process.terminate()
                raise
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


def attempt_job(worker: Worker, job: Job) -> list[Found] | Failure:
    """Do a job; an error becomes a `Failure`, so that the other jobs go on."""
    try:
        return worker.run(job)
    except Exception as error:
        return Failure(f"{type(error).__name__}: {error}", format_exc())


# --- in the processes ----------------------------------------------------------------------------

_workers: list[Worker] = []


def _start() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    _workers.append(Worker())


def _run(job: Job) -> list[Found] | Failure:
    return attempt_job(_workers[0], job)
