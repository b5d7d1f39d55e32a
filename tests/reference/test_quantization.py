import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from kvlab.reference.quantization import WIDTHS, pack, quantize, unpack
from support.refused import refused
from support.tolerances import EXACT


@given(st.sampled_from(WIDTHS), st.data())
def test_packing_loses_nothing(bits, data):
    length = data.draw(st.integers(1, 40))
    codes = data.draw(arrays(np.uint8, (2, length), elements=st.integers(0, 2**bits - 1)))
    packed = pack(codes, bits)
    assert packed.shape[-1] == -(-length * bits // 8)
    np.testing.assert_array_equal(unpack(packed, bits, length), codes)


def test_packing_by_hand():
    """Codes 1, 2, 3, 0 at 2 bits, the first in the lowest bits."""
    assert pack(np.array([1, 2, 3, 0], dtype=np.uint8), 2).tolist() == [0b00_11_10_01]


@given(st.sampled_from(WIDTHS), st.integers(1, 9), st.integers(0, 10**6))
def test_the_error_is_at_most_half_a_step(bits, group, seed):
    """Δ/2, plus what storing Δ and z in float16 moves: each has 11 bits of precision."""
    x = np.random.default_rng(seed).normal(size=(3, 13)) * 5
    stored = quantize(x, bits, group)
    for first in range(0, 13, group):
        block = x[:, first : first + group]
        got = stored.dequantize()[:, first : first + group]
        step = np.ptp(block, axis=-1, keepdims=True) / (2**bits - 1)
        metadata = (np.abs(block).max(axis=-1, keepdims=True) + np.ptp(block)) * 2.0**-10
        assert (np.abs(block - got) <= step / 2 + metadata).all()


def test_a_constant_group_gets_codes_zero():
    stored = quantize(np.full((1, 4), 2.5), 4, 4)
    assert stored.codes.tolist() == [[0, 0]]
    np.testing.assert_allclose(stored.dequantize(), 2.5, atol=EXACT)


@pytest.mark.parametrize(("low", "code"), [(1000.3, 0), (1000.2, 3)])
def test_codes_keep_to_their_range_where_float16_moves_the_zero_point(low, code):
    """Near 1000 float16 holds halves: 1000.3 becomes 1000.5, 1000.2 becomes 1000.0; Δ = 1/30."""
    assert unpack(quantize(np.array([[low, low + 0.1]]), 2, 2).codes, 2, 2).tolist() == [[code] * 2]


def test_codes_count_in_steps_of_the_scale_that_is_stored():
    """Δ = 1 + 2⁻¹² is stored as 1, because float16 holds thousandths there: 1.5003/1 rounds to 2,
    and 1.5003/Δ = 1.49993 would round to 1."""
    stored = quantize(np.array([[0.0, 1.5003, 3 * (1 + 2.0**-12)]]), 2, 3)
    assert stored.scale.tolist() == [[1.0]]
    assert unpack(stored.codes, 2, 3).tolist() == [[0, 2, 3]]


def test_halves_round_to_even():
    """Δ = 1: .5 → 0, 1.5 → 2, 2.5 → 2."""
    stored = quantize(np.array([[0.0, 0.5, 1.5, 2.5, 3.0]]), 2, 5)
    assert unpack(stored.codes, 2, 5).tolist() == [[0, 0, 2, 2, 3]]


@refused(__file__)
def test_bad_input(bad, message):
    with pytest.raises(ValueError, match=message):
        eval(bad)
