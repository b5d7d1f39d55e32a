"""Precisions on arrival: floats of 8 and 4 bits, rotated codes; by hand, bounds, refusals."""

import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.attention import attend, visible
from kvlab.reference.codes import E2M1, E4M3
from kvlab.reference.precisions import OnArrival, precisions, turboquant
from kvlab.reference.precisions.fp8 import FP8
from kvlab.reference.precisions.turboquant import TurboQuantMSE, TurboQuantProd
from kvlab.reference.stored_vectors import StoredVectors
from kvlab.reference.streams import Source, random_stream, run_stream
from support.tolerances import EXACT, FLOAT64, MONTE_CARLO

ON_ARRIVAL = [name for name in precisions() if name != "full"]


def stored(name: str, vectors) -> StoredVectors:
    """Keys ``[G, n, d]`` as a precision stores them."""
    precision = precisions()[name]
    assert isinstance(precision, OnArrival)
    vectors = np.asarray(vectors, dtype=float)
    return (
        StoredVectors.empty(len(vectors), vectors.shape[2]).append(vectors).encode(precision.keys)
    )


# --- small floats --------------------------------------------------------------------------------


def test_every_number_of_four_bits():
    positive = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    codes = np.arange(16, dtype=np.uint8)
    np.testing.assert_array_equal(E2M1.decode(codes), positive + [-x for x in positive])
    np.testing.assert_array_equal(E2M1.encode(E2M1.decode(codes)), codes)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused(bad):
    with pytest.raises(ValueError, match="must be finite"):
        E4M3.encode(np.array([1.0, bad]))
    for name in ON_ARRIVAL:
        with pytest.raises(ValueError, match="must be finite"):
            stored(name, [[[1.0, bad]]])


# --- equations by hand ---------------------------------------------------------------------------


def test_fp8_by_hand():
    """The largest element is 896 = 2·448, so the scale is 2; of head 1 alone, it is 1/2."""
    first = np.array([[[896.0, 10.0]], [[224.0, 34.0]]])
    one, each = stored("fp8", first), stored("fp8_head", first)
    assert one.scale is not None and each.scale is not None
    assert one.scale.tolist() == [[[2.0]]] and each.scale.tolist() == [[[2.0]], [[0.5]]]
    assert one.tables[0].take(np.array([0])).parts[0].tolist() == [[0x7E, 0x4A]]  # 448 and 5
    np.testing.assert_array_equal(one.vectors, [[[896, 10]], [[224, 32]]])  # 17 becomes 16
    np.testing.assert_array_equal(each.vectors, [[[896, 10]], [[224, 32]]])  # 68 becomes 64
    assert (one.payload_bytes, one.overhead_bytes, each.overhead_bytes) == (4, 4, 8)


def test_the_first_block_fixes_the_scale_and_later_ones_saturate():
    storage = stored("fp8", [[[448.0, 1.0]]]).append(np.array([[[1000.0, -0.3]]]))
    storage = storage.encode(FP8("e4m3", per_head=False))
    np.testing.assert_array_equal(storage.vectors, [[[448, 1], [448, -0.3125]]])
    nothing = stored("fp8", [[[0.0, 0.0]]])
    assert nothing.scale is not None and nothing.scale.tolist() == [[[1.0]]]


def test_nvfp4_by_hand():
    """Largest 2688 = 448·6: scale 1. Blocks of 16 have 448 and 2; the third, of 4, has 1,
    because 1.06 is stored as 1."""
    x = np.zeros((1, 1, 36))
    x[..., 0], x[..., 1], x[..., 2] = 2688, -448, 1792  # 6, -1 and 4 times 448
    x[..., 16], x[..., 17], x[..., 18] = 12, 5, 2.6  # 6, 2.5 and 1.3 times 2
    x[..., 32], x[..., 33] = -6.36, 2.6  # 2.6/1 goes to 3; 2.6/1.06 would go to 2
    storage = stored("nvfp4", x)
    assert storage.scale is not None and storage.scale.tolist() == [[[1.0]]]
    codes, scales = storage.tables[0].parts  # type: ignore[attr-defined]
    assert E4M3.decode(scales).tolist() == [[448, 2, 1]]
    assert codes.shape == (1, 18)
    assert codes[0, :2].tolist() == [0xA7, 0x06]  # the first channel in the low half
    assert codes[0, 8:10].tolist() == [0x47, 0x03]  # 2.5 goes to 2, the even code; 1.3 to 1.5
    assert codes[0, 16:].tolist() == [0x5F, 0x00]
    assert storage.vectors[0, 0, [0, 1, 2, 16, 17, 18, 32, 33]].tolist() == [
        *(2688, -448, 1792),
        *(12, 4, 3),
        *(-6, 3),
    ]
    assert (storage.payload_bytes, storage.overhead_bytes) == (18, 3 + 4)


