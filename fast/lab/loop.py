"""The loop of every long work: items become rows, and what is done is kept.

An item has an ``id``, which names it in every process, and a ``label`` for people. An engine does
items, in any order: one after the other, in several processes or on a cluster. The rows are kept in
a `Store`, so that a work may be stopped at any moment and goes on later, and several processes may
share it.
"""

import hashlib
import json
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

from kvlab.fast.lab.provenance import program, states
from kvlab.fast.lab.store import Store, written
from kvlab.fast.lab.tables import counted
from kvlab.fast.lab.terminal import OnProgress, print_aside
from kvlab.fast.models import cache_directory

PAUSE = 0.2
"""Seconds between two looks at what other processes do."""


@dataclass(frozen=True)
class Step:
    """An item that a function does."""

    id: str
    work: Callable[[], Any]

    label = property(attrgetter("id"))


def in_turn(steps: Iterable[Step]) -> Iterator[tuple[Step, Any]]:
    """Do one step after the other in this process."""
    for step in steps:
        yield step, step.work()


def run_all(
    items: Iterable[Any],
    store: Store | None = None,
    engine: Callable[[Iterator[Any]], Iterator[tuple[Any, Any]]] = in_turn,
    kind: Any = Any,
    progress: OnProgress = lambda done, total, what: None,
    tell: Callable[[Any, Any], object] = lambda item, row: None,
    lasting: Callable[[Any], bool] = lambda row: True,
) -> dict[str, Any]:
    """Do the items that have no row yet, and return all rows by the ids of the items.

    Args:
        items: the work, each item once.
        store: holds the rows; None: nothing outlives the call.
        engine: takes items one by one as it gets to them, and yields them with their rows; closing
            it stops what runs.
        kind: type of the rows, as `read_as` takes it.
        progress: called when the loop begins, and after each item.
        tell: called with each item and its row: first those that are stored, then as they come
            from the engine, or from another process that shares the work.
        lasting: whether a row is kept; another run does those anew that are not.
    """
    items, store = list(items), store or Store()
    waiting, found = {item.id: item for item in items}, {}

    def take(item: Any, row: Any) -> None:
        found[item.id] = row
        del waiting[item.id]
        progress(len(found), len(items), item.label)
        tell(item, row)

    progress(0, len(items), "starting")
    try:
        for item, text in [(waiting[x], text) for x, text in store.rows().items() if x in waiting]:
            take(item, store.read(item.id, text, kind))
        # A round goes once over what is left: while the engine asks for items, those that others
        # have done meanwhile are taken. A failed item stays claimed, so nobody tries it again
        # before this process ends. An engine that does nothing would go round for ever.
        while waiting:
            before, mine = len(waiting), _claimed(waiting, store, kind, take)
            if (first := next(mine, None)) is None:
                time.sleep(PAUSE)  # others do the rest
                continue
            made: Any = engine(chain([first], mine))
            with closing(made):
                for item, row in made:
                    if lasting(row):
                        store.keep(item.id, written(row))
                    take(item, row)
            if first.id in waiting and before == len(waiting):
                raise RuntimeError(f"{first.label} was begun, and nothing was done")
    finally:
        store.release()
    return {item.id: found[item.id] for item in items}


def _claimed(
    waiting: dict[str, Any], store: Store, kind: Any, take: Callable[[Any, Any], None]
) -> Iterator[Any]:
    """Yield the items that this process may do; take the rows that others have made meanwhile."""
    for item in [*waiting.values()]:
        if (text := store.row(item.id)) is not None:
            take(item, store.read(item.id, text, kind))
        elif store.claim(item.id):
            yield item


@contextmanager
def kept(work: str, **asked: Any) -> Iterator[Store]:
    """Keep the rows of a command in kvlab's cache until all are there.

    ``asked`` is all that the rows depend on, besides kvlab, methods from outside, the versions of
    what computes, and the machine. What it names files or folders by stands for what they hold.
    """
    given = [program(), asked, sorted(states(asked))]
    name = hashlib.sha256(json.dumps(given, default=str).encode()).hexdigest()[:16]
    place = cache_directory() / "unfinished"
    tell_of_older(each for each in place.glob(f"{work}-*") if not each.suffix)
    path = place / f"{work}-{name}.sqlite"
    store, finished = Store(path, durable=False), False
    if done := store.items():
        count = counted(len(done), "step")
        print_aside(f"going on after {count} in {path}; delete it to begin anew")
    try:
        yield store
        finished = True
    except KeyboardInterrupt as stop:
        if done := store.items():
            count = counted(len(done), "step")
            stop.add_note(f"{count} kept in {path}: the same command goes on from there")
        raise
    finally:
        finished = finished or not store.items()
        store.close()
        if finished:
            path.unlink(missing_ok=True)


def tell_of_older(files: Iterable[Path]) -> None:
    """Name what an older kvlab has left in another format; it is neither read nor removed."""
    for path in sorted(files):
        print_aside(
            f"{path} was left by an older kvlab, which alone goes on with it; this one does not "
            "read it: delete it if you do not need it"
        )


def stop_with(note: str) -> KeyboardInterrupt:
    """Return what ends a command that Ctrl-C has stopped, and says what there is."""
    stop = KeyboardInterrupt()
    stop.add_note(note)
    return stop


@contextmanager
def until_stopped(what: str) -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C only be noted, so that ``what`` ends well; the second one is as ever."""
    pressed = []

    def note(number: int, frame: Any) -> None:
        signal.signal(number, before)
        pressed.append(number)
        print_aside(f"stopping after this {what}; Ctrl-C again stops at once")

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)
