"""Right numbers at the edges of number formats and in every layout, beside float64.

The rows stand in edges.toml; a failure names the row, and prints result and right value.
"""

import tomllib
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from kvlab.fast.kernels.caote import eviction_errors
from kvlab.fast.kernels.decode import decode_attention
from kvlab.fast.kernels.keep import keep_slots
from kvlab.fast.kernels.mixed_precision import attend_to_tables
from kvlab.fast.kernels.prefill import attend_block, received_attention
from kvlab.fast.kernels.quantise import quantise
from kvlab.fast.kernels.vector_tables import VectorTable
from kvlab.reference.methods.caote import eviction_error, fast_eviction_error
from kvlab.reference.quantization import quantize
from support.kernel_inputs import DEVICE, DTYPES, as_numpy, attended, drawn, in_torch
from support.sampling import diagonal, sampled
from support.tolerances import BFLOAT16_OUTPUT, FLOAT32_SCORES

EDGES = tomllib.loads(Path(__file__).with_name("edges.toml").read_text("utf-8"))
n, D, HEAVY = 64, 64, 5
FORMATS = pytest.mark.parametrize("dtype", DTYPES, ids=str)
LOGITS = [*EDGES["logits"]]
CASES = {*product(LOGITS, ["ordinary"]), *product(LOGITS[:5], EDGES["sizes"])}
CASES -= {("others 1e-11", "sink")}  # `in_reach` says what float16 loses beside a larger weight
ROWS = pytest.mark.parametrize(
    ("logits", "size"), sampled(sorted(CASES), [("others 1e-6", "sink")])
)
WEIGHTED = {torch.float32: FLOAT32_SCORES, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""What sums may be off whose every weight is rounded to a format."""
STORED = {**WEIGHTED, torch.bfloat16: BFLOAT16_OUTPUT, torch.float16: 2.0**-10}


def example(logits, size, dtype, m=1):
    """Queries, keys and values: channel 0 alone makes the logits; every head has its own values."""
    queries = torch.zeros((2, 2, 2, m, D), dtype=dtype, device=DEVICE)
    keys = torch.zeros((2, 2, n, D), dtype=dtype, device=DEVICE)
    row, scale = EDGES["logits"][logits], EDGES["sizes"][size][str(dtype).removeprefix("torch.")]
    queries[..., 0] = D**0.5
    keys[..., 0] = row["others"] + row["slope"] * torch.arange(n)
    keys[:, :, HEAVY, 0] = row["heavy"]
    values = drawn((2, 2, n, D), 3, dtype, scale)
    values[:, :, HEAVY] *= size != "sink"
    return queries, keys, values


def near(found, right, off, name):
    """Errors count beside the largest number of a row."""
    scale = np.abs(right).max(axis=-1, keepdims=True) + 1e-30
    np.testing.assert_allclose(as_numpy(found) / scale, right / scale, 0, off, err_msg=name)


def agrees(found, right, off=3e-5):
    np.testing.assert_allclose(as_numpy(found), right, rtol=off, atol=1e-37)


@FORMATS
@ROWS
def test_attention(logits, size, dtype):
    """Of a token, and of a block. An output's subnormal float16 numbers are 2^-24 apart."""
    stored = 1.0 if dtype == torch.float16 and size in ("subnormal", "sink") else STORED[dtype]
    given = example(logits, size, dtype)
    exact = torch.empty(given[0].shape, dtype=torch.float32, device=DEVICE)
    output, weights = decode_attention(*given, exact=exact)
    right, probabilities, _ = attended(*given)
    near(exact, right, WEIGHTED[dtype], "exact output")
    near(output, right, stored, "output")
    agrees(weights, probabilities)
    slots = torch.arange(n, device=DEVICE).expand(2, 2, n)
    plain, coded = (VectorTable(slots, x) for x in (given[1], quantise(given[2], 4, 32)))
    output, _ = attend_to_tables(given[0].float(), [plain], [coded], n)
    right, _, _ = attended(*given[:2], coded.read(torch.float64))
    near(output, right, 2 * WEIGHTED[dtype], "output of codes")
    queries, keys, values = example(logits, size, dtype, m=4)
    places = torch.arange(n, dtype=torch.int32, device=DEVICE)
    rows, entries = places[-4:].repeat(2, 1), places.repeat(2, 2, 1)
    mask = np.tri(4, n, n - 4, dtype=bool)[None, None, None].repeat(2, 0)
    right, weights, logged = attended(queries, keys, values, mask)
    output, lse = attend_block(queries, keys, values, rows, entries)
    near(output, right, stored, "output of a block")
    np.testing.assert_allclose(as_numpy(lse), logged, rtol=1e-6, atol=1e-6)
    for known in (None, lse):
        agrees(received_attention(queries, keys, rows, entries, lse=known), weights.sum((2, 3)))


@FORMATS
@pytest.mark.parametrize(("rows", "fast"), diagonal([1, 4], [False, True]))
@ROWS
def test_errors_of_eviction(logits, size, fast, rows, dtype):
    """In every row another entry is the heaviest."""
    queries, keys, values = example(logits, size, dtype)
    h = attended(queries, keys, values)[1][:, :, :1, 0]
    h = np.concatenate([np.roll(h, 3 * row, axis=-1) for row in range(rows)], axis=2)
    h = torch.tensor(h, dtype=torch.float32, device=DEVICE)
    rule, every = fast_eviction_error if fast else eviction_error, h.double()
    with np.errstate(divide="ignore"):
        per_row = [*map(rule, as_numpy(every / every.sum(-1, True)), as_numpy(values)[:, :, None])]
    right = np.minimum(np.linalg.norm(per_row, axis=2), torch.finfo(torch.float32).max)
    output = torch.matmul(every, values.double())
    stored = output.to(dtype) if dtype.itemsize < 4 else None
    agrees(eviction_errors(h, values, fast, stored), right, 2e-4)
    far = right > 1e-3 * right.max()  # from an output that is rounded
    agrees(
        eviction_errors(h, values, fast, output.float())[torch.tensor(far, device=DEVICE)],
        right[far],
        1e-3,
    )
    with in_torch():
        agrees(eviction_errors(h, values, fast), right, 2e-4)


@pytest.mark.parametrize(("dtype", "rows", "fast", "others", "right"), EDGES["printed"]["rows"])
def test_the_error_of_one_entry_with_all_the_mass(dtype, rows, fast, others, right):
    h = torch.full((1, 1, rows, 63), others / 62, device=DEVICE)
    h[..., HEAVY] = 1
    values = torch.full((1, 1, 63, D), 16.0, dtype=getattr(torch, dtype), device=DEVICE)
    values[:, :, HEAVY, :3] += torch.tensor([2.75, 0.375, 0.375], device=DEVICE)
    found = eviction_errors(h, values, fast)[0, 0]
    assert f"{found[HEAVY].item():.2e}" == right
    assert found.count_nonzero() == (1 if others == 0 else 63)


LAYOUTS = {
    "[N, n, G, d] transposed": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "[n, N, G, d] turned": lambda x: x.movedim(2, 0).contiguous().movedim(0, 2),
    "channels last but one": lambda x: x.mT.contiguous().mT,
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_read(layout):
    turned, places = LAYOUTS[layout], torch.arange(70, dtype=torch.int32, device=DEVICE)
    queries, keys, h = (drawn((3, 2, *rest)) for rest in ((2, 4, D), (70, D), (2, 70)))
    values = keys + 1

    def results(keys, values, places, h):
        exact = torch.zeros((3, 1, 2, 2, D), device=DEVICE).permute(0, 2, 3, 1, 4)
        yield decode_attention(queries[:, :, :, -1:], keys, values, places, exact=exact)
        yield exact.clone()
        yield attend_block(queries, keys, values, places[:, 0, -4:], places)
        yield received_attention(queries, keys, places[:, 0, -4:], places)
        yield eviction_errors(h.softmax(-1), values)
        yield keep_slots(h[:, :, 0], h[:, :, 1] > 1, places, [60] * 3, ordered=True)
        tables = ([VectorTable(places.long(), x)] for x in (keys, values))
        yield attend_to_tables(queries[:, :, :, -1:], *tables, 70)

    places = places.repeat(3, 2, 1)
    moved = turned(keys), turned(values), turned(places[..., None])[..., 0], turned(h)
    for ours, right in zip(results(*moved), results(keys, values, places, h), strict=True):
        torch.testing.assert_close(ours, right, rtol=0, atol=0)


@pytest.mark.slow
@FORMATS
@pytest.mark.parametrize(("kind", "bits"), [*product(EDGES["groups"], [2, 4, 8])])
def test_codes_and_attention_to_them(kind, bits, dtype):
    """Codes along channels and along tokens; queries make logits of about 10 at most."""
    x = torch.tensor(EDGES["groups"][kind], device=DEVICE).repeat(32)[:32].to(dtype)
    limit = 65280.0 if dtype == torch.bfloat16 else 65504.0  # of both formats
    x, slots = x.clamp(-limit, limit), torch.arange(n, device=DEVICE).expand(1, 1, n)
    wanted = quantize(as_numpy(x), bits, 32)
    for found, name in zip(quantise(x, bits, 32).parts, ("codes", "scale", "zero"), strict=True):
        np.testing.assert_array_equal(found.cpu().numpy(), getattr(wanted, name), name)
    queries = (drawn((1, 1, 2, 1, D), 4) / max(1.0, float(x.abs().max()))).to(dtype)
    rows, blocks = (quantise(x.repeat(*each), bits, 32) for each in ((1, 1, n, 2), (1, 1, 2, D, 1)))
    values = VectorTable(slots, quantise(x.repeat(1, 1, n, 2) / 2, bits, 32))
    for keys in (VectorTable(slots, rows), VectorTable(slots, blocks, by_channel=True)):
        output, weights = attend_to_tables(queries, [keys], [values], n)
        read = [each.read(torch.float64) for each in (keys, values)]
        right, probabilities, _ = attended(queries, *read)
        agrees(weights, probabilities, 1e-4)
        near(output, right, 2 * STORED[dtype] + 2.0**-24 / (abs(right).max() + 1e-30), "output")
