"""A pool of blocks and several requests: a script of events, and what everyone reads after each.

A request's table names the block of every page of its positions, or `NOBODY` where the page was
evicted. A block may have several users; whoever writes into one copies it first.
"""

from copy import deepcopy
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from kvlab.reference.attention import attend
from kvlab.reference.conformance.expecting import exact, largest, logit_size, numbers
from kvlab.reference.conformance.operation import answers
from kvlab.reference.conformance.vectors import Case
from kvlab.reference.notation import Array
from kvlab.reference.streams import Source

NOBODY = -1


class Kind(IntEnum):
    """What happens; a row of a script is a kind, a request, another request, and a number."""

    ARRIVE = 0
    """The request begins, with the first pages of another one, as many as the number says."""
    READ = 1
    """So many tokens are read at once."""
    SCHEDULE = 2
    """The next token has its place, and is in flight."""
    LAND = 3
    """The token in flight is written, and attends; if its request is gone, nothing happens."""
    EVICT = 4
    """The page of this number is evicted from the request."""
    FORK = 5
    """The request begins as a copy of another one."""
    PREEMPT = 6
    """The request gives all blocks back, and waits."""
    RETURN = 7
    """It reads all its tokens again, those of evicted pages too."""
    FREE = 8
    """It ends, or is aborted; a request of the same number may arrive."""
    REJECT = 9
    """So many of the newest tokens are taken back, with the blocks that hold none of the others."""


COUNTED = (Kind.READ, Kind.EVICT, Kind.REJECT)
"""Events that have a number of tokens or of a page."""


@dataclass
class Request:
    """A request's table and the columns of its tokens, in the order of their positions."""

    table: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    in_flight: bool = False
    waits: bool = False


