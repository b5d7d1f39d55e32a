# %% 1
# - Compute all logits first: keys need an axis for the query heads, and their last two axes
#   swapped.
# - Set the logits of unseen entries to minus infinity. To compare each entry's position with each
#   query's, give both arrays axes of length 1 where only the other one counts something.
# - A row of probabilities is made of exponentials divided by their sum. Subtract the row's maximum
#   first, so that none of them overflows.
def attention(queries, keys, positions, query_positions):
    logits = queries @ keys[:, None].swapaxes(-1, -2) / np.sqrt(queries.shape[-1])
    visible = positions[:, None, None] <= query_positions[:, None]
    logits = np.where(visible, logits, -np.inf)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)
# check
def given(queries, keys, positions, query_positions, softcap):
    if softcap is not None:
        raise NotImplementedError("without a soft cap")
    return attention(queries, keys, positions, query_positions)
check("attention", given, minimise=False).raise_for_failures()

# %% 2
# - One axis of the weights counts the query heads of a KV head, another the queries of the block.
# - One of the two is averaged, the other one added up. What is left has the shape of `received`.
def h2o(received, weights):
    return received + weights.mean(axis=1).sum(axis=1)
# check
def given(accumulated, attention, reduce):
    if reduce != "mean":
        raise NotImplementedError("the mean over query heads")
    return h2o(accumulated, attention)
check("h2o.observe", given, minimise=False).raise_for_failures()

# %% 3
# - The output is X = Σ h·v. Without entry j, before the weights are divided again, it is X −
#   h_j·v_j.
# - The weights that are left add up to 1 − h_j, so they are divided by it.
# - Subtract X and simplify. The difference has the direction of the vector from v_j to X.
def caote(h, values):
    return h / (1 - h) * np.linalg.norm(h @ values - values, axis=-1)
# check
def given(h, values, fast, norm):
    if fast or norm != 2:
        raise NotImplementedError("exact, with the L2 norm")
    return np.stack([[caote(row, v) for row in rows] for rows, v in zip(h, values, strict=True)])
near_one = ("all_mass", "alpha_near_one", "pairs")
check("eviction_error", given, minimise=False, exclude=near_one).raise_for_failures()

# %% 4
# - Only one thing in your answer to puzzle 3 changes.
# - From which point was the distance of a value measured there, and from which one is it now?
def fast_caote(h, values):
    return h / (1 - h) * np.linalg.norm(values.mean(axis=0) - values, axis=-1)
# check
def given(h, values, fast, norm):
    if not fast or norm != 2:
        raise NotImplementedError("FastCAOTE, with the L2 norm")
    return np.stack(
        [[fast_caote(row, v) for row in rows] for rows, v in zip(h, values, strict=True)]
    )
near_one = ("all_mass", "alpha_near_one", "pairs")
check("eviction_error", given, minimise=False, exclude=near_one).raise_for_failures()

# %% 5
# - Entries that are not active keep both of their numbers.
# - An activation ends an absence. How long was it, and was there a longer one before?
def recur(stamp, interval, active, step):
    longest = np.maximum(interval, step - stamp)
    return np.where(active, step, stamp), np.where(active, longest, interval)
# check
def given(
    attention, positions, query_positions, stamp, interval, threshold, reduce, stamp_start, prompt
):
    if stamp_start != "before_birth" or reduce != "max":
        raise NotImplementedError("as in the paper")
    for row, position in enumerate(query_positions):
        step = position + 1 - prompt
        if step > 0:
            stamp = np.where(positions == position, step - 1, stamp)
            active = attention[:, :, row].max(axis=1) >= threshold
            stamp, interval = recur(stamp, interval, active & (positions <= position), step)
    return {"stamp": stamp, "interval": interval}
check("lazy_eviction.observe", given, minimise=False).raise_for_failures()

# %% 6
# - Order all entries from the first to evict to the last: by protection first, then by score.
# - `np.lexsort` orders by two keys, the last one first. It leaves equals in their order, so the
#   later of two equals comes later.
# - How many of the first are evicted, if there is room for all? The others are wanted in
#   ascending order.
def keep_set(scores, protected, room):
    order = np.lexsort((scores, protected))
    leave = max(len(order) - room - protected.sum(), 0)
    return np.sort(order[leave:])
# check
def given(scores, safe, room):
    return np.stack([keep_set(*each, room) for each in zip(scores, safe, strict=True)])
check("keep_set", given, minimise=False).raise_for_failures()

# %% 7
# - Each KV head takes other entries, so the first two axes have to be indexed together.
# - Arrays of indices are broadcast. Of which shape are numbers of heads that go with `keep`?
def compact(keep, *arrays):
    heads = np.arange(len(keep))[:, None]
    return tuple(array[heads, keep] for array in arrays)
# check
def given(keys, values, positions, accumulated, stamp, keep):
    return compact(keep, keys, values, positions, accumulated, stamp)
check("compact", given, minimise=False).raise_for_failures()

# %% 8
# - Positions count all tokens ever seen. Eviction does not move the tokens that come later.
# - Turning a pair (a, b) by an angle gives (a·cos − b·sin, b·cos + a·sin).
# - One half of the channels has the first members of all pairs, the other half their partners.
def rotate(query, kept, seen, frequencies):
    a, b = np.split(query, 2)
    cos, sin = np.cos(seen * frequencies), np.sin(seen * frequencies)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin])