@pytest.mark.parametrize("name", ["q8_0", "q4_0"])
def test_codes_of_ggml_are_those_of_its_package(name):
    """Both of 64 channels: a block of zeros, halves, two elements of the largest size, two that are
    less than a step, noise."""
    quants = pytest.importorskip("gguf").quants
    x = np.random.default_rng(0).normal(size=(40, 64)).astype(np.float32)
    x[0, :32] = 0
    x[1, :32] = np.arange(-16, 16) / 2
    x[2, :2] = -9, 9
    x[3, :3] = 127, 0.5, 0.7
    storage = stored(name, x[None].astype(float))
    kind = getattr(quants.GGMLQuantizationType, name.upper())
    blocks = quants.quantize(x, kind)
    np.testing.assert_array_equal(storage.vectors[0], quants.dequantize(blocks, kind))
    codes, scales = storage.tables[0].parts  # type: ignore[attr-defined]
    parts = [scales.view(np.uint8).reshape(40, 2, 2), codes.reshape(40, 2, -1)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=2).reshape(40, -1), blocks)


def test_a_coordinate_of_a_sphere_in_three_dimensions_is_uniform():
    """Archimedes: so the centroids divide [-1, 1] evenly. On a circle, E |y| is 2/π."""
    np.testing.assert_allclose(turboquant.codebook(1, 3), [-1 / 2, 1 / 2], rtol=1e-7)
    np.testing.assert_allclose(turboquant.codebook(2, 3), [-3 / 4, -1 / 4, 1 / 4, 3 / 4], rtol=1e-7)
    np.testing.assert_allclose(turboquant.codebook(1, 2), [-2 / np.pi, 2 / np.pi], rtol=1e-7)


@pytest.mark.parametrize("d", [2, 7, 128])
def test_the_rotation_is_orthogonal_and_drawn_from_the_seed(d):
    drawn = turboquant.rotation(d, 0)
    np.testing.assert_allclose(drawn @ drawn.T, np.eye(d), atol=FLOAT64)
    assert not np.allclose(drawn, turboquant.rotation(d, 1))
    normal = np.random.default_rng([turboquant.ROTATION, 0, d]).standard_normal((d, d))
    assert (np.diagonal(drawn.T @ normal) > 0).all()  # so that it is drawn uniformly


def test_turboquant_by_hand():
    """Rotated to (15, 12, -16)/25, of length 25; in three dimensions, centroids are ±1/4, ±3/4."""
    turn = turboquant.rotation(3, 0)
    x = np.array([[15.0, 12.0, -16.0]]) @ turn
    codes, norm = TurboQuantMSE(2, 0).encode(x)
    assert codes.tolist() == [[3 + (2 << 2) + (0 << 4)]] and norm.tolist() == [[25.0]]
    expected = 25 * np.array([[3 / 4, 1 / 4, -3 / 4]]) @ turn
    np.testing.assert_allclose(TurboQuantMSE(2, 0).decode((codes, norm), 3), expected, atol=1e-6)


def test_the_inner_product_version_by_hand():
    """With one bit there is no codebook: the residual is the vector itself."""
    x = 2 * turboquant.rotation(8, 0)[:1]
    parts = TurboQuantProd(1, 0).encode(x)
    signs = np.where(turboquant.projection(8, 0) @ x[0] >= 0, 1, -1)
    assert parts[0].tolist() == [[int(sum(2**j for j in range(8) if signs[j] > 0))]]
    assert parts[1].tolist() == [[2.0, 1.0]]
    expected = 2 * np.sqrt(np.pi / 2) / 8 * turboquant.projection(8, 0).T @ signs
    np.testing.assert_allclose(TurboQuantProd(1, 0).decode(parts, 8), expected[None], atol=FLOAT64)


# --- what TurboQuant's paper states --------------------------------------------------------------

MSE_PRINTED = {1: "0.36", 2: "0.117", 3: "0.03", 4: "0.009"}
"""Theorem 1 for unit vectors, as several transcriptions of the paper give it."""
PRODUCT_PRINTED = {1: "1.57", 2: "0.56", 3: "0.18", 4: "0.047"}
"""Theorem 2, times d, for a query of length 1."""


def exact_distortion(bits: int, d: int) -> float:
    """Return d·E (y − c)² by quadrature over the angle of y."""
    end = min(np.pi / 2, 12 / np.sqrt(d))
    angles = np.linspace(-end, end, 40001)
    density = np.cos(angles) ** (d - 2)
    off = np.abs(np.sin(angles)[:, None] - turboquant.codebook(bits, d)).min(axis=1)
    return float(d * (density * off**2).sum() / density.sum())


def sphere(rng: np.random.Generator, count: int, d: int) -> np.ndarray:
    drawn = rng.normal(size=(count, d))
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def printed_within(found: float, printed: str) -> bool:
    """Whether a number rounds to the printed digits."""
    return abs(found - float(printed)) <= 0.5 * 10.0 ** -len(printed.partition(".")[2])


