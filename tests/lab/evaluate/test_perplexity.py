"""The perplexity gap (CAOTE, Table 4): what is rated, and how points are compared."""

from math import log

import numpy as np
import pytest

from kvlab.fast.lab.evaluate.likelihood import Passage, cut_windows, rate
from kvlab.fast.lab.generation import token_ids
from kvlab.fast.lab.sweep.summary import against_full
from kvlab.fast.models.loading import load
from support.sweeping import made
from support.texts import byte_model
from support.tolerances import DECIMALS, FLOAT32_LOGITS, FLOAT64

TEXT = "The cat sat on the mat. It was a grey cat, and it was asleep. " * 6


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return load(byte_model(tmp_path_factory.mktemp("model")))


def test_points_against_the_full_cache_by_hand():
    """Full: ½, ½, ¼ → e^((2 ln 2 + ln 4)/3) = 2^(4/3); method: ¼, ¼, ¼ → 4.

    Passage means: full ln 2 and ln 4, method ln 4 twice; differences ln 2 and 0, mean ln √2, and
    for one degree of freedom t = 12.7062: the interval reaches 12.7062 · ln √2 to either side.
    """

    def point(method, *losses):
        return made(method, 4, loss=losses, tokens=(2, 1)[: len(losses)])

    full, row = against_full([point("full", log(2), log(4)), point("h2o", log(4), log(4))])
    assert (full.gap, full.nats) == (0, None)
    assert row.gap == pytest.approx(4 - 2 ** (4 / 3), abs=FLOAT64)
    mean, reach = log(2) / 2, 12.706205 * log(2) / 2
    ends = pytest.approx((mean - reach, mean + reach), abs=DECIMALS)
    assert row.nats.mean == pytest.approx(mean, abs=FLOAT64)
    assert (row.nats.low, row.nats.high) == ends
    _, single = against_full([point("full", log(2)), point("h2o", log(4))])
    assert (single.gap, single.nats) == (pytest.approx(2, abs=FLOAT64), None)


@pytest.mark.parametrize("feed", ["steps", "blocks"])
def test_bytes_are_counted_with_scales_and_a_precision_alone_is_measured(loaded, feed):
    """Of 59 tokens read: 16 bits, or a byte each and two float32 scales per layer."""
    model, tokenizer = loaded
    passages = cut_windows(token_ids(tokenizer, TEXT), 60, 10, most=1)
    config = model.config
    elements = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    scales = 2 * 4 * config.num_hidden_layers
    for spec, budget, nbytes in (
        ("full", None, 59 * elements * 2),
        ("h2o", 20, 20 * elements * 2),
        ("full@precision=fp8", None, 59 * elements + scales),
        ("h2o@precision=fp8", 20, 20 * elements + scales),
    ):
        (found,) = rate(model, spec, budget, passages, 16, feed, 1)
        assert found.nbytes == nbytes, spec


def test_a_method_that_only_decides_while_writing_needs_steps(loaded):
    model, tokenizer = loaded
    passages = cut_windows(token_ids(tokenizer, TEXT), 60, 10, most=1)
    spec = "lazy_eviction@window=4,threshold=0.05"
    with pytest.raises(ValueError, match="nothing is evicted while 59 tokens are read in blocks"):
        rate(model, spec, 20, passages, 16, "blocks", 1)
    (full,), (ran,) = (
        rate(model, *method, passages, 16, "steps", 1) for method in (("full", None), (spec, 20))
    )
    assert np.abs(full.logprobs - ran.logprobs).max() > 100 * FLOAT32_LOGITS


def test_windows_cut_a_text_and_leave_the_rest_out():
    assert cut_windows([1, 2, 3, 4, 5, 6, 7], 3, 1) == [Passage([1], [2, 3]), Passage([4], [5, 6])]
    assert cut_windows([1, 2, 3, 4], 2, 1, most=1) == [Passage([1], [2])]
    with pytest.raises(ValueError, match="the text has 3 tokens, too few for window = 10"):
        cut_windows([1, 2, 3], 10, 1)
