"""One text in several calls: read once and asked later, pieces of a prompt, turns of a chat."""

from collections import Counter
from itertools import cycle, product

import pytest
import torch

from kvlab.fast import compress
from kvlab.fast.huggingface.stream_clock import AHEAD
from kvlab.reference import methods
from support.cases import BUDGETED, KINDS, ONE_EACH, QUANTIZING, SELF_SIZED, budget_of
from support.growing_text import Text, used
from support.models import GREEDY, prompts, tiny
from support.replay import Comparison, Tolerance
from support.sampling import diagonal, sampled
from support.tables import listed
from support.tolerances import FLOAT64

BUDGET = 12
USES = listed(__file__, "uses")
"""Steps: the model is called with new tokens, or `generate` with all or with new ones, and writes.

The numbers are how many tokens are new, and how many are written.
"""
SHORTER = {"one": (0,), "batch": (0, 0), "padded": (0, 5)}
"""Tokens that the first call of each sequence is shorter than the longest."""


def stock(model, text: Text) -> torch.Tensor:
    """Return the logits of the model without a cache, which reads the whole text at once."""
    positions = (text.mask.cumsum(dim=1) - 1).clamp(min=0)
    return model(text.ids, attention_mask=text.mask, position_ids=positions).logits


@torch.no_grad()
@pytest.mark.parametrize(
    ("spec", "use", "shorter"),
    diagonal([x for x in ONE_EACH if x in ("full", *BUDGETED)], list(USES), list(SHORTER)),
)
def test_a_cache_that_holds_the_text_says_what_one_whole_call_says(spec, use, shorter):
    model = tiny("llama")
    with compress(model, spec, budget_of(spec, 64), 4, watch=lambda *_: None) as cache:
        text = used(model, cache, USES[use], SHORTER[shorter])
        confidence, length = cache.confidence.double(), cache.get_seq_length()
    expected = stock(model, text)
    found, real = torch.cat(text.logits, dim=1).double(), text.mask[:, text.columns].bool()
    torch.testing.assert_close(found[real], expected[:, text.columns][real], rtol=0, atol=1e-6)
    likeliest = expected.softmax(dim=-1).amax(dim=-1).roll(1, dims=1)
    known = torch.tensor(text.written)[:length]
    for row, skipped in enumerate(SHORTER[shorter]):
        wanted = likeliest[row, :length].masked_fill(~known, torch.nan)[skipped:]
        torch.testing.assert_close(
            confidence[row, : length - skipped], wanted, rtol=1e-5, atol=0, equal_nan=True
        )


@pytest.mark.parametrize(
    ("spec", "use", "shorter"),
    sampled(product(ONE_EACH, USES, SHORTER), [*zip(KINDS, cycle(USES), cycle(SHORTER))]),
)
def test_every_step_agrees_with_the_reference(spec, use, shorter):
    policy = methods.get(spec, budget_of(spec))
    comparison, clocks = Comparison(policy, Tolerance(FLOAT64, 1e-5)), Counter()

    def watch(block, result):
        clocks[block.clock.rows] += 1
        comparison.compare(block, result)

    with compress(tiny("llama"), policy, watch=watch) as cache:
        text = used(tiny("llama"), cache, USES[use], SHORTER[shorter])
    padding = torch.tensor(SHORTER[shorter])
    assert all(
        row.prompt == USES[use][0][1] - skipped
        for rows in clocks
        for row, skipped in zip(rows, padding.tolist(), strict=True)
    )
    assert max(rows[0].seen for rows in clocks) == text.columns[-1] + 1
    assert set(clocks.values()) == {len(cache.compressed_layers)}
    evicts = spec in (*BUDGETED, *SELF_SIZED) and spec != "full"
    assert comparison.found.evictions > 0 or not evicts
    assert comparison.found.coded > 0 or spec not in QUANTIZING


def test_a_token_that_generate_wrote_is_known_behind_padding():
    """It is the next token of its row, whichever column of the next call it stands in."""
    model, inputs = tiny("llama"), prompts([14, 14])
    with compress(model, "full", watch=lambda *_: None) as cache:
        result = model.generate(**inputs, past_key_values=cache, max_new_tokens=3, **GREEDY)
        held, last = cache.get_seq_length(), result.sequences[:, -1]
        new = torch.tensor([[last[0], 5, 6], [7, last[1], 5]])
        mask = torch.ones(2, held + 3, dtype=torch.long)
        mask[1, held] = 0
        model(new, attention_mask=mask, past_key_values=cache)
        sure = cache.confidence.double()
    expected = result.logits[-1].double().softmax(dim=-1).amax(dim=-1)
    torch.testing.assert_close(sure[:, held], expected, rtol=1e-5, atol=0)
    assert sure[:, held + 1 :].isnan().all()


def test_a_long_text_is_known_from_its_first_token_on():
    """Its buffer has grown since the prompt."""
    model = tiny("llama")
    with compress(model, "h2o", BUDGET) as cache:
        text = used(model, cache, (("whole", 14, AHEAD + 9),), (0,))
        for column in (0, 13, 20):
            other = text.ids.clone()
            other[0, column] += 1
            with pytest.raises(ValueError, match=f"another one from column {column} on"):
                model.generate(other, past_key_values=cache, max_new_tokens=1, **GREEDY)
        model.generate(text.ids, past_key_values=cache, max_new_tokens=1, **GREEDY)
