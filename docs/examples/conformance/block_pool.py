"""A pool of blocks in PyTorch, for `kvlab conformance run block_pool.py --target events`.

Blocks are handed out in the order in which they were given back, as in serving engines.
"""

from collections import deque

import torch

ARRAYS = "torch"


def attended(queries, keys, values):
    """Attend with one token to [entries, G, d]."""
    logits = torch.einsum("grd,ngd->grn", queries, keys) / queries.shape[-1] ** 0.5
    return torch.einsum("grn,ngd->grd", logits.softmax(dim=-1), values)


class Blocks:
    """Memory, free blocks, and the users of the others."""

    def __init__(self, pages, page, G, d):
        self.keys, self.values = torch.full((2, pages, page, G, d), torch.nan)
        self.free, self.counts = deque(range(pages)), [0] * pages

    def take(self):
        block = self.free.popleft()
        self.share(block)
        return block

    def share(self, block):
        self.counts[block] += 1

    def drop(self, block):
        self.counts[block] -= 1
        if not self.counts[block]:
            self.free.append(block)

    def users(self, block):
        return self.counts[block]

    def left(self):
        return len(self.free)


class Request:
    """The live pages of a request, and its tokens."""

    def __init__(self, blocks=(), tokens=()):
        self.blocks, self.tokens, self.scheduled = dict(blocks), list(tokens), False


class Engine:
    """Requests over one pool; each event is a method."""

    def __init__(self, blocks, queries, keys, values, page, pages):
        G, _, _, d = queries.shape
        self.pool, self.page, self.live = blocks(pages, page, G, d), page, {}
        self.queries, self.keys, self.values = queries, keys, values
        self.output, self.column = torch.zeros(queries.shape), 0

    def place_of_next(self, request):
        """Return block and row of the next token, after a copy where others read the block."""
        number, pool = len(request.tokens) // self.page, self.pool
        old = request.blocks.get(number)
        if old is None or pool.users(old) > 1:
            request.blocks[number] = block = pool.take()
            if old is not None:
                pool.keys[block], pool.values[block] = pool.keys[old], pool.values[old]
                pool.drop(old)
        return request.blocks[number], len(request.tokens) % self.page

    def write(self, request, token):
        place = self.place_of_next(request)
        self.pool.keys[place], self.pool.values[place] = self.keys[:, token], self.values[:, token]
        request.tokens.append(token)

    def positions(self, request):
        each = (n * self.page + row for n in sorted(request.blocks) for row in range(self.page))
        return [position for position in each if position < len(request.tokens)]

    def read(self, number, other, count):
        request = self.live[number]
        for token in range(self.column, self.column + count):
            self.write(request, token)
            places = [divmod(position, self.page) for position in self.positions(request)]
            at = [request.blocks[n] for n, _ in places], [row for _, row in places]
            found = self.pool.keys[at], self.pool.values[at]
            self.output[:, :, token] = attended(self.queries[:, :, token], *found)
        self.column += count

    def arrive(self, number, other, count):
        old = self.live.get(other, Request())
        self.begin(
            number, {n: old.blocks[n] for n in range(count)}, old.tokens[: count * self.page]
        )

    def fork(self, number, other, count):
        self.begin(number, self.live[other].blocks, self.live[other].tokens)

    def begin(self, number, blocks, tokens):
        self.live[number] = Request(blocks, tokens)
        for block in blocks.values():
            self.pool.share(block)

    def schedule(self, number, other, count):
        self.place_of_next(self.live[number])
        self.live[number].scheduled = True

    def land(self, number, other, count):
        request = self.live.get(number)
        if request is None or not request.scheduled:
            self.column += 1
            return
        request.scheduled = False
        self.read(number, other, 1)

    def evict(self, number, other, count):
        self.pool.drop(self.live[number].blocks.pop(count))

    def preempt(self, number, other, count):
        request = self.live[number]
        for block in request.blocks.values():
            self.pool.drop(block)
        request.blocks, request.scheduled = {}, False

    def come_back(self, number, other, count):
        request = self.live[number]
        tokens, request.tokens = request.tokens, []
        for token in tokens:
            self.write(request, token)

    def free(self, number, other, count):
        self.preempt(number, other, count)
        del self.live[number]

    def reject(self, number, other, count):
        request = self.live[number]
        del request.tokens[-count:]
        for place in [n for n in request.blocks if n * self.page >= len(request.tokens)]:
            self.pool.drop(request.blocks.pop(place))


KINDS = (
    *(Engine.arrive, Engine.read, Engine.schedule, Engine.land, Engine.evict, Engine.fork),
    *(Engine.preempt, Engine.come_back, Engine.free, Engine.reject),
)


def played_by(blocks):
    """Return the target, over a kind of pool."""

    def events(script, queries, keys, values, page, pages, requests):
        engine = Engine(blocks, queries, keys, values, page, pages)
        held = torch.zeros(len(script), requests, keys.shape[1], dtype=torch.bool)
        users, free = torch.zeros(len(script), requests, pages), torch.zeros(len(script))
        for event, (kind, *rest) in enumerate(script.tolist()):
            KINDS[kind](engine, *rest)
            free[event] = engine.pool.left()
            for number, request in engine.live.items():
                held[event, number, engine.positions(request)] = True
                for place, block in request.blocks.items():
                    users[event, number, place] = engine.pool.users(block)
        return held, free, users, engine.output

    return events


events = played_by(Blocks)
IMPLEMENTATIONS = {"events": events}
