"""Attention reads entries of several precisions where they lie."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from kvlab.fast.engine.storage import Partners, Storage
from kvlab.fast.kernels.keep import last_in_use
from kvlab.fast.kernels.mixed_precision import attend_to_tables, suits_triton
from kvlab.fast.kernels.quantise import quantise
from kvlab.fast.kernels.vector_tables import TABLE_SHIFT, VectorTable, partners_of
from support.kernel_inputs import DEVICE, DTYPES, as_numpy, attended, drawn
from support.sampling import diagonal, sampled
from support.tolerances import BFLOAT16_OUTPUT, FLOAT32_SCORES

N, G, RHO, D = 2, 2, 4, 64


def tables(vectors, owner, formats):
    """Store each entry in the table that ``owner`` names; rows of nobody are −1."""
    found = []
    for number, (bits, group) in enumerate(formats):
        mine = owner == number
        longest = int(mine.sum(-1).max())
        slots = torch.argsort((~mine).to(torch.int8), dim=-1, stable=True)[:, :, :longest]
        used = mine.gather(-1, slots)
        rows = vectors.gather(2, slots[..., None].expand(-1, -1, -1, vectors.shape[-1]))
        stored = rows if bits == 16 else quantise(rows, bits, group)
        found.append(VectorTable(torch.where(used, slots, -1), stored))
    return found


def read(stored, n, d):
    """Every entry's vector in float64, in its slot."""
    whole = np.zeros((N, G, n, d))
    for table in stored:
        rows, slots = as_numpy(table.read(torch.float64)), table.slots.cpu().numpy()
        for i, j, r in zip(*np.nonzero(slots >= 0), strict=True):
            whole[i, j, slots[i, j, r]] = rows[i, j, r]
    return whole


def agrees(queries, keys, values, n, softcap=None, reduce="none"):
    """Output and probabilities are the reference's over what the tables hold."""
    whole = [torch.tensor(read(stored, n, queries.shape[-1])) for stored in (keys, values)]
    wanted, attention, _ = attended(queries, *whole, None, softcap)
    output, received = attend_to_tables(queries, keys, values, n, softcap, reduce)
    off = FLOAT32_SCORES if queries.dtype == torch.float32 else BFLOAT16_OUTPUT
    np.testing.assert_allclose(as_numpy(output), wanted, atol=off * 3)
    if reduce in ("sum", "mean", "max"):
        attention = getattr(attention[:, :, :, 0], reduce)(axis=2)
    if reduce == "skip":
        assert not received.numel()
    else:
        off = FLOAT32_SCORES * queries.shape[2]
        np.testing.assert_allclose(as_numpy(received), attention, atol=off)


FORMATS = [(16, 0), (8, 64), (4, 64), (2, 32)]
ODD = [(16, 0), (3, 64), (4, 64), (8, 32)]
KINDS = ((None, FORMATS), (5.0, FORMATS), (None, ODD))


@pytest.mark.parametrize(("n", "dtype", "kind"), diagonal((5, 64, 150), DTYPES, KINDS))
def test_attention_to_mixed_precision(n, dtype, kind):
    softcap, formats = kind
    queries = drawn((N, G, RHO, 1, D), 0, dtype)
    keys, values = (drawn((N, G, n, D), seed, dtype) for seed in (1, 2))
    rng = np.random.default_rng(n)
    own, other = (torch.tensor(rng.integers(0, 4, (N, G, n)), device=DEVICE) for _ in range(2))
    stored_keys, stored_values = tables(keys, own, formats), tables(values, other, formats)
    agrees(queries, stored_keys, stored_values, n, softcap)


@pytest.mark.parametrize(("size", "bits"), diagonal(((64, 32), (72, 8)), (2, 4, 8)))
def test_attention_to_keys_quantised_by_channel(size, bits):
    n, group = size
    queries, keys, values = (drawn((N, G, m, D), i) for i, m in enumerate((RHO, n, n)))
    blocks = quantise(keys.unflatten(2, (-1, group)).transpose(-1, -2), bits, group)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    table = VectorTable(order.expand(N, G, n), blocks, by_channel=True)
    plain = [VectorTable(torch.arange(n, device=DEVICE).expand(N, G, n), values)]
    assert np.abs(read([table], n, D) - as_numpy(keys)).max() > 0
    agrees(queries[:, :, :, None], [table], plain, n)


