# %% [markdown]
# # 10 A paged engine in 200 lines
#
# **Question:** an eviction method forgets half of the entries. How much memory does a serving
# engine get back?
#
# Engines do not keep a text's keys and values in one piece. They cut the memory into *blocks* of
# 16 tokens or so, hand blocks out as a text grows, and write down in a *block table* which block
# holds which tokens. A block comes back to the pool as a whole or not at all.
#
# ## Blocks and a table
#
# The pool of one layer holds keys and values `[blocks, page, G, d]`: a block has the entries of
# *all* KV heads, as in vLLM. A text knows its blocks by the number of the page that each holds:
# page 3 has positions 48 to 63.

# %%
import numpy as np

PAGE = 16


class Pool:
    """Blocks of one layer, and which of them are free."""

    def __init__(self, blocks, heads, channels):
        self.keys = np.zeros((blocks, PAGE, heads, channels))
        self.values = np.zeros_like(self.keys)
        self.free = list(range(blocks))

    def take(self):
        if not self.free:
            raise MemoryError("no block is free")
        return self.free.pop()


class Text:
    """One text in a pool: page number → block."""

    def __init__(self, pool):
        self.pool, self.table, self.tokens = pool, {}, 0

    def append(self, key, value):
        """Write the entry of one token, ``[G, d]`` each; a new page needs a new block."""
        page, place = divmod(self.tokens, PAGE)
        if place == 0:
            self.table[page] = self.pool.take()
        self.pool.keys[self.table[page], place] = key
        self.pool.values[self.table[page], place] = value
        self.tokens += 1

    def entries(self):
        """Gather positions, keys and values ``[n, G, d]`` through the table."""
        pages = sorted(self.table)
        blocks = [self.table[page] for page in pages]
        positions = np.concatenate([page * PAGE + np.arange(PAGE) for page in pages])
        written = positions < self.tokens
        keys, values = (x[blocks].reshape(-1, *x.shape[2:])[written] for x in self.stored())
        return positions[written], keys, values

    def stored(self):
        return self.pool.keys, self.pool.values

    def release(self, page):
        """Give the block of a page back to the pool."""
        self.pool.free.append(self.table.pop(page))


# %% [markdown]
# Attention reads through the table. One query per head is enough here: the engine decodes.


# %%
def attend(query, keys, values):
    """Attention of a query ``[G, rho, d]`` to entries ``[n, G, d]``."""
    logits = np.einsum("grd,ngd->grn", query, keys) / np.sqrt(query.shape[-1])
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("grn,ngd->grd", weights, values)


# %% [markdown]
# ## A method that pages can follow
#
# kvlab's methods take `page=16`, so that whole pages leave, and `kv_heads=layer` (or `union`), so
# that all KV heads keep the same entries. The reference decides; the engine only has to do in
# blocks what the reference says. Its output must be the reference's at every token.

# %%
from kvlab.reference import methods
from kvlab.reference.streams import Source, random_stream, run_stream

stream = random_stream(Source("a paged engine"), G=2, rho=2, d=8, prompt=100, generated=100)


