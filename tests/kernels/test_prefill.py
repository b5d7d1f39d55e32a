"""Column sums by kernels agree with those of the reference's attention matrix."""

import numpy as np
import pytest
import torch
from kernel_inputs import DEVICE, DTYPES, GROUPS, HEAD_DIMS, as_numpy, drawn, in_a_buffer
from sampling import diagonal
from tolerances import BFLOAT16_OUTPUT, FLOAT16_WEIGHTS, FLOAT32_SCORES

from kvlab.fast.kernels.prefill import attend_block, received_attention
from kvlab.reference.attention import attend, logits, softmax


def example(N=2, G=2, rho=2, m=40, n=70, d=32, dtype=torch.float32, scale=1.0):
    queries = drawn((N, G, rho, m, d), 0, dtype, scale)
    keys = in_a_buffer(drawn((N, G, n, d), 1, dtype))
    positions = torch.arange(n, dtype=torch.int32, device=DEVICE).repeat(N, G, 1)
    rows = torch.arange(n - m, n, dtype=torch.int32, device=DEVICE).repeat(N, 1)
    return queries, keys, rows, positions


def expected(queries, keys, rows, positions, gains=None, softcap=None):
    sums = np.zeros(positions.shape)
    for one in range(len(queries)):
        raw = logits(as_numpy(queries[one]), as_numpy(keys[one]), softcap)
        if gains is not None:
            raw = raw * as_numpy(gains[one])[:, None]
        entries, own = (x[one].cpu().numpy() for x in (positions, rows))
        mask = (entries[:, None, None] <= own[:, None]) & (entries >= 0)[:, None, None]
        mask = np.broadcast_to(mask, raw.shape)
        reading = mask.any(axis=(0, 1, 3))
        weights = softmax(raw[:, :, reading], mask[:, :, reading])
        sums[one] = weights.sum(axis=(1, 2))
    return sums


def agrees(*arguments, **options):
    found = as_numpy(received_attention(*arguments, **options))
    wanted = expected(*arguments, **options)
    rows = arguments[0].shape[2] * arguments[0].shape[3]
    np.testing.assert_allclose(found, wanted, atol=FLOAT32_SCORES * rows, rtol=0)
    return found


@pytest.mark.parametrize(("d", "dtype"), diagonal(HEAD_DIMS, DTYPES))
def test_head_dimensions_and_number_formats(d, dtype):
    agrees(*example(N=1, d=d, dtype=dtype))


