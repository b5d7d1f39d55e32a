"""Codes are bit for bit those of the reference, and outliers are found where it finds them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_inputs import DEVICE, DTYPES, as_numpy, drawn
from tolerances import FLOAT64

from kvlab.fast.kernels.coded import outlier_scores, quantise
from kvlab.reference.methods.desirekv import outlier_score
from kvlab.reference.quantization import quantize


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
