"""The cost model: sizes, bytes, operations, the roofline and what follows from them."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.models import reasoner_directory
from kvlab.reference.simulator.cost import Plan, Runtime
from kvlab.reference.simulator.sizes import HARDWARE, LAUNCHES, SHAPES, Hardware, Shape, find_shape
from kvlab.reference.simulator.work import Sizes, rating
from kvlab.reference.slots import Rows
from kvlab.reference.transformer import ModelConfig
from support.refused import refused
from support.tables import cases
from support.tolerances import DECIMALS, FLOAT64

pytestmark = pytest.mark.usefixtures("shapes")

PUBLISHED = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-2-7b": 6_738_415_616,
    "qwen2.5-7b": 7_615_616_512,
    "qwq-32b": 32_763_876_352,
    "qwen3-4b": 4_022_468_096,
    "llama-3.1-70b": 70_553_706_496,
}
"""Parameters, as the models' checkpoints hold them."""

TINY = Shape("tiny", 2, 8, 4, 2, 4, 16, 10)
PLAIN = Runtime(1.0, 1.0, start=0.0)
BYTE_A_SECOND = Hardware("slow", 1e9, 1.0, 1e30, "none")


def plan(spec="full", budget=None, **changes):
    arguments = {
        "shape": SHAPES["llama-3.1-8b"],
        "hardware": HARDWARE["h200"],
        "policy": methods.get(spec, budget),
        "prompt": 64,
        "generated": 300,
    }
    return Plan(**{**arguments, **changes})


# --- sizes ---------------------------------------------------------------------------------------


def test_parameters_are_those_of_the_checkpoints():
    assert {name: shape.parameters for name, shape in SHAPES.items()} == PUBLISHED


def test_the_embedded_model_is_counted_right():
    shape = find_shape(str(reasoner_directory()))
    tensors = ModelConfig.from_directory(reasoner_directory()).shapes().values()
    assert shape.parameters == sum(map(prod, tensors))


@cases(__file__, "a_file_that_is_no_configuration", "content message")
def test_a_file_that_is_no_configuration(tmp_path, content, message):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        find_shape(str(tmp_path))


# --- operations ----------------------------------------------------------------------------------

SIZES = Sizes(100, 4, 8)


def test_scores_that_look_again_read_keys_or_values():
    keys_once = 2 * 100 * 8
    base = rating(methods.get("tova", 50).score, SIZES)
    assert base.bytes == 4 * 100 * (4 + 1)
    caote = rating(methods.get("caote:tova", 50).score, SIZES)
    assert caote.bytes == base.bytes + keys_once + 4 * 100 * 5
    assert caote.flops == base.flops + 3 * 4 * 100 * 8
    window = rating(methods.get("snapkv@window=5", 50).score, SIZES)
    assert window.bytes == keys_once + 4 * 100
    assert window.flops == 4 * 5 * 100 * (2 * 8 + 5)
    pairs = rating(methods.get("rkv@window=5", 50).score, SIZES)
    assert pairs.flops == window.flops + 2 * 100 * 100 * 8
    expected = rating(methods.get("expected_attention", 50).score, SIZES)
    assert expected.bytes == 2 * window.bytes
    assert expected.flops == 4 * 100 * (2 * 8 * 8 + 4 * 8) + 2 * 100 * 8
    projected = rating(methods.get("expected_attention@values=projected", 50).score, SIZES)
    assert projected.flops == expected.flops + 2 * 100 * 8 * (4 * (8 + 1) - 1)
    series = rating(methods.get("triattention", 50).score, SIZES)
    assert (series.bytes, series.flops) == (window.bytes, 4 * 100 * 2 * 2 * 8)


def test_one_entry_is_found_in_one_pass_and_several_by_sorting():
    one = plan("tova", 99, prompt=99, generated=1).policy_work["select"]
    assert one.flops == [100]
    several = plan("h2o@every=36", 64, generated=36).policy_work["select"]
    assert several.flops[-1] == pytest.approx(664.385619, abs=DECIMALS)


# --- memory --------------------------------------------------------------------------------------


def test_memory_of_the_full_cache_by_hand():
    """64 slots of the prompt become 65 + 8 + 65//32 = 75, then 86, 97 …, 334 + 18 and 353 + 19."""
    found, tokens = plan(batch=3), 64 + 300
    each = (353 + 19) * (131072 + 32 * 8 * 4)
    activations = 2 * 64 * (3 * 14336 + 4 * 4096)
    assert found.sequence == (tokens * 131072, tokens * 32 * 8 * 4, 0)
    assert (found.logical_bytes, found.sequence_bytes) == (tokens * (131072 + 1024), each)
    weights = 2 * PUBLISHED["llama-3.1-8b"]
    assert found.memory == weights + activations + 3 * (each + 4 * 128256)


