"""Who does the jobs: this process, or the workers of a Ray cluster."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from traceback import format_exc

from kvlab.fast.lab.sweep.jobs import Job
from kvlab.fast.lab.sweep.worker import Found, Worker

NAMES = ("local", "ray")


@dataclass(frozen=True)
class Failure:
    """Why a job was given up; it counts as missing, and the next run tries again."""

    reason: str
    trace: str = ""
    """Where it happened."""


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
        """Yield every job once."""
        worker = Worker()
        for job in jobs:
            yield job, attempt_job(worker, job)


def attempt_job(worker: Worker, job: Job) -> list[Found] | Failure:
    """Do a job; what goes wrong in it must not stop the others."""
    try:
        return worker.run(job)
    except Exception as error:
        return Failure(f"{type(error).__name__}: {error}", format_exc())