def example(n, d, rho, bits, group, dtype=torch.float32):
    queries = drawn((N, G, rho, 1, d), 0, dtype)
    slots = torch.arange(n, device=DEVICE).expand(N, G, n)
    both = [drawn((N, G, n, d), seed, dtype) for seed in (1, 2)]
    return queries, *([VectorTable(slots, quantise(x, bits, group))] for x in both)


SIZES = ((32, 32), (64, 16), (80, 16), (96, 32), (128, 64))
FEW = [(SIZES[0], 2, torch.float32), (SIZES[2], 4, torch.bfloat16), (SIZES[1], 8, torch.float16)]


@pytest.mark.parametrize(("size", "bits", "dtype"), sampled(product(SIZES, (2, 4, 8), DTYPES), FEW))
def test_head_dimensions_and_widths(size, bits, dtype):
    d, group = size
    queries, keys, values = example(40, d, 2, bits, group, dtype)
    assert suits_triton(keys, values, 2)
    agrees(queries, keys, values, 40)


REDUCTIONS = ("sum", "mean", "max", "skip")


@pytest.mark.parametrize(
    ("rho", "reduce"),
    sampled(
        product((1, 2, 4, 7, 8), REDUCTIONS), [(2, "sum"), (1, "mean"), (2, "max"), (1, "skip")]
    ),
)
def test_groups_and_reductions(rho, reduce):
    agrees(*example(70, 32, rho, 4, 16), 70, None, reduce)


def test_what_lies_behind_the_rows_of_a_head_is_not_read():
    """Keys in blocks of channels, values token by token, and the newest of both as they are."""
    stored, grown = [], 0
    for by_channel in (True, False):
        storage = Storage(drawn((N, G, 0, D)))
        for m in (40, *[1] * 5):
            used = torch.ones((N, m), dtype=torch.bool, device=DEVICE)
            storage.append(drawn((N, G, m, D), storage.count), used, (m, m))
            if by_channel and m > 1:
                storage.quantize_channels(range(16), 4, 8, (16, 16))
            elif not by_channel:
                first, count = storage.tables[0].slots.start, 24 if m > 1 else 1
                storage.quantize_tokens(range(first, first + count), 4, 16, (count, count))
        for table in storage.tables:
            for part in table.parts:
                n, (_, per_head, per_row, *_) = part.shape[2], part.stride()
                first = int(part.storage_offset())
                free = per_head // per_row - n - first % per_head // per_row
                shape = (N, G, free, *part.shape[3:])
                behind = part.as_strided(shape, part.stride(), first + n * per_row)
                behind.fill_(torch.nan if part.is_floating_point() else 255)
                grown += free
        stored.append([replace(x, slots=x.slots_of_heads) for x in storage.tables])
    assert grown >= 4
    agrees(drawn((N, G, RHO, 1, D)), *stored, 45)


def test_partners_are_the_same_when_kept_as_when_found_anew():
    both = keys, values = [Storage(drawn((N, G, 0, D), seed)) for seed in (0, 1)]
    kept, slots = Partners(), torch.arange(8, 16, device=DEVICE).expand(N, G, 8)

    def check():
        assert keys.readable
        stored = [[replace(x, slots=x.slots_of_heads) for x in each.tables] for each in both]
        wanted = partners_of(*stored, keys.count)
        for ours, theirs in zip(kept.of(keys, values), wanted, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        return wanted

    def grow(m, present):
        for storage in both:
            new = drawn((N, G, m, D))
            storage.append(new, last_in_use(m, present, new.device)[:, 0], present)
        return check()

    grow(5, (5, 5))
    for storage, first in ((keys, range(4)), (values, range(2)), (values, range(2, 3))):
        storage.quantize_tokens(first, 4, 32, (len(first),) * N)
        assert all(isinstance(table.slots, range) for table in storage.tables)
    assert set((check()[1] >> TABLE_SHIFT).flatten().tolist()) == {0, 1}
    both = keys, values = [Storage(drawn((N, G, 0, D), seed)) for seed in (0, 1)]
    assert (grow(20, (20, 13))[0][1, :, :7] == -1).all()
    keys.quantize_tokens(slots, 4, 32)
    values.quantize_tokens(slots[:, :, :4], 2, 32)
    assert set((check()[1] >> TABLE_SHIFT).flatten().tolist()) == {0, 1}
    for last in (0, 1, 1):
        grow(1, (1, last))
    keep = torch.arange(3, 20, device=DEVICE).expand(N, G, 17)
    for storage in both:
        storage.take(keep, (17, 17))
    check()
