"""vLLM's kernels on the CPU: ``kvlab conformance run vllm_kernels.py``, where vLLM is installed.

`kvlab engines install vllm` makes such an environment. Entries go through vLLM's own writing into
blocks of 32, handed out backwards, of a memory that holds finite numbers: vLLM multiplies places
that nobody wrote by zero. Channels are filled up with zeros to a size that it has.
"""

from itertools import pairwise

import torch
from vllm import _custom_ops as ops
from vllm.platforms import current_platform

current_platform.import_kernels()
ARRAYS = "torch"
ISA, BLOCK = "vec", 32
SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256)


def widened(x):
    """Fill the channels of [G, n, d] up, and put the tokens in front, as vLLM has them."""
    more = next(size for size in SIZES if size >= x.shape[-1]) - x.shape[-1]
    return torch.nn.functional.pad(x, (0, more)).transpose(0, 1).contiguous()


def pool(tokens, G, d):
    """Return the keys and values of a pool with room for so many tokens."""
    blocks = -(-tokens // BLOCK)
    return torch.full((blocks, G, 2 * BLOCK, d), 1e4).chunk(2, dim=2)


def write(keys, values, caches, slots):
    """Let vLLM write [G, n, d] into slots."""
    ops.cpu_attn_reshape_and_cache(widened(keys), widened(values), *caches, slots, ISA)


def attended(queries, starts, requests, scale, softcap, window, sinks):
    """Attend to the entries of each request, a pair of keys and values [G, n, d]."""
    lengths = torch.tensor([keys.shape[1] for keys, _ in requests], dtype=torch.int32)
    places, (G, rho, _, d) = -(-lengths // BLOCK), queries.shape
    caches = pool(int(places.sum()) * BLOCK, G, widened(queries[0]).shape[-1])
    free = torch.arange(int(places.sum()), dtype=torch.int32).flip(0)
    table = torch.zeros(len(requests), max(1, int(places.max())), dtype=torch.int32)
    for row, blocks, (keys, values) in zip(
        table, free.split(places.tolist()), requests, strict=True
    ):
        row[: len(blocks)] = blocks
        n = torch.arange(keys.shape[1])
        write(keys, values, caches, blocks[n // BLOCK] * BLOCK + n % BLOCK)
    asked, starts = widened(queries.flatten(0, 1)), starts.int()
    output, sliding = torch.full_like(asked, torch.nan), window or -1
    plan = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=len(requests),
        num_heads=G * rho,
        num_kv_heads=G,
        head_dim=asked.shape[-1],
        seq_lens=lengths,
        dtype=torch.float32,
        query_start_loc=starts,
        causal=True,
        sliding_window_size=sliding,
        isa=ISA,
        enable_kv_split=True,
    )
    ops.cpu_attention_with_kv_cache(
        query=asked,
        key_cache=caches[0],
        value_cache=caches[1],
        output=output,
        query_start_loc=starts,
        seq_lens=lengths,
        scale=d**-0.5 if scale is None else scale,
        causal=True,
        alibi_slopes=None,
        sliding_window=sliding,
        block_table=table,
        softcap=softcap or 0.0,
        scheduler_metadata=plan,
        s_aux=None if sinks is None else sinks.flatten().contiguous(),
    )
    return output[..., :d].transpose(0, 1).reshape(queries.shape)


def attend_requests(
    queries,
    query_starts,
    lengths,
    key_pages,
    value_pages,
    tables,
    sinks,
    key_scales,
    scale,
    softcap,
    window,
):
    """Take the entries of each request out of its pages."""
    if key_scales is not None:
        raise NotImplementedError("vLLM has fp8 on CPUs with AVX-512 alone, with one scale a layer")
    page, found = key_pages.shape[1], []
    for n, table in zip(lengths, tables, strict=True):
        positions = torch.arange(int(n))
        there = table[positions // page] >= 0
        if window is not None and not there.all():
            raise NotImplementedError("vLLM counts a window in places, not in positions")
        positions = positions[there]
        slots = table[positions // page] * page + positions % page
        pages = key_pages, value_pages
        found.append([x.flatten(0, 1)[slots].transpose(0, 1) for x in pages])
    return {"output": attended(queries, query_starts, found, scale, softcap, window, sinks)}


def attend_pages(queries, key_pages, value_pages, table, query_positions, softcap):
    """A batch of one request."""
    refuse_gaps(query_positions)
    starts, lengths = torch.tensor([0, len(query_positions)]), query_positions[-1:] + 1
    options = {"sinks": None, "key_scales": None, "scale": None, "window": None}
    return attend_requests(
        queries, starts, lengths, key_pages, value_pages, table[None], softcap=softcap, **options
    )


def attend(queries, keys, values, positions, query_positions, softcap):
    """A batch of one request, whose newest entries are those of the queries."""
    m = len(query_positions)
    if positions.shape[1] < m or not (positions[:, -m:] == query_positions).all():
        raise NotImplementedError("vLLM's queries are those of the newest entries")
    starts = torch.tensor([0, m])
    return attended(queries, starts, [(keys, values)], None, softcap, None, None)


def refuse_gaps(query_positions):
    """Raise NotImplementedError unless the queries follow each other."""
    if any(first + 1 != second for first, second in pairwise(query_positions.tolist())):
        raise NotImplementedError("vLLM's queries are those of the newest entries")


def write_pages(keys, values, slots, key_pages, value_pages, key_scales):
    """Write the whole memory, then the tokens, and read the blocks: keys lie channel by channel."""
    if key_scales is not None:
        raise NotImplementedError("vLLM has fp8 on CPUs with AVX-512 alone, with one scale a layer")
    G, _, d = keys.shape
    n = key_pages.shape[:2].numel()
    caches = pool(n, G, widened(keys).shape[-1])
    old = [x.flatten(0, 1).transpose(0, 1) for x in (key_pages, value_pages)]
    write(old[0], old[1], caches, torch.arange(n))
    write(keys, values, caches, slots)
    shape = -1, G, BLOCK, widened(keys).shape[-1]
    found = caches[0].reshape(-1, G, shape[-1], BLOCK).mT, caches[1].reshape(shape)
    return tuple(x.transpose(1, 2).flatten(0, 1)[:n, :, :d].reshape(key_pages.shape) for x in found)


def rotate(x, positions, base, rotated, neighbours):
    """Hand over a table of cosines and sines, as vLLM's layers do."""
    if (positions < 0).any():
        raise NotImplementedError("vLLM reads a row of its table for each position")
    frequencies = base ** -(torch.arange(0, rotated, 2).float() / rotated)
    angles = torch.arange(int(positions.max()) + 1)[:, None] * frequencies
    turned = x.transpose(0, 1).flatten(1).contiguous()
    table = torch.cat([angles.cos(), angles.sin()], dim=-1)
    ops.rotary_embedding(positions, turned, None, x.shape[-1], table, not neighbours)
    return turned.view(x.shape[1], x.shape[0], -1).transpose(0, 1)


IMPLEMENTATIONS = {
    "attend": attend,
    "attend_pages": attend_pages,
    "attend_requests": attend_requests,
    "write_pages": write_pages,
    "rotate": rotate,
}
