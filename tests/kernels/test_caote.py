"""CAOTE's errors by kernels agree with the reference, also where one entry has nearly all."""

import numpy as np
import pytest
import torch

from kvlab.fast.kernels import caote
from kvlab.fast.kernels.caote import eviction_errors
from kvlab.reference.methods.caote import eviction_error, fast_eviction_error
from support.kernel_inputs import DTYPES, GROUPS, HEAD_DIMS, as_numpy, drawn, in_a_buffer
from support.sampling import diagonal
from support.tolerances import FLOAT32_SCORES


def example(N=2, G=2, k=2, n=70, d=32, dtype=torch.float32, sharpness=1.0, seed=0):
    h = torch.softmax(drawn((N, G, k, n), seed, scale=sharpness), dim=-1)
    return h, in_a_buffer(drawn((N, G, n, d), seed + 1, dtype))


def expected(h, values, fast=False):
    rule = fast_eviction_error if fast else eviction_error
    h = as_numpy(h)
    h = h / h.sum(axis=-1, keepdims=True)
    per_row = np.stack([rule(one, v[:, None]) for one, v in zip(h, as_numpy(values), strict=True)])
    return np.linalg.norm(per_row, axis=2)


def agrees(h, values, fast=False, **options):
    found = as_numpy(eviction_errors(h, values, fast, **options))
    wanted = expected(h, values, fast)
    np.testing.assert_allclose(found, wanted, rtol=FLOAT32_SCORES, atol=FLOAT32_SCORES)


@pytest.mark.parametrize(("d", "dtype", "fast"), diagonal(HEAD_DIMS, DTYPES, (False, True)))
def test_head_dimensions_and_number_formats(d, dtype, fast):
    agrees(*example(d=d, dtype=dtype), fast=fast)


LENGTHS = 2, 3, 63, 64, 65, 128, 129, 300


@pytest.mark.parametrize(("n", "fast", "k"), diagonal(LENGTHS, (False, True), GROUPS))
def test_lengths_around_the_blocks_and_rows_of_a_head(n, fast, k):
    agrees(*example(N=1, n=n, k=k), fast=fast)


@pytest.mark.parametrize("fast", [False, True])
def test_equal_entries_have_equal_errors_also_where_they_are_the_heaviest(fast):
    h, values = example(1, 1, 2, 50)
    h[..., 40] = h[..., 7] = h.amax(dim=-1) * 1.5
    h /= h.sum(dim=-1, keepdim=True)
    values[:, :, 40] = values[:, :, 7]
    errors = eviction_errors(h, values, fast)[0, 0]
    assert errors[40] == errors[7]
    plain = caote.fast_errors_per_row(h, values, None) if fast else caote.errors_per_row(h, values)
    assert torch.equal(plain[..., 40], plain[..., 7])
