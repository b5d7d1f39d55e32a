"""Decode attention with scores agrees with the reference, for each sequence of the batch."""

import numpy as np
import pytest
import torch
from kernel_inputs import DEVICE, DTYPES, GROUPS, HEAD_DIMS, as_numpy, drawn, in_a_buffer, in_torch
from sampling import diagonal, sampled
from tolerances import BFLOAT16_OUTPUT, FLOAT16_WEIGHTS, FLOAT32_SCORES

from kvlab.fast.kernels.decode import RecurrenceCounters, decode_attention
from kvlab.reference.attention import attend

ROUNDED = {torch.float32: FLOAT32_SCORES, torch.bfloat16: BFLOAT16_OUTPUT, torch.float16: 2.0**-9}
"""Of the output, by what it is stored as; probabilities are float32 whatever is stored."""


def example(N=2, G=2, rho=2, n=70, d=32, dtype=torch.float32, scale=1.0, seed=0):
    """What lies behind the entries is NaN, and nothing of it may come through."""
    queries = drawn((N, G, rho, 1, d), seed, dtype, scale)
    keys, values = (in_a_buffer(drawn((N, G, n, d), seed + i, dtype)) for i in (1, 2))
    return queries, keys, values


def expected(queries, keys, values, positions=None, softcap=None):
    outputs, weights = [], []
    for q, k, v, there in zip(
        as_numpy(queries),
        as_numpy(keys),
        as_numpy(values),
        [None] * len(queries) if positions is None else positions.cpu().numpy() >= 0,
        strict=True,
    ):
        everything = np.ones(k.shape[:2], dtype=bool)
        mask = (everything if there is None else there)[:, None, None]
        output, attention = attend(q, k, v, mask, softcap)
        outputs.append(output)
        weights.append(attention)
    return np.stack(outputs), np.stack(weights)


def agrees(arguments, dtype=torch.float32, **options):
    output, weights = decode_attention(*arguments, **options)
    wanted, attention = expected(*arguments, **options)
    np.testing.assert_allclose(as_numpy(weights), attention, atol=FLOAT32_SCORES, rtol=0)
    size = max(1.0, np.abs(wanted).max())
    np.testing.assert_allclose(as_numpy(output), wanted, atol=ROUNDED[dtype] * size, rtol=0)


@pytest.mark.parametrize(("d", "dtype"), diagonal(HEAD_DIMS, DTYPES))
def test_head_dimensions_and_number_formats(d, dtype):
    agrees(example(d=d, dtype=dtype), dtype)


LENGTHS = [{"N": 1, "G": 1, "n": n, "d": 80} for n in (1, 2, 63, 64, 65, 127, 128, 129, 300)]
QUERY_GROUPS = [{"N": 1, "rho": rho, "n": 40} for rho in GROUPS]


@pytest.mark.parametrize("sizes", [*LENGTHS, *QUERY_GROUPS], ids=str)
def test_lengths_around_the_blocks_and_query_groups(sizes):
    agrees(example(**sizes))


def test_the_output_is_the_same_without_scores():
    arguments = example(rho=4, n=150)
    output, _ = decode_attention(*arguments)
    alone, scores = decode_attention(*arguments, reduce="skip")
    torch.testing.assert_close(alone, output, rtol=0, atol=0)
    assert not scores.numel()


@pytest.mark.parametrize("softcap", [None, 0.7, 30.0])
def test_softcap(softcap):
    agrees(example(), softcap=softcap)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gap", [9, 18])
