"""Codes are bit for bit those of the reference, and outliers are found where it finds them."""

import numpy as np
import pytest
import torch

from kvlab.fast.kernels.quantise import outlier_scores, quantise, quantize as quantize_in_torch
from kvlab.reference.methods.desirekv import outlier_score
from kvlab.reference.quantization import quantize
from support.kernel_inputs import DEVICE, DTYPES, as_numpy, drawn
from support.sampling import diagonal
from support.tolerances import FLOAT64


def is_the_reference(x, bits, group):
    found = quantise(x, bits, group)
    wanted = quantize(as_numpy(x), bits, group)
    for name, part in zip(("codes", "scale", "zero"), found.parts, strict=True):
        ours, theirs = part.cpu().numpy(), getattr(wanted, name)
        np.testing.assert_array_equal(ours.reshape(theirs.shape), theirs, err_msg=name)
    assert quantise(x[:0], bits, group).dequantize(x.dtype).shape == (0, x.shape[-1])


SIZES = ((64, 64), (128, 32), (128, 64), (80, 32), (96, 4))


@pytest.mark.parametrize(
    ("size", "bits", "dtype"), diagonal(SIZES, (2, 3, 4, 8), (*DTYPES, torch.float64))
)
def test_codes_scales_and_zero_points(size, bits, dtype):
    length, group = size
    is_the_reference(drawn((37, length), dtype=dtype), bits, group)


def hard_groups(bits, rng, n=256):
    """Numbers for which a narrower format, or one rounding more, would find other codes."""
    largest = 2**bits - 1
    step = rng.integers(1, 128, (n, 1)) * 2.0 ** rng.integers(-7, 3, (n, 1))
    halves = rng.integers(0, 2 * largest + 1, (n, 16)) / 2
    halves[:, :2] = 0, largest
    around_zero = (halves - rng.integers(0, 2 * largest, (n, 1)) / 2) * step
    tiny = rng.choice([1e-30, 3e-8, -3e-8, 6e-8, -6e-8], (n, 16))
    around_zero[:, 2:] += np.where(around_zero == 0, tiny, 0)[:, 2:]
    span = largest * (2 * rng.integers(1024, 2048, (n, 1)) + 1)
    scale_between_two = np.where(np.arange(16) % 2, span // 256 * 256, -(span % 256)) / 16.0
    far_apart = rng.normal(size=(n, 16)) * 2.0 ** rng.integers(-30, 12, (n, 16))
    too_large = rng.normal(size=(n, 16)) * 6e4
    far_apart[0] = [-36704, (1 - 2**-10) / 16, *[0] * 14]  # nearly halfway between two scales
    kinds = halves * step, around_zero, scale_between_two, far_apart, too_large
    return torch.tensor(np.concatenate(kinds), device=DEVICE)


@pytest.mark.parametrize(("bits", "dtype"), diagonal((2, 4, 8), DTYPES))
def test_groups_that_leave_no_room_for_an_error(bits, dtype):
    x = hard_groups(bits, np.random.default_rng(bits))
    x = (x.clamp(-65504, 65504) if dtype == torch.float16 else x).to(dtype)
    found, wanted = quantise(x, bits, 16), quantize_in_torch(x, bits, 16)
    for ours, theirs in zip(found.parts, wanted.parts, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("constant", "bits"), diagonal((1.25, 1.2345, -1.2345, 0.1, 1e-8), (2, 4, 8))
)
def test_constant_groups_beside_halves(constant, bits):
    """Zero points are rounded to float16, so that x − zero is not 0 though the step is."""
    largest = 2**bits - 1
    halves = torch.arange(32, device=DEVICE).clamp(max=2 * largest) / 2
    halves[-1] = largest
    both = torch.stack([torch.full_like(halves, constant), halves])
    assert (quantise(both, bits, 32).parts[0][0] == 0).all()
    is_the_reference(both, bits, 32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_number_that_is_none_poisons_its_group(dtype):
    x = drawn((3, 64), dtype=dtype)
    x[1, 5] = torch.nan
    for each in quantise(x, 4, 32).parts[1:]:
        assert each.isnan().nonzero().tolist() == [[1, 0]]


RESTS = ((64, 64), (128, 64), (96, 32), (80, 64), (64, 2))


@pytest.mark.parametrize(("size", "dtype", "over"), diagonal(RESTS, DTYPES, ("outliers", "block")))
def test_outlier_scores(size, dtype, over):
    length, group = size
    x = drawn((21, length), dtype=dtype)
    x[::3, 5] *= 12
    x[4] = 1.0
    found = as_numpy(outlier_scores(x, group, over))
    blocks = np.split(as_numpy(x), range(group, length, group), axis=-1)
    wanted = np.stack([outlier_score(block, over) for block in blocks], axis=-1)
    np.testing.assert_allclose(found, wanted, atol=FLOAT64)
    assert group < 32 or wanted.max() > 0.1
