"""The perplexity gap (CAOTE, Table 4)."""

import json
from math import log

import numpy as np
import pytest
from texts import byte_model
from tolerances import FLOAT32_LOGITS, FLOAT64
from typer.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from kvlab.fast.lab.cli import app  # noqa: E402
from kvlab.fast.lab.evaluate.likelihood import Likelihood, Passage, Reading  # noqa: E402
from kvlab.fast.lab.evaluate.perplexity import (  # noqa: E402
    _row,
    cut_windows,
    measure_perplexity,
)
from kvlab.fast.lab.generation import token_ids  # noqa: E402
from kvlab.fast.models.loading import load  # noqa: E402

TEXT = "The cat sat on the mat. It was a grey cat, and it was asleep. " * 6


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return str(byte_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def loaded(directory):
    return load(directory)


def rated(*probabilities: float) -> Likelihood:
    logprobs = np.log(probabilities)
    return Likelihood(logprobs, np.ones(len(logprobs), dtype=bool), 4, 512.0)


def test_a_row_by_hand():
    """Full: ½, ½, ¼ → e^((2 ln 2 + ln 4)/3) = 2^(4/3); method: ¼, ¼, ¼ → 4.

    Passage means: full ln 2 and ln 4, method ln 4 twice; differences ln 2 and 0, mean ln √2.
    """
    full = [rated(1 / 2, 1 / 2), rated(1 / 4)]
    row = _row("h2o", 4, [rated(1 / 4, 1 / 4), rated(1 / 4)], full)
    assert row.perplexity == pytest.approx(4, abs=FLOAT64)
    assert row.gap == pytest.approx(4 - 2 ** (4 / 3), abs=FLOAT64)
    assert row.nats == pytest.approx(log(2) / 2, abs=FLOAT64)
    assert row.nats_low == pytest.approx(0, abs=FLOAT64)
    assert row.nats_high == pytest.approx(log(2), abs=FLOAT64)
    assert row.losses == pytest.approx((log(4), log(4)), abs=FLOAT64)
    assert _row("full", None, full[:1], full[:1]).nats_low is None


def test_the_full_cache_has_the_model_s_own_perplexity(loaded):
    model, tokenizer = loaded
    tokens = token_ids(tokenizer, TEXT)
    passages = cut_windows(tokens, 100, 20)
    found = measure_perplexity(model, passages, Reading(("h2o",), ("30%",), 16, "blocks", 2))
    losses = []
    for passage in passages:
        ids = torch.tensor([[*passage.prompt, *passage.rated]])
        with torch.no_grad():
            logprobs = model(ids).logits[0].log_softmax(dim=-1)
        losses += [-logprobs[n - 1, ids[0, n]].item() for n in range(20, 100)]
    full, small = found.rows
    assert full.perplexity == pytest.approx(np.exp(np.mean(losses)), rel=FLOAT32_LOGITS)
    assert full.gap == 0
    assert (found.passages, found.tokens) == (len(passages), 80 * len(passages))
    assert small.budget == 30
    assert small.entries == 30
    assert abs(small.gap) > 1000 * FLOAT32_LOGITS


@pytest.mark.parametrize("feed", ["steps", "blocks"])
def test_bytes_are_counted_with_scales_and_a_precision_alone_is_measured(loaded, feed):
    """Of 59 tokens read: 16 bits, or a byte each and two float32 scales per layer."""
    model, tokenizer = loaded
    passages = cut_windows(token_ids(tokenizer, TEXT), 60, 10, most=1)
    specs = ("h2o", "full@precision=fp8", "h2o@precision=fp8")
    full, h2o, coded, both = measure_perplexity(
        model, passages, Reading(specs, ("20",), 16, feed)
    ).rows
    config = model.config
    elements = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    scales = 2 * 4 * config.num_hidden_layers
    assert full.nbytes == 59 * elements * 2
    assert h2o.nbytes == 20 * elements * 2
    assert coded.nbytes == 59 * elements + scales
    assert both.nbytes == 20 * elements + scales
    assert coded.gap != 0 and coded.refusal is None


def test_a_method_that_only_looks_while_writing_needs_steps(loaded):
    model, tokenizer = loaded
    passages = cut_windows(token_ids(tokenizer, TEXT), 60, 10, most=1)
    spec = "lazy_eviction@window=4,threshold=0.05"
    refused = measure_perplexity(model, passages, Reading((spec,), ("20",), 16, "blocks")).rows[1]
    assert "nothing is evicted while 59 tokens are read in blocks of 16" in str(refused.refusal)
    assert refused.perplexity is None
    ran = measure_perplexity(model, passages, Reading((spec,), ("20",), 16, "steps")).rows[1]
    assert ran.refusal is None
    assert ran.gap != 0


def test_windows_cut_a_text_and_leave_the_rest_out():
    assert cut_windows([1, 2, 3, 4, 5, 6, 7], 3, 1) == [Passage([1], [2, 3]), Passage([4], [5, 6])]
    assert cut_windows([1, 2, 3, 4], 2, 1, most=1) == [Passage([1], [2])]
    with pytest.raises(ValueError, match="the text has 3 tokens, too few for window = 10"):
        cut_windows([1, 2, 3], 10, 1)


# --- the command ---------------------------------------------------------------------------------


def test_the_command_needs_no_text_for_the_embedded_model():
    arguments = ["perplexity", "--methods", "h2o caote:h2o", "--budgets", "80%", "--windows", "3"]
    found = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    full, h2o, caote = found["rows"]
    assert full["perplexity"] < 1.01
    assert caote["gap"] < h2o["gap"]