def serve(spec, budget=96):
    """Run a stream in blocks under a method; return blocks in use over the tokens."""
    pool = Pool(blocks=16, heads=2, channels=8)
    text, in_use = Text(pool), []
    for result in run_stream(methods.get(spec, budget), stream):
        clock = result.seen.clock
        for token in range(clock.seen - clock.block, clock.seen):
            text.append(stream.keys[:, token], stream.values[:, token])
        positions, keys, values = text.entries()
        assert np.array_equal(positions, result.seen.positions[0])
        output = attend(stream.queries[:, :, clock.seen - 1], keys, values)
        assert np.allclose(output, result.output[:, :, -1], atol=1e-12)
        kept = set((result.cache.positions[0] // PAGE).tolist())
        for page in set(text.table) - kept:
            text.release(page)
        in_use.append(len(text.table))
    return in_use


in_use = serve("h2o@page=16,kv_heads=layer,recent=16")
print(f"{len(in_use)} steps, every output as in the reference")
print(
    "blocks after the prompt:", in_use[0], "and at the end:", in_use[-1], "of 13 without eviction"
)

# %% [markdown]
# 200 tokens need 13 blocks. Under a budget of 96 entries the text never holds more than 6 after a
# decision, and the other blocks serve other texts.
#
# ## A method that pages cannot follow
#
# By default every KV head keeps what *it* finds important. A block is needed as long as one head
# keeps one of its entries. Let us count blocks and entries under four readings of SnapKV, which
# here decides after every token:

# %%
from kvlab.fast.lab.tables import Table


def needed(positions):
    """Blocks that hold at least one entry of any head; positions ``[G, n]``."""
    return len(np.unique(positions // PAGE))


def readings(*specs):
    rows = []
    for spec in specs:
        *_, last = run_stream(methods.get(spec, 96), stream)
        positions = last.cache.positions
        entries = positions.shape[1]
        rows.append((spec, *map(str, (entries, needed(positions), -(-entries // PAGE)))))
    return Table(("method", "entries per head", "blocks needed", "blocks that would do"), rows)


snapkv = "snapkv@window=8,schedule=every_block"
readings(
    snapkv,
    f"{snapkv},kv_heads=layer",
    f"{snapkv},page=16",
    f"{snapkv},page=16,kv_heads=layer",
)

# %% [markdown]
# SnapKV forgets more than half of the entries, and no block is free: some head keeps something in
# every one. One keep set for all heads frees next to nothing, too, and whole pages of each head
# free some: the heads keep different pages. Both options together free all that the method forgets.
# The site's page of methods says how many solved problems both cost.
#
# ## The other way: move the survivors
#
# An engine can also keep single entries and move the survivors together, so that the last blocks
# become empty. That costs a read and a write per moved entry, and the table then needs the position
# of every entry, because a page is no run of positions any more. The fewest moves fill the holes in
# the blocks that stay with the entries of the blocks that go:


# %%
def moves(places):
    """Return (from, to) for places in use, so that the first ``len(places)`` are in use."""
    used, kept = set(places.tolist()), len(places)
    holes = [place for place in range(kept) if place not in used]
    return list(zip(sorted(used - set(range(kept))), holes, strict=True))


rng = np.random.default_rng(0)
places = np.sort(rng.choice(160, 96, replace=False))
found = moves(places)
print(f"96 of 160 places in use: {len(found)} moves; blocks {needed(places[None])} -> {96 // PAGE}")

# %% [markdown]
# With `kv_heads=head` every head moves for itself. Then a block holds different positions in each
# head, which needs a table per head (KV-Compress has that), or positions per entry and head, as
# `kvlab.fast` keeps them.
#
# ## Exercises
#
# **1.** Write `blocks_for(tokens, budget)`: the blocks that a text of `tokens` tokens holds after a
# decision under `page=16` and a budget of `budget` entries. The page that is being written counts
# as a whole block.


# %% tags=["solution"] jupyter={"source_hidden": true}
def blocks_for(tokens, budget):
    return min(-(-tokens // PAGE), budget // PAGE)


# %% tags=["check"]
for budget in (40, 64, 96, 320):
    policy = methods.get("h2o@page=16,kv_heads=layer,recent=0", budget)
    for result in run_stream(policy, stream):
        held = needed(result.cache.positions)
        assert blocks_for(result.seen.clock.seen, budget) == held, (result.seen.clock, budget)

# %% [markdown]
# **2.** Write `shared_free(positions)`: how many of the blocks of `positions` `[G, n]` could be
# freed if every KV head had blocks of its own, on top of what is free now. Count in blocks of all
# heads (a block of one head is 1/G of it).


# %% tags=["solution"] jupyter={"source_hidden": true}
def shared_free(positions):
    own = sum(needed(head[None]) for head in positions) / len(positions)
    return needed(positions) - own


# %% tags=["check"]
apart = np.array([np.arange(32), np.arange(64, 96)])
assert shared_free(apart) == 2 and shared_free(apart[:, :1]) == 1
assert shared_free(np.array([[0, 20], [5, 40]])) == 1
assert shared_free(np.array([[0, 1], [2, 3]])) == 0
assert shared_free(np.array([[0, 1], [2, 40]])) == 0.5

# %% [markdown]
# **3.** Write `bytes_moved(places, heads, channels, width)`: the bytes that `moves` reads and
# writes, keys and values together, for elements of `width` bytes.


# %% tags=["solution"] jupyter={"source_hidden": true}
def bytes_moved(places, heads, channels, width):
    return len(moves(places)) * 2 * 2 * heads * channels * width


# %% tags=["check"]
assert bytes_moved(np.arange(8), 8, 128, 2) == 0
assert bytes_moved(np.array([0, 5, 9]), 8, 128, 2) == 2 * 8192
assert bytes_moved(places, 2, 8, 4) == len(found) * 256
