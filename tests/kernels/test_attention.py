"""Attention with scores, of a token and of a block of rows, agrees with the reference."""

from itertools import product

import numpy as np
import pytest
import torch

from kvlab.fast.kernels import common
from kvlab.fast.kernels.decode import RecurrenceCounters, decode_attention
from kvlab.fast.kernels.prefill import attend_block, received_attention
from support.kernel_inputs import (
    DEVICE,
    DTYPES,
    GROUPS,
    HEAD_DIMS,
    as_numpy,
    attended,
    drawn,
    in_a_buffer,
    in_torch,
    vectors,
)
from support.sampling import diagonal, sampled
from support.tolerances import BFLOAT16_OUTPUT, FLOAT32_SCORES

ROUNDED = {torch.float32: FLOAT32_SCORES, torch.bfloat16: BFLOAT16_OUTPUT, torch.float16: 2.0**-9}
"""Of the output, by what it is stored as; probabilities are float32 whatever is stored."""


def close(found, wanted, off):
    np.testing.assert_allclose(as_numpy(found), wanted, atol=off, rtol=0)


# --- one token -----------------------------------------------------------------------------------


def agrees(arguments, positions=None, softcap=None):
    exact = torch.empty(arguments[0].shape, dtype=torch.float32, device=DEVICE)
    output, weights = decode_attention(*arguments, positions, softcap, exact=exact)
    mask = None if positions is None else positions.cpu().numpy()[:, :, None, None] >= 0
    wanted, attention, _ = attended(*arguments, mask, softcap)
    close(weights, attention, FLOAT32_SCORES)
    off = ROUNDED[arguments[1].dtype] * max(1.0, np.abs(wanted).max())
    close(output, wanted, off)
    close(exact, wanted, off)
    assert output.dtype == torch.float32 or not output.any() or (exact != output).any()
    return output, weights


FORMATS = diagonal(HEAD_DIMS, DTYPES, (None, 0.7, 30.0, None))
FEW = [(32, torch.bfloat16), (80, torch.float32)]
"""Of what takes long in the interpreter."""


@pytest.mark.parametrize(("d", "dtype", "softcap"), FORMATS)
def test_a_token_s_head_dimensions_number_formats_and_softcap(d, dtype, softcap):
    agrees(vectors(d=d, dtype=dtype), softcap=softcap)


LENGTHS = [{"N": 1, "G": 1, "n": n, "d": 80} for n in (1, 2, 63, 64, 65, 127, 128, 129, 300)]
QUERY_GROUPS = [{"N": 1, "rho": rho, "n": 40} for rho in GROUPS]


@pytest.mark.parametrize("sizes", [*LENGTHS, *QUERY_GROUPS], ids=str)
def test_lengths_around_the_blocks_and_query_groups(sizes):
    agrees(vectors(**sizes))


@pytest.mark.parametrize("parts", [3, 7, 70])
def test_parts_of_any_number_some_empty(parts, monkeypatch):
    monkeypatch.setattr(common, "split", lambda *sizes: parts)
    agrees(vectors(N=1, n=90))


def test_empty_slots_get_nothing():
    positions = torch.arange(150, dtype=torch.int32, device=DEVICE).repeat(3, 2, 1)
    positions[0, :, :140] = -1
    positions[1, :, ::3] = -1
    positions[2] = -1
    positions = in_a_buffer(positions.double()).int()
    output, weights = agrees(vectors(N=3, n=150), positions)
    assert (weights[positions[:, :, None, None].expand_as(weights) < 0] == 0).all()
    assert (output[2] == 0).all()


@pytest.mark.parametrize(("rho", "reduce"), diagonal((3, 4, 1), ("sum", "mean", "max", "skip")))
def test_reductions_over_the_group(reduce, rho):
    arguments = vectors(rho=rho, n=90)
    output, received = decode_attention(*arguments, reduce=reduce)
    torch.testing.assert_close(output, decode_attention(*arguments)[0], rtol=0, atol=0)
    if reduce == "skip":
        assert not received.numel()
    else:
        attention = attended(*arguments)[1][:, :, :, 0]
        close(received, getattr(attention, reduce)(axis=2), FLOAT32_SCORES)