LENGTHS = [(1, 1), (1, 70), (63, 64), (65, 65), (64, 129), (130, 200)]
SIZES = [*({"G": 1, "m": m, "n": n} for m, n in LENGTHS), *({"G": 1, "rho": rho} for rho in GROUPS)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_lengths_around_the_blocks_and_query_groups(sizes):
    agrees(*example(N=1, **sizes))


@pytest.mark.parametrize("softcap", [0.7, 30.0])
@pytest.mark.parametrize("gained", [False, True])
def test_softcap_and_step_gain(softcap, gained):
    queries, keys, rows, positions = example()
    gains = 1 + drawn((2, 40), 3).abs() if gained else None
    agrees(queries, keys, rows, positions, gains=gains, softcap=softcap)


def test_step_gain_alone():
    arguments = example()
    gains = 1 + drawn((2, 40), 3).abs()
    found = agrees(*arguments, gains=gains)
    assert np.abs(found - as_numpy(received_attention(*arguments))).max() > 0.01


def test_padding_and_empty_slots():
    queries, keys, rows, positions = example()
    rows[1, :15] = -1
    positions[1, :, :20] = -1
    positions[0, :, ::5] = -1
    found = agrees(queries, keys, rows, positions)
    assert (found[1, :, :20] == 0).all()


@pytest.mark.parametrize("scale", [0.0, 30.0])
def test_equal_and_dominant_logits(scale):
    found = agrees(*example(scale=scale))
    assert found.sum(axis=-1) == pytest.approx(np.full((2, 2), 2 * 40), rel=1e-5)


def block_agrees(queries, keys, rows, positions, values, softcap=None):
    """Outputs are the reference's, log-sum-exps those of its logits, and sums follow from them."""
    output, lse = attend_block(queries, keys, values, rows, positions, softcap)
    off = FLOAT32_SCORES if keys.dtype == torch.float32 else BFLOAT16_OUTPUT
    for one in range(len(queries)):
        entries, own = (x[one].cpu().numpy() for x in (positions, rows))
        mask = (entries[:, None, None] <= own[:, None]) & (entries >= 0)[:, None, None]
        q, k, v = (as_numpy(x[one]) for x in (queries, keys, values))
        reading = mask.any(axis=(0, 1, 3))
        wanted, _ = attend(q[:, :, reading], k, v, mask[:, :, reading], softcap)
        found = as_numpy(output[one])
        np.testing.assert_allclose(found[:, :, reading], wanted, atol=4 * off, rtol=0)
        assert (found[:, :, ~reading] == 0).all()
        raw = np.where(mask, logits(q, k, softcap), -np.inf)
        with np.errstate(divide="ignore"):
            logged = np.log(np.exp(raw).sum(axis=-1))
        np.testing.assert_allclose(as_numpy(lse[one]), logged, atol=4 * FLOAT32_SCORES, rtol=0)
    both = (
        received_attention(queries, keys, rows, positions, None, softcap, given)
        for given in (lse, None)
    )
    torch.testing.assert_close(*both, atol=FLOAT32_SCORES * rows.shape[1], rtol=0)
    return lse


@pytest.mark.parametrize(("d", "dtype"), diagonal(HEAD_DIMS, DTYPES))
def test_outputs_of_a_block(d, dtype):
    queries, keys, rows, positions = example(N=1, d=d, dtype=dtype)
    block_agrees(queries, keys, rows, positions, in_a_buffer(drawn(keys.shape, 2, dtype)))


BLOCKS = ((1, 1), (63, 64), (64, 129), (70, 130))


@pytest.mark.parametrize(("lengths", "softcap"), diagonal(BLOCKS, (None, 5.0)))
def test_blocks_of_all_lengths_with_padding_and_empty_slots(lengths, softcap):
    m, n = lengths
    queries, keys, rows, positions = example(G=1, m=m, n=n, rho=3)
    rows[1, : m // 2] = -1
    positions[1, :, : n // 3] = -1
    values = drawn(keys.shape, 2)
    lse = block_agrees(queries, keys, rows, positions, values, softcap)
    assert m == 1 or (lse[1, :, :, 0] == -torch.inf).all()


def test_entries_in_any_order():
    queries, keys, rows, positions = example(N=1, m=70, n=130)
    order = torch.randperm(130, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    agrees(queries, keys, rows, positions[:, :, order].contiguous())


def test_log_sums_that_are_given_are_used():
    arguments = example()
    lse = attend_block(*arguments[:2], arguments[1], *arguments[2:])[1]
    whole = received_attention(*arguments, lse=lse)
    less = received_attention(*arguments, lse=lse + 1.0)
    torch.testing.assert_close(less, whole / np.e, atol=FLOAT32_SCORES, rtol=FLOAT32_SCORES)
    with pytest.raises(ValueError, match="without gains"):
        received_attention(*arguments, torch.ones((2, 40), device=DEVICE), None, lse)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gap", [9, 18])
def test_what_an_attention_sink_leaves_to_others(gap, dtype):
    """A probability of e^-18 lies below float16's least number; the sink's value is 0."""
    queries, keys = (torch.zeros((1, 1, m, 64), device=DEVICE) for m in (4, 60))
    queries[..., 0], keys[:, :, 0, 0] = 8.0, gap
    values = drawn((1, 1, 60, 64), scale=1e4).abs()
    values[:, :, 0] = 0.0
    keys, values = keys.to(dtype), values.to(dtype)
    entries = torch.arange(60, dtype=torch.int32, device=DEVICE)
    places = entries[None, -4:].contiguous(), entries.view(1, 1, 60)
    output, _ = attend_block(queries[:, :, None], keys, values, *places)
    weights = torch.softmax(torch.tensor([float(gap)] + [0.0] * 59, dtype=torch.float64), dim=0)
    for row in range(4):
        seen = weights[: 57 + row] / weights[: 57 + row].sum()
        wanted = seen.numpy() @ as_numpy(values)[0, 0, : 57 + row]
        off = BFLOAT16_OUTPUT if dtype == torch.bfloat16 else 2 * FLOAT16_WEIGHTS  # the output, too
        np.testing.assert_allclose(as_numpy(output)[0, 0, 0, row], wanted, rtol=off)