class Pool:
    """Blocks of memory, and how many requests use each."""

    def __init__(self, pages: int, page: int, keys: Array, values: Array) -> None:
        G, self.tokens, d = keys.shape
        self.page, self.vectors = page, (keys, values)
        self.memory = np.zeros((2, pages, page, G, d))
        self.users = np.zeros(pages, dtype=int)
        self.requests: dict[int, Request] = {}
        self.lost: set[int] = set()
        """Numbers of requests that were gone before their token in flight landed."""

    def take(self) -> int:
        """Return a free block."""
        free = np.flatnonzero(self.users == 0)
        if not len(free):
            raise ValueError("no block is free")
        self.users[free[0]] = 1
        return int(free[0])

    def drop(self, request: Request, place: int) -> None:
        """Let a request give up the block of a page."""
        block = request.table[place]
        if block != NOBODY:
            self.users[block] -= 1
        request.table[place] = NOBODY

    def reserve(self, request: Request) -> None:
        """Make the place of the next token the request's own."""
        place = len(request.columns) // self.page
        if place == len(request.table):
            request.table.append(self.take())
        shared = request.table[place]
        if self.users[shared] > 1:
            request.table[place] = own = self.take()
            self.memory[:, own] = self.memory[:, shared]
            self.users[shared] -= 1

    def write(self, request: Request, column: int) -> None:
        """Write the next token into a place of the request's own."""
        self.reserve(request)
        place, row = divmod(len(request.columns), self.page)
        for kind, vectors in enumerate(self.vectors):
            self.memory[kind, request.table[place], row] = vectors[:, column]
        request.columns.append(column)

    def held(self, request: Request) -> Array:
        """Return the positions that the request reads."""
        pages = [place for place, block in enumerate(request.table) if block != NOBODY]
        positions = np.add.outer(np.array(pages, int) * self.page, np.arange(self.page)).ravel()
        return positions[positions < len(request.columns)]

    def read(self, request: Request, queries: Array) -> Array:
        """Attend with one token to what the request holds."""
        positions = self.held(request)
        blocks = np.array(request.table)[positions // self.page]
        keys, values = self.memory[:, blocks, positions % self.page].swapaxes(1, 2)
        return attend(queries[:, :, None], keys, values, None)[0][:, :, 0]

    def allows(self, kind: Kind, number: int, other: int, count: int) -> bool:
        """Whether an event makes sense now; a free block may be missing all the same."""
        request, old = self.requests.get(number), self.requests.get(other)
        if kind in (Kind.ARRIVE, Kind.FORK):
            if request is not None or (kind == Kind.ARRIVE and count == 0):
                return request is None and other == NOBODY
            if old is None or old.waits or old.in_flight or not old.columns:
                return False
            full = count * self.page <= len(old.columns) and NOBODY not in old.table[:count]
            return kind == Kind.FORK or full
        if kind == Kind.LAND:
            return (request is not None and request.in_flight) != (number in self.lost)
        if request is None or kind == Kind.FREE:
            return request is not None
        if request.waits or kind == Kind.RETURN:
            return request.waits and kind == Kind.RETURN
        if kind == Kind.EVICT:
            full = count < len(request.columns) // self.page
            return full and request.table[count] != NOBODY
        if kind == Kind.PREEMPT:
            return bool(request.columns)
        if kind == Kind.REJECT:
            return self.may_take_back(request, count)
        return not request.in_flight and not (kind == Kind.SCHEDULE and number in self.lost)

    def happen(self, kind: Kind, number: int, other: int, count: int, column: int) -> list[int]:
        """Let an event happen; return the columns of the tokens that attend, in order.

        Raises:
            ValueError: if it makes no sense, or no block is free.
        """
        if not self.allows(kind, number, other, count):
            raise ValueError(f"{kind.name} of request {number} makes no sense here")
        if kind in (Kind.ARRIVE, Kind.FORK):
            self.begin(kind, number, self.requests.get(other, Request()), count)
            return []
        request = self.requests.get(number)
        if request is None or (kind == Kind.LAND and not request.in_flight):
            self.lost.discard(number)
            return []
        if kind == Kind.SCHEDULE:
            self.reserve(request)
            request.in_flight = True
        elif kind == Kind.LAND:
            request.in_flight = False
        elif kind == Kind.EVICT:
            self.drop(request, count)
        elif kind == Kind.REJECT:
            self.take_back(request, count)
        elif kind == Kind.RETURN:
            self.come_back(request)
        elif kind in (Kind.PREEMPT, Kind.FREE):
            self.leave(kind, number, request)
        return [*range(column, column + {Kind.READ: count, Kind.LAND: 1}.get(kind, 0))]

    def begin(self, kind: Kind, number: int, old: Request, count: int) -> None:
        """Let a request begin with pages of another one, or as its copy."""
        pages, tokens = count, count * self.page
        if kind == Kind.FORK:
            pages, tokens = len(old.table), len(old.columns)
        self.requests[number] = Request(old.table[:pages], old.columns[:tokens])
        self.users[[block for block in old.table[:pages] if block != NOBODY]] += 1

    def come_back(self, request: Request) -> None:
        """Let a request that waits read its tokens again."""
        again, request.columns, request.waits = request.columns, [], False
        for old in again:
            self.write(request, old)

    def may_take_back(self, request: Request, count: int) -> bool:
        """Whether some tokens stay, and the page of the next one is not evicted."""
        place, row = divmod(len(request.columns) - count, self.page)
        some = 0 < count < len(request.columns) and not request.in_flight
        return some and (row == 0 or request.table[place] != NOBODY)

    def take_back(self, request: Request, count: int) -> None:
        """Forget the newest tokens, and give up the pages that hold none of the others."""
        request.columns = request.columns[:-count]
        pages = -(-len(request.columns) // self.page)
        for place in range(pages, len(request.table)):
            self.drop(request, place)
        request.table = request.table[:pages]

    def leave(self, kind: Kind, number: int, request: Request) -> None:
        """Take all blocks from a request, which ends or waits."""
        if request.in_flight:
            self.lost.add(number)
        for place in range(len(request.table)):
            self.drop(request, place)
        request.table, request.waits, request.in_flight = [], True, False
        if kind == Kind.FREE:
            del self.requests[number]


# --- scripts -------------------------------------------------------------------------------------


def script_of(text: str) -> Array:
    """Return the rows of a script such as ``arrive 0; read 0 5; arrive 1 0 1; land 0``.

    What an event does not need is left out: ``arrive REQUEST [OTHER PAGES]``, ``fork REQUEST
    OTHER``, ``read REQUEST TOKENS``, ``evict REQUEST PAGE``, ``reject REQUEST TOKENS``. Of ``1-3``
    it happens to each.
    """
    rows = []
    for line in text.split(";"):
        kind, numbers, *rest = line.split()
        told = [int(x) for x in rest]
        other = told.pop(0) if told and kind in ("arrive", "fork") else NOBODY
        first, _, last = numbers.partition("-")
        for number in range(int(first), int(last or first) + 1):
            rows.append([Kind[kind.upper()], number, other, *told, *[0][len(told) :]])
    return np.array(rows)


def text_of(script: Array) -> str:
    """Return a script as `script_of` reads it."""
    told = []
    for kind, number, other, count in script.tolist():
        rest = [other] if other != NOBODY else []
        rest += [count] if kind in COUNTED or (other != NOBODY and count) else []
        told.append(" ".join(map(str, [Kind(kind).name.lower(), number, *rest])))
    return "; ".join(told)


def without(case: Case, event: int) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return inputs and parameters of a case that lacks one event, and its tokens."""
    script = case.inputs["script"]
    counts = tokens_of(script)
    stays = np.repeat(np.arange(len(script)) != event, counts)
    vectors = {"queries": case.inputs["queries"][:, :, stays]}
    vectors |= {name: case.inputs[name][:, stays] for name in ("keys", "values")}
    return {"script": np.delete(script, event, axis=0), **vectors}, {**case.parameters}


def drawn_script(source: Source, x: Any) -> Array:
    """Draw a script; the events that ``stress`` names are drawn more often."""
    often = [kind for kind in Kind for _ in range(4 if kind.name.lower() in x.stress else 1)]
    script, nothing = np.zeros((0, 4), dtype=int), np.zeros((1, 10**6, 0))
    pool = Pool(x.pages, x.page, nothing, nothing)
    while len(script) < x.events:
        kind = often[source.integers(0, len(often), 1)[0]]
        number, other, count = (source.bits(3) % [x.requests, x.requests, 2 * x.page + 2]).tolist()
        count //= 2 if kind == Kind.ARRIVE else 1
        if kind not in (Kind.ARRIVE, Kind.FORK) or (kind == Kind.ARRIVE and count == 0):
            other = NOBODY
        count *= kind in (Kind.ARRIVE, *COUNTED)
        if not pool.allows(kind, number, other, count) or (kind == Kind.READ and count == 0):
            continue
        tried = deepcopy(pool)
        try:
            for column in tried.happen(kind, number, other, count, 0):
                tried.write(tried.requests[number], column)
        except ValueError:  # no block is free
            continue
        script = np.concatenate([script, [[kind, number, other, count]]])
        pool = tried
    return script


def drawn(source: Source, x: Any) -> dict[str, Array]:
    """Draw a script and the vectors of its tokens; or those of a script that is given as text."""
    script = script_of(x.text) if x.text else drawn_script(source, x)
    t = int(tokens_of(script).sum())
    return {
        "script": script,
        "queries": 2 * source.normal(x.G, x.rho, t, x.d),
        "keys": source.normal(x.G, t, x.d),
        "values": 8 * source.normal(x.G, t, x.d),
    }


# --- the answer ----------------------------------------------------------------------------------


def tokens_of(script: Array) -> Array:
    """Return how many columns belong to each event: of tokens that are read or land."""
    read, lands = script[:, 0] == Kind.READ, script[:, 0] == Kind.LAND
    return np.where(read, script[:, 3], lands.astype(int))


@answers("events")
def _events(script, queries, keys, values, page, pages, requests):
    """Expect who holds what after each event, the blocks' users, and what every token reads."""
    pool, counts = Pool(pages, page, keys, values), tokens_of(script)
    first = np.cumsum(counts) - counts
    output, there = np.zeros(queries.shape), np.zeros(queries.shape, dtype=bool)
    held = np.zeros((len(script), requests, keys.shape[1]), dtype=bool)
    users = np.zeros((len(script), requests, pages), dtype=int)
    free = np.zeros(len(script), dtype=int)
    for event, (kind, number, other, count) in enumerate(script.tolist()):
        for column in pool.happen(Kind(kind), number, other, count, first[event]):
            request = pool.requests[number]
            pool.write(request, column)
            output[:, :, column] = pool.read(request, queries[:, :, column])
            there[:, :, column] = True
        free[event] = (pool.users == 0).sum()
        for each, request in pool.requests.items():
            held[event, each, pool.held(request)] = True
            used = [block != NOBODY and pool.users[block] for block in request.table]
            users[event, each, : len(used)] = used
    expected = numbers(output, logit_size(queries, keys), largest(values), where=there)
    return {"held": exact(held), "free": exact(free), "users": exact(users), "output": expected}