def test_what_an_attention_sink_leaves_to_others(gap, dtype):
    """A probability of e^-18 lies below float16's least number; the sink's value is 0."""
    queries, keys = (torch.zeros((1, 1, m, 64), device=DEVICE) for m in (1, 60))
    queries[..., 0], keys[:, :, 0, 0] = 8.0, gap
    values = drawn((1, 1, 60, 64)).abs()
    values[:, :, 0] = 0.0
    keys, values = keys.to(dtype), values.to(dtype)
    output, _ = decode_attention(queries[:, :, :, None], keys, values, reduce="skip")
    mask = np.ones((1, 1, 1, 60), dtype=bool)
    asked, k, v = (as_numpy(x)[0] for x in (queries[:, :, :, None], keys, values))
    wanted, _ = attend(asked, k, v, mask, None)
    off = BFLOAT16_OUTPUT if dtype == torch.bfloat16 else FLOAT16_WEIGHTS
    np.testing.assert_allclose(as_numpy(output)[0], wanted, rtol=off)


@pytest.mark.parametrize("reduce", ["none", "sum", "mean", "max", "skip"])
def test_no_entry_at_all(reduce):
    queries, nothing = drawn((2, 2, 3, 1, 32)), drawn((2, 2, 0, 32))
    found = decode_attention(queries, nothing, nothing, reduce=reduce)
    with in_torch():
        twin = decode_attention(queries, nothing, nothing, reduce=reduce)
    assert [x.shape for x in found] == [x.shape for x in twin]
    assert (found[0] == 0).all()


def test_empty_slots_get_nothing():
    arguments = example(N=3, n=150)
    positions = torch.arange(150, dtype=torch.int32, device=DEVICE).repeat(3, 2, 1)
    positions[0, :, :140] = -1
    positions[1, :, ::3] = -1
    agrees([x[:2] for x in arguments], positions=in_a_buffer(positions[:2].double()).int())
    positions[2] = -1
    output, weights = decode_attention(*arguments, positions=positions)
    assert (weights[positions[:, :, None, None].expand_as(weights) < 0] == 0).all()
    assert (output[2] == 0).all()


@pytest.mark.parametrize("scale", [0.0, 30.0, 1e4])
def test_equal_dominant_and_extreme_logits(scale):
    queries, keys, values = example(scale=scale)
    output, weights = decode_attention(queries, keys, values)
    wanted, attention = expected(queries, keys, values)
    off = max(FLOAT32_SCORES, 1e-6 * scale)  # logits of this size are rounded by 6e-8 of it
    np.testing.assert_allclose(as_numpy(weights), attention, atol=off, rtol=0)
    np.testing.assert_allclose(as_numpy(output), wanted, atol=4 * off, rtol=0)
    if scale == 0.0:
        assert (weights == weights[0, 0, 0, 0, 0]).all()


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("rho", [1, 3, 4])
def test_reductions_over_the_group(reduce, rho):
    arguments = example(rho=rho, n=90)
    _, received = decode_attention(*arguments, reduce=reduce)
    _, attention = expected(*arguments)
    wanted = getattr(attention[:, :, :, 0], reduce)(axis=2)
    np.testing.assert_allclose(as_numpy(received), wanted, atol=FLOAT32_SCORES, rtol=0)


@pytest.mark.parametrize("threshold", sampled((0.0, 0.01, 0.05, 2.0), (0.0, 0.05)))
def test_recurrence_is_counted_as_in_pytorch(threshold):
    queries, keys, values = example(n=150, scale=2.0)
    counters = torch.randint(0, 9, (2, 2, 2, 150), dtype=torch.int32, device=DEVICE)
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
        same = (received >= threshold) == (plain >= threshold)
        assert same[clear].all()
        assert (ours.elapsed == theirs.elapsed)[clear].all()
        assert (ours.interval == theirs.interval)[clear].all()
        ours.elapsed.copy_(theirs.elapsed)
        ours.interval.copy_(theirs.interval)
    assert (theirs.elapsed.max() > 0) == (threshold > 0)


def test_counters_need_one_number_per_entry():
    counters = torch.zeros((2, 2, 70), dtype=torch.int32, device=DEVICE)
    with pytest.raises(ValueError, match="counters need reduce"):
        decode_attention(*example(), counters=RecurrenceCounters(counters, counters, 0.1))