# check
from kvlab.reference import nano
rng, frequencies = np.random.default_rng(0), 10000.0 ** -np.linspace(0, 1, 8, endpoint=False)
for seen, kept in ((5, np.arange(5)), (9, np.array([0, 1, 7])), (400, np.array([3, 398]))):
    query = rng.normal(size=16)
    found = rotate(query, kept, seen, frequencies)
    right = nano.rotate(query[None], np.array([seen * frequencies]))[0]
    told = f"After {seen} tokens, of which {len(kept)} are left, the rotated query is"
    assert np.shape(found) == right.shape, f"{told} of shape {np.shape(found)}"
    off = np.abs(found - right).max()
    assert np.allclose(found, right), f"{told} off by up to {off:.2g}"

# %% 9
# - Page p holds the positions p·page to (p + 1)·page − 1. First find the p that are not evicted.
# - All their pages, taken at once, have an axis of pages and one of places within a page. An answer
#   has one axis in the place of these two.
def gather(memory, table):
    page = memory.shape[1]
    (present,) = np.nonzero(table >= 0)
    positions = (present[:, None] * page + np.arange(page)).ravel()
    return positions, memory[table[present]].reshape(-1, *memory.shape[2:])
# check
from kvlab.reference import nano
def given(queries, key_pages, value_pages, table, query_positions, softcap):
    if softcap is not None:
        raise NotImplementedError("without a soft cap")
    (positions, keys), (_, values) = (gather(each, table) for each in (key_pages, value_pages))
    written = positions <= query_positions.max()
    positions, keys, values = positions[written], keys[written], values[written]
    logits = np.einsum("grmd,ngd->grmn", queries, keys) / np.sqrt(queries.shape[-1])
    weights = nano.softmax(logits, positions <= query_positions[:, None])
    return np.einsum("grmn,ngd->grmd", weights, values)
check("attend_pages", given, minimise=False).raise_for_failures()

# %% 10
# - The zero point is the smallest element of the row, which gets code 0. The largest gets the last
#   code.
# - There are 2**bits levels, and so one step fewer between the smallest and the largest.
# - A constant row has a step of 0, by which nothing can be divided. Code 0 says all about it.
def code(x, bits):
    zero = x.min(axis=1, keepdims=True)
    scale = (x.max(axis=1, keepdims=True) - zero) / (2**bits - 1)
    return np.rint((x - zero) / np.where(scale > 0, scale, 1)), scale, zero
# check
def given(x, bits, group):
    read = []
    for first in range(0, x.shape[1], group):
        codes, scale, zero = code(x[:, first : first + group], bits)
        told = f"At {bits} bits your codes reach from {codes.min()} to {codes.max()}"
        assert np.isin(codes, np.arange(2**bits)).all(), f"{told}, or are no whole numbers"
        read.append(scale * codes + zero)
    return np.concatenate(read, axis=1)
check("quantize_dequantize", given, minimise=False).raise_for_failures()

# %% 11
# - Where i is at most k, the factor is 1: the ordinary softmax.
# - Just above k the factor is nearly 0, so attention is flattened. That is what the paper says.
# - NumPy takes the root everywhere, also where its result is not used. Keep it from failing there.
def step_gain(i, k):
    excess = np.maximum(i / k, 1)
    return np.where(excess > 1, np.sqrt(2 * np.log(excess)), 1.0)
# check
from kvlab.reference import nano
def given(
    remembered_queries,
    remembered_query_positions,
    keys,
    values,
    positions,
    budget,
    softcap,
    gain,
    accumulation,
    value_prior,
):
    if (softcap, gain, accumulation, value_prior) != (None, "step", "recent", "squared"):
        raise NotImplementedError("as in the paper")
    rows = remembered_query_positions
    logits = remembered_queries @ keys[:, None].swapaxes(-1, -2) / np.sqrt(keys.shape[-1])
    sharpened = logits * step_gain(rows + 1.0, budget)[:, None]
    weights = nano.softmax(sharpened, positions[:, None, None] <= rows[:, None])
    received = weights.sum(axis=2).mean(axis=1)
    size = nano.pooled((values**2).sum(axis=-1), 5) / nano.pooled(np.ones(received.shape), 5)
    return size / size.max(axis=-1, keepdims=True) * received
check("ahakv.score", given, minimise=False, exclude=["option_pairs"]).raise_for_failures()

# %% 12
# - Sinks are told by their position, recent entries by their index in the cache.
# - Number the entries from 0 to n − 1. From which number on are they among the newest, and does
#   that hold with recent = 0, too?
def protect(positions, sinks, recent):
    n = positions.shape[1]
    return (positions < sinks) | (np.arange(n) >= n - recent)
# check
from kvlab.reference.selection import keep_set
def given(scores, positions, sinks, recent, budget):
    marks = protect(positions, sinks, recent)
    return keep_set(scores, marks, max(budget - int(marks[0].sum()), 0))
check("ahakv.keep", given, minimise=False).raise_for_failures()
for sinks, recent, marks in ((2, 0, [True, False, False]), (0, 2, [False, True, True])):
    found = protect(np.array([[1, 3, 9]]), sinks, recent).tolist()
    told = f"Of the positions 1, 3, 9 with sinks = {sinks} and recent = {recent} you mark"
    assert found == [marks], f"{told} {found}"