@pytest.mark.parametrize("bits", MSE_PRINTED)
def test_the_squared_error_lies_between_the_printed_bounds(bits):
    """4^-b (Theorem 3) and √3·π/2·4^-b (Theorem 1); simulated as computed, and as printed."""
    x, code = sphere(np.random.default_rng(bits), 3000, 128), TurboQuantMSE(bits, 0)
    errors = ((x - code.decode(code.encode(x), 128)) ** 2).sum(axis=1)
    slack = MONTE_CARLO * errors.std() / np.sqrt(len(errors)) + 1e-6
    assert abs(errors.mean() - exact_distortion(bits, 128)) < slack
    assert 4.0**-bits < errors.mean() < np.sqrt(3) * np.pi / 2 * 4.0**-bits
    assert printed_within(exact_distortion(bits, 2048), MSE_PRINTED[bits])


@pytest.mark.parametrize("bits", PRODUCT_PRINTED)
def test_the_error_of_inner_products_lies_below_the_printed_bound(bits):
    """√3·π²/d·4^-b (Theorem 2). The printed values for 2 and 4 bits are π/2 times the rounded 0.36
    and 0.03; what the proof's own bound gives with the digits behind them is larger."""
    rng = np.random.default_rng(bits)
    x, y, code = sphere(rng, 8000, 128), sphere(rng, 8000, 128), TurboQuantProd(bits, 0)
    errors = 128 * ((x - code.decode(code.encode(x), 128)) * y).sum(axis=1) ** 2
    slack = MONTE_CARLO * errors.std() / np.sqrt(len(errors))
    before = 1.0 if bits == 1 else exact_distortion(bits - 1, 128)
    assert abs(errors.mean() - (np.pi / 2 - 1 / 128) * before) < slack
    assert errors.mean() < np.sqrt(3) * np.pi**2 * 4.0**-bits
    bound = np.pi / 2 * (1.0 if bits == 1 else exact_distortion(bits - 1, 2048))
    assert printed_within(bound, PRODUCT_PRINTED[bits]) == (bits in (1, 3))
    if bits == 4:
        assert errors.mean() - slack > float(PRODUCT_PRINTED[4])


# --- in a cache ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ON_ARRIVAL)
def test_entries_are_coded_once_and_leave_with_their_codes_untouched(name):
    x = np.random.default_rng(3).normal(size=(2, 12, 32))
    steps = stored(name, x[:, :5]).append(x[:, 5:])
    np.testing.assert_array_equal(steps.vectors[:, 5:], x[:, 5:])
    coded = steps.encode(precisions()[name].keys)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(coded.vectors[:, :5], steps.vectors[:, :5])
    assert coded.encode(precisions()[name].keys) is coded  # type: ignore[attr-defined]
    keep = np.array([[0, 3, 4, 9], [1, 2, 5, 11]])
    taken = coded.take(keep)
    np.testing.assert_array_equal(
        taken.vectors, np.take_along_axis(coded.vectors, keep[..., None], axis=1)
    )
    (table,) = taken.tables
    assert table.count == 8
    scale = 1.0 if coded.scale is None else np.broadcast_to(coded.scale, (2, 1, 1))
    read = table.code.decode(table.parts, table.d)[taken.row] * scale
    np.testing.assert_allclose(read, taken.vectors, rtol=0, atol=EXACT)


@pytest.mark.parametrize("name", ON_ARRIVAL)
def test_attention_reads_codes_of_earlier_blocks_and_its_own_block_as_it_came(name):
    stream = random_stream(Source("arrival"), 2, 2, 16, prompt=14, generated=6, block=5)
    before = None
    for result in run_stream(methods.get(f"full@precision={name}"), stream):
        clock, seen = result.seen.clock, result.seen
        new = slice(clock.seen - clock.block, clock.seen)
        np.testing.assert_array_equal(seen.keys[:, new], stream.keys[:, new])
        if before is not None:
            np.testing.assert_array_equal(seen.values[:, : new.start], before.values.vectors)
        mask = visible(clock.positions, seen.positions)
        dense, _ = attend(stream.queries[:, :, new], seen.keys, seen.values, mask)
        np.testing.assert_allclose(result.output, dense, atol=FLOAT64)
        assert (result.cache.keys.bits < 16).all() and (result.cache.values.bits < 16).all()
        assert np.abs(result.cache.keys.vectors - stream.keys[:, : clock.seen]).max() > 0
        before = result.cache


# --- refusals -----------------------------------------------------------------------------------


def test_vectors_that_a_code_cannot_hold_are_refused():
    with pytest.raises(ValueError, match="no longer than 65504"):
        stored("turboquant", [[[65504.0, 65504.0]]])
    with pytest.raises(ValueError, match="within the range of float32"):
        stored("fp8", [[[1e39, 0.0]]])
    with pytest.raises(ValueError, match="d = 1 must be at least 2"):
        stored("turboquant", [[[1.0]]])
