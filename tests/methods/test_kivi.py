import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.quantization import quantize
from support.build import run, stream
from support.tables import cases
from support.tolerances import FLOAT16_METADATA


def test_four_elements_by_hand():
    """(0, 1, 2, 3.2) at 2 bits: z = 0, Δ = 3.2/3 = 1.066667, codes 0 1 2 3."""
    stored = quantize(np.array([[0.0, 1.0, 2.0, 3.2]]), bits=2, group=4)
    assert stored.codes.tolist() == [[0b11_10_01_00]]
    np.testing.assert_allclose(stored.scale, [[3.2 / 3]], rtol=FLOAT16_METADATA)
    np.testing.assert_allclose(
        stored.dequantize(), [[0, 1.066667, 2.133333, 3.2]], rtol=FLOAT16_METADATA
    )


def test_what_is_quantised_when():
    """R = 4, 11 tokens: keys ⌊11/4⌋·4 = 8 at 4 bits, values 11 − 4 = 7."""
    queries, keys, values = stream(np.random.default_rng(14), 2, 2, 4, 11)
    cache = run(methods.get("kivi@group=4,residual=4"), queries, keys, values, prompt=0)[-1].cache
    assert (cache.keys.bits == [4] * 8 + [16] * 3).all()
    assert (cache.values.bits == [4] * 7 + [16] * 4).all()


def test_what_is_quantised_stays_as_it_is_by_hand():
    """Near 1000 float16 holds halves. Values (1000.2, 1000.3) at 2 bits: z = 1000, Δ = 1/30, codes
    3 and 3: 1000.1, which would be read as 1000 if it were quantised again. So for keys along the
    tokens of a channel; along the channels of a token they would be 0 and 1000 exactly."""
    keys = np.array([[[1000.2, 0.0], [1000.3, 0.0], *[[0.0, 0.0]] * 4]])
    values = np.array([[[1000.2, 1000.3]] * 6])
    policy = methods.get("kivi@group=2,residual=2,key_bits=2,value_bits=2")
    *_, before, _, last = run(policy, np.zeros((1, 1, 6, 2)), keys, values, prompt=0)
    for result in (before, last):
        two, step = result.cache, np.float16(0.1 / 3).astype(float)
        expected = [[1000 + 3 * step, 0], [1000 + 3 * step, 0]]
        np.testing.assert_allclose(two.keys.vectors[0, :2], expected, rtol=1e-12)
        np.testing.assert_allclose(two.values.vectors[0, :2], 1000 + 3 * step, rtol=1e-12)


@cases(__file__, "average_bits_formula_equals_stored_bytes", "key_bits value_bits")
def test_average_bits_formula_equals_stored_bytes(key_bits, value_bits):
    """½·Σ n_x(b_x + 32/g) + (n − n_x)·16, per element, at d = g = 8 and R = 16."""
    n, d, group, residual = 50, 8, 8, 16
    queries, keys, values = stream(np.random.default_rng(15), 2, 1, d, n)
    spec = f"kivi@key_bits={key_bits},value_bits={value_bits},group={group},residual={residual}"
    cache = run(methods.get(spec), queries, keys, values, prompt=20)[-1].cache
    in_keys, in_values = n // residual * residual, n - residual
    bits = in_keys * (key_bits + 32 / group) + (n - in_keys) * 16
    bits += in_values * (value_bits + 32 / group) + (n - in_values) * 16
    assert cache.nbytes * 8 / (2 * d * 2 * n) == bits / (2 * n)


def test_blocks_store_what_one_shot_prefill_stores():
    queries, keys, values = stream(np.random.default_rng(16), 2, 2, 4, 37)
    policy = methods.get("kivi@group=4,residual=8")
    once = run(policy, queries, keys, values, prompt=37)[-1].cache
    split = run(policy, queries, keys, values, prompt=37, block=5)[-1].cache
    np.testing.assert_array_equal(once.keys.vectors, split.keys.vectors)
    np.testing.assert_array_equal(once.values.vectors, split.values.vectors)


def test_a_group_must_divide_the_head_dimension():
    data = stream(np.random.default_rng(18), 1, 1, 6, 8)
    with pytest.raises(ValueError, match="group = 4 must divide the head dimension 6"):
        run(methods.get("kivi@group=4,residual=4"), *data, prompt=8)
