"""Codes are bit for bit those of the reference, and attention reads them in place."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_inputs import DEVICE, DTYPES, as_numpy, drawn
from tolerances import BFLOAT16_OUTPUT, FLOAT32_SCORES, FLOAT64

from kvlab.fast.kernels.coded import outlier_scores, quantise
from kvlab.fast.kernels.coded_table import CodedTable
from kvlab.fast.kernels.tables import attend_to_tables
from kvlab.reference.attention import attend
from kvlab.reference.methods.desirekv import outlier_score
from kvlab.reference.quantization import quantize

N, G, RHO, D = 2, 2, 4, 64


def is_the_reference(x, bits, group):
    found = quantise(x, bits, group)
    wanted = quantize(as_numpy(x), bits, group)
    for name in ("codes", "scale", "zero"):
        ours, theirs = getattr(found, name).cpu().numpy(), getattr(wanted, name)
        np.testing.assert_array_equal(ours.reshape(theirs.shape), theirs, err_msg=name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(("length", "group"), [(64, 64), (128, 32), (128, 64), (80, 32), (96, 4)])
def test_codes_scales_and_zero_points(length, group, bits, dtype):
    is_the_reference(drawn((37, length), dtype=dtype), bits, group)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-7e4, 7e4, width=32), min_size=32, max_size=32), st.sampled_from([2, 4, 8])
)
def test_any_numbers(numbers, bits):
    x = torch.tensor(numbers, dtype=torch.float32, device=DEVICE).clamp(-65504, 65504)
    is_the_reference(x.view(2, 16), bits, 8)


def test_constant_groups_and_halves():
    constant = torch.full((3, 32), 1.25, device=DEVICE)
    assert (quantise(constant, 4, 32).codes == 0).all()
    is_the_reference(constant, 4, 32)
    halves = torch.arange(32, device=DEVICE) / 2  # every other one lies between two codes
    is_the_reference(halves.float().view(1, 32), 4, 32)


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
        found.append(CodedTable(torch.where(used, slots, -1), stored))
    return found


FORMATS = [(16, 0), (8, 64), (4, 64), (2, 32)]
ODD = [(16, 0), (3, 64), (4, 64), (8, 32)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [5, 64, 150])
@pytest.mark.parametrize(("softcap", "formats"), [(None, FORMATS), (5.0, FORMATS), (None, ODD)])
def test_attention_to_mixed_precision(n, dtype, softcap, formats):
    queries = drawn((N, G, RHO, 1, D), 0, dtype)
    keys, values = (drawn((N, G, n, D), seed, dtype) for seed in (1, 2))
    rng = np.random.default_rng(n)
    own, other = (torch.tensor(rng.integers(0, 4, (N, G, n)), device=DEVICE) for _ in range(2))
    stored_keys, stored_values = tables(keys, own, formats), tables(values, other, formats)
    output, weights = attend_to_tables(queries, stored_keys, stored_values, n, softcap)

    def read(stored):
        whole = np.zeros((N, G, n, D))
        for table in stored:
            rows, slots = as_numpy(table.read(torch.float64)), table.slots.cpu().numpy()
            for i, j, r in zip(*np.nonzero(slots >= 0), strict=True):
                whole[i, j, slots[i, j, r]] = rows[i, j, r]
        return whole

    for one, (k, v) in enumerate(zip(read(stored_keys), read(stored_values), strict=True)):
        mask = np.ones((G, 1, 1, n), dtype=bool)
        wanted, attention = attend(as_numpy(queries[one]), k, v, mask, softcap)
        np.testing.assert_allclose(as_numpy(weights[one]), attention, atol=FLOAT32_SCORES)
        off = FLOAT32_SCORES if dtype == torch.float32 else BFLOAT16_OUTPUT
        np.testing.assert_allclose(as_numpy(output[one]), wanted, atol=off * 3)


def test_slots_in_no_table_are_empty():
    queries, vectors = drawn((1, 1, 2, 1, D)), drawn((1, 1, 10, D))
    slots = torch.tensor([[[0, 4, -1, 7, -1, 9, 2, -1, -1, -1]]], device=DEVICE)
    stored = [CodedTable(slots, vectors)]
    _, weights = attend_to_tables(queries, stored, stored, 12)
    taken = torch.zeros(12, dtype=torch.bool, device=DEVICE)
    taken[[0, 2, 4, 7, 9]] = True
    assert (weights[0, 0, :, 0][:, ~taken] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 1, 2, 1, device=DEVICE))


@pytest.mark.parametrize("over", ["outliers", "block"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("length", "group"), [(64, 64), (128, 64), (96, 32), (80, 64), (64, 2)])
def test_outlier_scores(length, group, dtype, over):
    x = drawn((21, length), dtype=dtype)
    x[::3, 5] *= 12
    x[4] = 1.0
    found = as_numpy(outlier_scores(x, group, over))
    blocks = np.split(as_numpy(x), range(group, length, group), axis=-1)
    wanted = np.stack([outlier_score(block, over) for block in blocks], axis=-1)
    np.testing.assert_allclose(found, wanted, atol=FLOAT64)
    assert group < 32 or wanted.max() > 0.1


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("n", "group"), [(64, 32), (72, 8)])
def test_attention_to_keys_quantised_by_channel(n, group, bits):
    queries, keys, values = (drawn((N, G, m, D), i) for i, m in enumerate((RHO, n, n)))
    blocks = quantise(keys.unflatten(2, (-1, group)).transpose(-1, -2), bits, group)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    table = CodedTable(order.expand(N, G, n), blocks, by_channel=True)
    plain = [CodedTable(torch.arange(n, device=DEVICE).expand(N, G, n), values)]
    output, weights = attend_to_tables(queries[:, :, :, None], [table], plain, n)
    read = np.zeros((N, G, n, D))
    read[:, :, order.cpu()] = as_numpy(table.read(torch.float64))
    assert np.abs(read - as_numpy(keys)).max() > 0
    for one in range(N):
        mask = np.ones((G, 1, 1, n), dtype=bool)
        asked = as_numpy(queries[one])[:, :, None]
        wanted, attention = attend(asked, read[one], as_numpy(values[one]), mask, None)
        np.testing.assert_allclose(as_numpy(weights[one]), attention, atol=FLOAT32_SCORES)
        np.testing.assert_allclose(as_numpy(output[one]), wanted, atol=FLOAT32_SCORES * 3)
