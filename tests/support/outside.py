"""A method that lives outside the package, in a file of its own, with state of its own."""

import os
import sys
from contextlib import contextmanager
from pathlib import Path

from kvlab.reference import methods
from kvlab.reference.outside import OUTSIDE

SOURCE = '''
"""Counts looks."""

from dataclasses import dataclass

import numpy as np

from kvlab.reference import Column, Edges, Entries, EveryBlock, Method, Policy, Score


@dataclass(frozen=True)
class MostLooks(Score):
    """How many queries gave an entry at least a share of their attention, weighted by its age."""

    share: float

    columns = {"looks": Column("queries that looked at the entry", integer=True)}

    def observe(self, state, seen):
        looked = (seen.attention.mean(axis=1) >= self.share).sum(axis=1)
        queries = state.stream.get("asked", np.zeros(1)) + seen.clock.block
        state = state.with_stream(asked=queries)
        return state.with_entries(looks=state.entries["looks"] + looked)

    def score(self, state, seen, candidates, room):
        age = seen.clock.seen - seen.positions
        return (state.entries["looks"] + 1) / (state.stream["asked"] + age)


@dataclass(frozen=True)
class Looks(Method):
    """Keep what is looked at often."""

    share: float = 0.05
    """Share of a query's attention that is a look."""
    recent: int = 4
    """Newest entries that are protected."""

    name = "looks"
    source = "nowhere"

    def policy(self, budget):
        protect = Edges(recent=self.recent)
        return Policy(self.name, MostLooks(self.share), EveryBlock(), protect, Entries(budget))
'''


PYRAMID = '''
"""Earlier layers keep more."""

from dataclasses import dataclass

from looks import MostLooks

from kvlab.reference import Budget, Edges, EveryBlock, Method, Policy


@dataclass(frozen=True)
class Falling(Budget):
    """From 1.5 times the mean budget in the first layer down to half of it in the last."""

    budget: int

    def entries(self, layer, layers):
        return round(self.budget * (1.5 - layer / max(1, layers - 1)))

    def room(self, seen, safe):
        return self.entries(seen.layer, seen.layers) - int(safe.sum(axis=-1).max())


@dataclass(frozen=True)
class Pyramid(Method):
    """Looks, with more entries in earlier layers."""

    recent: int = 4
    """Newest entries that are protected."""

    name = "pyramid"

    def policy(self, budget):
        protect = Edges(recent=self.recent)
        return Policy(self.name, MostLooks(0.05), EveryBlock(), protect, Falling(budget))
'''

FAST = '''
"""Both methods in PyTorch."""

from looks import MostLooks
from pyramid import Falling

from kvlab.fast import Budget, Score, twin_of


@twin_of(MostLooks)
class FastLooks(Score):
    def observe(self, state, seen):
        looked = (seen.attention.mean(dim=2) >= self.spec.share).sum(dim=2)
        state.entries["looks"].add_(looked)

    def score(self, state, seen, candidates, room):
        return (state.entries["looks"] + 1) / (2 * seen.clock.seen - seen.positions)


@twin_of(Falling)
class FastFalling(Budget):
    def room_of_layer(self, clock, entries, protected, layer, layers):
        return self.spec.entries(layer, layers) - protected
'''


def write_files(folder):
    """Write the methods and, in a third file, their PyTorch implementations."""
    sources = {"fast_looks": FAST, "pyramid": PYRAMID, "looks": SOURCE}
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    return [folder / f"{name}.py" for name in sources]


@contextmanager
def methods_named(*named):
    """Let the registry find these modules and files besides its own, and forget them again."""
    registered, before = dict(methods._registered), os.environ.get(OUTSIDE)
    os.environ[OUTSIDE] = os.pathsep.join(map(str, named))
    methods.discover_again()
    try:
        yield
    finally:
        os.environ.pop(OUTSIDE)
        if before is not None:
            os.environ[OUTSIDE] = before
        methods._registered.clear()
        methods._registered.update(registered)
        methods.discover_again()
        for each in named:
            sys.modules.pop(Path(each).stem, None)
