"""Processes that share out work, and leave Ctrl-C to the one that started them."""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children
from typing import Any


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back; processes that are started meanwhile never see it, from the beginning."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def process_pool(workers: int, **options: Any) -> Iterator[Callable[..., Any]]:
    """Return a function that submits a call, as in ``submit(function, argument)``.

    An error in the context, such as Ctrl-C, ends the processes at once.
    """
    others = set(active_children())
    pool = ProcessPoolExecutor(workers, **options)

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