def test_rows_of_a_table_by_hand():
    """100 rows are joined; one more takes 100 + 1 + 6 = 107; of 107, 30 of the oldest stay behind
    in the buffer, so the next row needs a new one, of 77 + 1 + 4; without 70 of the oldest, or with
    any others removed, the buffer is as long as its rows."""
    rows = Rows()
    for add, expected in ((100, 100), (1, 107), *[(1, 107)] * 6):
        rows.add(add)
        assert rows.room == expected
    rows.remove(30, oldest=True)
    assert (rows.used, rows.first, rows.room) == (77, 30, 107)
    rows.add(1)
    assert (rows.used, rows.first, rows.room) == (78, 0, 82)
    rows.remove(70, oldest=True)
    assert rows == Rows(8, 8)
    rows.add(1)
    rows.remove(1, oldest=False)
    assert rows == Rows(8, 8)


def test_layers_are_compressed_one_after_the_other():
    cache, state, reading = plan("streaming_llm", 32, prompt=200).sequence
    per_token_and_layer = 131072 / 32
    assert cache == per_token_and_layer * (32 * 32 + 1)
    assert state == 8 * 4 * (32 * 32 + 1)
    assert cache + state + reading == (per_token_and_layer + 8 * 4) * (32 * 32 + 200 - 32)


def test_blocks_bound_the_prompt_which_one_sequence_at_a_time_reads():
    whole, blocks = (plan("h2o", 32, prompt=2000, block_size=size) for size in (None, 16))
    assert (whole.held.peak, blocks.held.peak) == (2000, 32 + 16)
    assert blocks.memory < whole.memory
    more = whole.with_batch(2).memory - whole.memory
    assert more == pytest.approx(whole.sequence_bytes + 4 * whole.shape.vocabulary)
    assert whole.sequence[2] > whole.sequence_bytes


def test_the_largest_batch_is_the_largest_that_fits():
    found = plan("h2o", 128)
    most = found.largest_batch
    usable = 0.9 * found.hardware.memory
    assert found.with_batch(most).memory <= usable < found.with_batch(most + 1).memory
    assert plan(hardware=replace(HARDWARE["v100"], memory=10e9)).largest_batch == 0


# --- time ----------------------------------------------------------------------------------------


def test_time_of_a_step_by_hand():
    """A device without any limit but one byte per second."""
    found = Plan(TINY, BYTE_A_SECOND, methods.get("full"), 3, 2, batch=5, runtime=PLAIN)
    weights = 2 * (2 * (TINY.projections + TINY.feed_forward) + 10 * 8)
    pointwise = 5 * 2 * 12 * 2 * 8
    cache = [5 * 2 * 2 * (2 * 4 * 2) * n for n in (4, 5)]
    np.testing.assert_allclose(
        found.step_seconds, [weights + pointwise + each for each in cache], rtol=FLOAT64
    )
    assert found.eviction_share == 0


def test_the_host_bounds_a_step_from_below():
    slow_host = plan(runtime=replace(PLAIN, host=1.0))
    assert slow_host.step_seconds[0] == LAUNCHES["full"]
    uncounted = LAUNCHES["full"] + 3 * 32
    for spec, wanted in {("kivi@residual=32",): LAUNCHES["kivi"], ("raas", 128): uncounted}.items():
        half = replace(SHAPES["llama-3.1-8b"], layers=16)
        assert plan(*spec, shape=half).launches.max() == wanted / 2


def test_quantising_is_work():
    found = {spec: plan(spec).policy_work for spec in ("kivi@residual=32", "full")}
    assert found["full"] == {}
    assert set(found["kivi@residual=32"]) == {"quantise"}
    demoting = plan("ddks@interval=64,selector=8", generated=300).policy_work
    assert set(demoting) == {"score", "select", "quantise"}
    assert demoting["score"].launches.sum() == 4


def test_other_batches_are_counted_anew_without_asking_the_policy_again():
    one, many = plan("h2o", 64), plan("h2o", 64, batch=7)
    assert one.with_batch(7).held is one.held
    np.testing.assert_array_equal(one.with_batch(7).step_seconds, many.step_seconds)


def test_prefill_is_arithmetic_and_blocks_read_the_weights_again():
    whole = plan(prompt=4096)
    layers = 32 * (whole.shape.projections + whole.shape.feed_forward)
    attention = 4 * 32 * 32 * 128 * 4096 * 4097 / 2
    flops = 2 * layers * 4096 + attention
    assert whole.prefill_seconds == pytest.approx(flops / (0.6 * 989e12))
    assert plan(prompt=4096, block_size=4096).prefill_seconds == whole.prefill_seconds
    single = plan(prompt=4096, block_size=1)
    assert single.prefill_seconds == pytest.approx(4096 * 2 * layers / (0.8 * 4.8e12))


@refused(__file__)
def test_what_cannot_be_is_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        eval(bad)
