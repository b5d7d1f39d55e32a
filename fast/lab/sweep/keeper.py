"""A process of its own in which Ray starts: it tells its parent the address, and ends with it.

Ray that cannot start may write pages, abort or wait for ever, whatever the caller does; and a
cluster whose driver is killed leaves processes behind. From here neither reaches the caller: it
reads one line, and the cluster ends when this process's standard input does, as it does however the
caller ends.
"""

import os
import signal
import sys
import time
from threading import Event, Thread
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody

REACHED = "kvlab reached "
"""What stands before the address."""

PATIENCE = 30.0
"""Seconds that Ray has to end."""


def main(address: str) -> None:
    """Start a cluster, if the address is ``local``, or connect to one; print its address."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller decides
    alone = Event()
    Thread(target=_watch, args=[alone], daemon=True).start()
    import ray

    options: Any = {"include_dashboard": False} if address == "local" else {}
    ray.init(address, log_to_driver=False, namespace="kvlab", **options)
    if address == "local":
        address = ray.get_runtime_context().gcs_address
    print(f"\n{REACHED}{address}", flush=True)
    alone.wait()
    ray.shutdown()


def _watch(alone: Event) -> None:
    """Wait for the end of the caller; Ray that does not end by itself is then ended."""
    sys.stdin.read()
    alone.set()
    time.sleep(PATIENCE)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
