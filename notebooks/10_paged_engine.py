# %% [markdown]
# # 10 A paged engine in 200 lines
#
# **Question:** an eviction method evicts half of the entries. How much memory does a serving engine
# get back?
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

from classroom import Exercises
from study.kept import page_table

attempt = Exercises("10_paged_engine", globals())
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
# kvlab's methods take `page=16`, so that whole pages are evicted, and `kv_heads=layer` (or
# `union`), so that all KV heads keep the same entries. The reference decides, and the engine has to
# give its output at every token. **Predict first:** of 13 blocks, how many does a budget of 96
# entries need?

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
        held = set((result.cache.positions[0] // PAGE).tolist())
        for page in set(text.table) - held:
            text.release(page)
        in_use.append(len(text.table))
    return text, in_use


text, in_use = serve("h2o@page=16,kv_heads=layer,recent=16")
print(f"{len(in_use)} steps, every output as in the reference")
print(f"blocks after the prompt: {in_use[0]}, at the end: {in_use[-1]} of 13 without eviction")
page_table(text.table, pages=13, blocks=16, size=PAGE)

# %% [markdown]
# ## A method that pages cannot follow
#
# By default every KV head keeps what *it* finds important, and a block is needed as long as one
# head keeps one of its entries. The table counts blocks and entries under four variants of SnapKV,
# which here decides after every token. **Predict first:** how many blocks come back under the
# first?

# %%
from kvlab.fast.lab.tables import Table


def needed(positions):
    """Blocks that hold at least one entry of any head; positions ``[G, n]``."""
    return len(np.unique(positions // PAGE))


def variants(*specs):
    rows = []
    for spec in specs:
        *_, last = run_stream(methods.get(spec, 96), stream)
        positions = last.cache.positions
        entries = positions.shape[1]
        rows.append((spec, *map(str, (entries, needed(positions), -(-entries // PAGE)))))
    return Table(("method", "entries per head", "blocks needed", "blocks that would do"), rows)


snapkv = "snapkv@window=8,schedule=every_block"
variants(
    snapkv,
    f"{snapkv},kv_heads=layer",
    f"{snapkv},page=16",
    f"{snapkv},page=16,kv_heads=layer",
)

# %% [markdown]
# SnapKV evicts more than half of the entries, and no block is free, because some head keeps
# something in every one. One keep set for all heads frees next to nothing, and whole pages of each
# head free some. Both options together free all that the method evicts.
#
# ## The other way: move the survivors
#
# An engine can also keep single entries and move the survivors together, so that the last blocks
# become empty. That costs a read and a write per moved entry, and the table then needs the position
# of every entry, because a page is no run of positions any more. The fewest moves fill the holes in
# the blocks that are kept with the entries of the blocks that are freed. **Predict first:** of 96
# entries at random places of 160, how many have to move?


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
# head, which needs a table per head, or positions per entry and head, as `kvlab.fast` keeps them.
#
# **In three lines.** A block comes back as a whole or not at all. Eviction frees blocks if whole
# pages are evicted, and for all heads together. Moving the survivors frees them, too, at the price
# of copies.
#
# ## Exercise
#
# **1.** Write `blocks_for(tokens, budget)`: the blocks that a text of `tokens` tokens holds after a
# decision under `page=16` and a budget of `budget` entries. The page that is being written counts
# as a whole block.


# %% tags=["exercise"]
def blocks_for(tokens, budget): ...


attempt(1)
