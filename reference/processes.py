"""Processes that share out work, and leave Ctrl-C to the one that started them."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, parent_process
from threading import Thread
from typing import Any

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@contextmanager
def threads_of_processes(count: int) -> Iterator[None]:
    """Let processes that start meanwhile compute with so many threads, unless the user says."""
    own = [variable for variable in THREADS if variable not in os.environ]
    os.environ.update(dict.fromkeys(own, str(count)))
    try:
        yield
    finally:
        for variable in own:
            del os.environ[variable]


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back; processes that are started meanwhile never see it, from the beginning."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(initializer: Callable[..., Any] | None, *arguments: Any) -> None:
    """Let a process end with its parent, whatever it does then; call what else comes first."""
    Thread(target=_end_with_parent, daemon=True).start()
    if initializer is not None:
        initializer(*arguments)


def _end_with_parent() -> None:
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)


@contextmanager
def process_pool(workers: int, **options: Any) -> Iterator[Callable[..., Any]]:
    """Return a function that submits a call, as in ``submit(function, argument)``.

    An error in the context, such as Ctrl-C, ends the processes at once; and so does the end of this
    one, also if it is killed.
    """
    others = set(active_children())
    first = options.pop("initializer", None), *options.pop("initargs", ())
    pool = ProcessPoolExecutor(workers, initializer=_begin, initargs=first, **options)

    def submit(*call: Any) -> Any:
        with without_interrupts():
            return pool.submit(*call)

    try:
        yield submit
    except BaseException:
        for process in set(active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
