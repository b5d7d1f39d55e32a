"""Precisions on arrival in tensors: the bits of PyTorch's floats and of the reference's codes."""

import numpy as np
import pytest
import torch

from kvlab.fast.engine.port import port_part
from kvlab.fast.engine.storage import Storage, quantize_oldest
from kvlab.fast.kernels.codes import Coded, decode_small, encode_small
from kvlab.reference.codes import E4M3, E5M2
from kvlab.reference.precisions import OnArrival, precisions
from kvlab.reference.stored_vectors import CodedRows, StoredVectors
from support.tolerances import FLOAT64

ON_ARRIVAL = [name for name in precisions() if name != "full"]
FORMATS = [(E4M3, torch.float8_e4m3fn), (E5M2, torch.float8_e5m2)]


def read_by_torch(codes: torch.Tensor, dtype: torch.dtype) -> np.ndarray:
    return codes.view(dtype).double().numpy()


@pytest.mark.parametrize(("format", "dtype"), FORMATS)
def test_all_codes_read_as_pytorch_reads_them(format, dtype):
    codes = torch.arange(256, dtype=torch.uint8)
    theirs = read_by_torch(codes, dtype)
    finite = np.isfinite(theirs)
    assert finite.sum() == 2 * (1 + format.encode(np.array([format.largest]))[0])
    for ours in (format.decode(codes.numpy()), decode_small(format, codes, torch.float64).numpy()):
        np.testing.assert_array_equal(ours[finite], theirs[finite])
        assert np.isnan(ours[~finite]).all()


@pytest.mark.parametrize(("format", "dtype"), FORMATS)
def test_numbers_and_ties_are_rounded_as_pytorch_rounds_them(format, dtype):
    """Every number, the middle between neighbours, what lies next to the middle; random ones."""
    numbers = read_by_torch(torch.arange(256, dtype=torch.uint8), dtype)
    numbers = np.unique(numbers[np.isfinite(numbers)])
    middles = ((numbers[1:] + numbers[:-1]) / 2).astype(np.float32)
    beside = [np.nextafter(middles, np.float32(to)) for to in (-np.inf, np.inf)]
    drawn = np.random.default_rng(0).normal(size=4000) * 10.0 ** np.arange(-8, 0).repeat(500)
    drawn *= format.largest
    x = np.concatenate([numbers, middles, *beside, drawn, [0.0, -0.0]]).astype(np.float32)
    x = x[np.abs(x) <= format.largest]
    expected = torch.from_numpy(x).to(dtype).view(torch.uint8).numpy()
    np.testing.assert_array_equal(format.encode(x.astype(np.float64)), expected)
    found = encode_small(format, torch.from_numpy(x).double())
    np.testing.assert_array_equal(found.numpy(), expected)


def vectors(seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Vectors ``[1, 2, 50, 48]`` of many sizes; one is zero, one has a single element."""
    rng = np.random.default_rng(seed)
    drawn = rng.normal(size=(1, 2, 50, 48)) * 2.0 ** rng.integers(-12, 4, size=(1, 2, 50, 1))
    drawn[0, 0, 3], drawn[0, 1, 7, 1:] = 0, 0
    return torch.from_numpy(drawn).to(dtype)


def append(storage: Storage, rows: torch.Tensor) -> None:
    """Add vectors of a sequence without padding."""
    m = rows.shape[2]
    storage.append(rows, torch.ones((1, m), dtype=torch.bool), (m,))


@pytest.mark.parametrize("name", ON_ARRIVAL)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_codes_scales_and_bytes_are_the_references(name, dtype):
    """In two blocks, of which the first fixes the scale; the second is larger."""
    precision = precisions()[name]
    assert isinstance(precision, OnArrival)
    x = vectors(1, dtype) * torch.tensor([1.0] * 30 + [3.0] * 20, dtype=dtype)[:, None]
    for code in (precision.keys, precision.values):
        ours, theirs = Storage(x), StoredVectors.empty(2, 48)
        for number, part in enumerate((slice(0, 30), slice(30, 50))):
            append(ours, x[:, :, part])
            ours.encode(port_part(code), [number == 0])
            theirs = theirs.append(x[0, :, part].double().numpy()).encode(code)
        (expected,) = theirs.tables
        assert isinstance(expected, CodedRows)
        full, table = ours.tables
        assert full.rows == 0 and isinstance(table.vectors, Coded)
        for found, part in zip(table.vectors.parts, expected.parts, strict=True):
            by_head = part[theirs.row]  # the reference's rows are in order of arrival
            np.testing.assert_array_equal(found[0].numpy(), by_head)
        if theirs.scale is not None:
            assert ours.scale is not None
            np.testing.assert_array_equal(ours.scale[0].numpy(), theirs.scale)
        assert ours.payload_bytes == theirs.payload_bytes
        assert ours.overhead_bytes == theirs.overhead_bytes
        read = ours.read(torch.float64)[0].numpy()
        np.testing.assert_allclose(read, theirs.vectors, rtol=0, atol=FLOAT64)


@pytest.mark.parametrize("heads", [1, 2])
def test_what_a_copy_takes_up_is_not_in_the_original(heads):
    """Neither in rows as they came nor in codes, however much room there is behind them."""
    x = vectors(1, torch.float32)[:, :heads]
    ours, held = Storage(x), 29
    append(ours, x[:, :, :held])

    def take_up(storage: Storage, row: int) -> None:
        append(storage, x[:, :, row : row + 1])
        quantize_oldest([storage], 8, 16)

    for _ in range(6):
        copy = ours.copy()
        for storage, row in ((ours, held), (copy, 49)):
            take_up(storage, row)
        held += 1
        for storage, last in ((ours, held - 1), (copy, 49)):
            whole = Storage(x)
            append(whole, x[:, :, [*range(held - 1), last]])
            whole.quantize_tokens(range(held - 29), 8, 16, (held - 29,))
            assert torch.equal(storage.read(x.dtype), whole.read(x.dtype))


def test_moved_rows_take_their_scales_along():
    x = torch.cat([vectors(1, torch.float64), 3 * vectors(2, torch.float64)])
    ours, fp8 = Storage(x), precisions()["fp8"]
    assert isinstance(fp8, OnArrival)
    ours.append(x, torch.ones(x.shape[:3:2], dtype=torch.bool), (50, 50))
    ours.encode(port_part(fp8.keys), [True, True])
    expected = ours.read(x.dtype).flip(0)
    ours.map_rows(lambda rows: rows.flip(0), [1, 0])
    assert torch.equal(ours.read(x.dtype), expected)