@pytest.mark.parametrize("threshold", sampled((0.0, 0.01, 0.05, 2.0), (0.0, 0.05)))
def test_recurrence_is_counted_as_in_pytorch(threshold):
    queries, keys, values = vectors(n=70, scale=2.0)
    counters = torch.randint(0, 9, (2, 2, 2, 70), dtype=torch.int32, device=DEVICE)
    ours, theirs = (
        RecurrenceCounters(in_a_buffer(e.double()).int(), in_a_buffer(i.double()).int(), threshold)
        for e, i in (counters.clone(), counters.clone())
    )
    for turn in range(4):
        asked = queries * (1 + turn)
        _, received = decode_attention(asked, keys, values, reduce="max", counters=ours)
        with in_torch():
            _, plain = decode_attention(asked, keys, values, reduce="max", counters=theirs)
        clear = (plain - threshold).abs() > FLOAT32_SCORES
        assert ((received >= threshold) == (plain >= threshold))[clear].all()
        for name in ("elapsed", "interval"):
            counted, wanted = getattr(ours, name), getattr(theirs, name)
            assert (counted == wanted)[clear].all()
            counted.copy_(wanted)
    assert (theirs.elapsed.max() > 0) == (threshold > 0)


# --- a block of rows -----------------------------------------------------------------------------


def block(m=40, **sizes):
    """Queries, keys and values, and positions of rows, the newest, and of entries."""
    queries, keys, values = vectors(m=m, **sizes)
    positions = torch.arange(keys.shape[2], dtype=torch.int32, device=DEVICE)
    rows = positions[-m:].repeat(len(keys), 1)
    return queries, keys, values, rows, positions.repeat(*keys.shape[:2], 1)


def block_agrees(queries, keys, values, rows, positions, softcap=None, gains=None):
    """Outputs, log-sum-exps and what was received are the reference's; return the last two."""
    entries, own = positions.cpu().numpy()[:, :, None, None], rows.cpu().numpy()[:, None, None]
    mask = (entries <= own[..., None]) & (entries >= 0)
    _, weights, _ = attended(queries, keys, values, mask, softcap, gains)
    off = FLOAT32_SCORES * queries.shape[2] * queries.shape[3]
    received = received_attention(queries, keys, rows, positions, gains, softcap)
    close(received, weights.sum(axis=(2, 3)), off)
    wanted, _, logged = attended(queries, keys, values, mask, softcap)
    output, lse = attend_block(queries, keys, values, rows, positions, softcap)
    close(output, wanted, 4 * ROUNDED[keys.dtype])
    assert (as_numpy(output)[np.isinf(logged)] == 0).all()
    close(lse, logged, 4 * FLOAT32_SCORES)
    if gains is None:
        again = received_attention(queries, keys, rows, positions, None, softcap, lse)
        torch.testing.assert_close(again, received, atol=off, rtol=0)
    return lse, received


@pytest.mark.parametrize(("d", "dtype"), sampled(product(HEAD_DIMS, DTYPES), FEW))
def test_a_block_s_head_dimensions_and_number_formats(d, dtype):
    block_agrees(*block(N=1, d=d, dtype=dtype))


BLOCKS = [(1, 1), (1, 70), (63, 64), (65, 65), (64, 129), (130, 200)]
SIZES = [{"G": 1, "m": m, "n": n} for m, n in BLOCKS] + [{"G": 1, "rho": rho} for rho in GROUPS]
SCALES = [{"scale": 0.0}, {"scale": 30.0}]


@pytest.mark.parametrize("sizes", sampled(SIZES + SCALES, (*SIZES[::3], SCALES[1])), ids=str)
def test_blocks_of_all_lengths_query_groups_and_sizes_of_logits(sizes):
    block_agrees(*block(N=1, **sizes))


@pytest.mark.parametrize(("softcap", "gained"), [(0.7, False), (30.0, True), (None, True)])
def test_softcap_and_step_gain(softcap, gained):
    arguments = block(N=1, G=1)
    gains = 1 + drawn((1, 40), 3).abs() if gained else None
    _, found = block_agrees(*arguments, softcap, gains)
    _, plain = block_agrees(*arguments)
    assert (found - plain).abs().max() > 0.01


PADDED = ((1, 1), (63, 64), (64, 129), (70, 130))


@pytest.mark.parametrize(
    ("lengths", "softcap"),
    sampled(product(PADDED, (None, 5.0)), [((1, 1), 5.0), ((63, 64), None)]),
)
def test_padding_and_empty_slots(lengths, softcap):
    m, n = lengths
    queries, keys, values, rows, positions = block(m, G=1, n=n, rho=3)
    rows[1, : m // 2] = -1
    positions[1, :, : n // 3] = -1
    positions[0, :, 1::5] = -1
    lse, received = block_agrees(queries, keys, values, rows, positions, softcap)
    assert (received[1, :, : n // 3] == 0).all()
    assert m == 1 or (lse[1, :, :, 0] == -torch.inf).all()
