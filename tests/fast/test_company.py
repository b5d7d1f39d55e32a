"""A row is what it is alone: whatever stands beside it, and however its batch is padded or cut."""

from dataclasses import dataclass, field
from itertools import product

import pytest
import torch
from hypothesis import assume, example, given, settings, strategies as st

from kvlab.fast import compress
from kvlab.reference.methods import base_name
from support.cases import CODED, GRANULAR, ONE_EACH, budget_of
from support.models import CHOICES, GREEDY, LAYERS, model_with_layers, tiny
from support.sampling import examples, sampled
from support.tables import listed

CLOSE = {"rtol": 0, "atol": 1e-6}
BUDGET = 16
"""Entries: two pages, and less than most texts."""


@dataclass
class Row:
    """A text that is read in company, and what was said after each of its tokens."""

    pieces: list[torch.Tensor] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)

    def grown(self, tokens: int, number: int) -> "Row":
        """Return the row with more tokens, of which no text has one twice."""
        first = sum(map(len, self.pieces))
        ids = CHOICES * (torch.arange(first, first + tokens) % 63) + number + first // 63
        return Row([*self.pieces, ids], [*self.logits])


def laid_out(rows, sides):
    """Return the rows' newest pieces in one batch, each with so much padding before and behind."""
    width = max(len(row.pieces[-1]) + sum(side) for row, side in zip(rows, sides, strict=True))
    ids, mask = torch.full((len(rows), width), 5), torch.zeros(len(rows), width, dtype=torch.long)
    for number, (row, (_, behind)) in enumerate(zip(rows, sides, strict=True)):
        last = width - behind
        ids[number, last - len(row.pieces[-1]) : last] = row.pieces[-1]
        mask[number, last - len(row.pieces[-1]) : last] = 1
    return ids, mask


def in_company(model, cache, calls):
    """Read calls of the model; before each of them rows are reordered, repeated and left out."""
    rows, mask = [Row() for _ in calls[0][0]], torch.zeros(len(calls[0][0]), 0).long()
    for order, lengths, sides in calls:
        if rows[0].pieces:
            cache.batch_select_indices(torch.tensor(order))
        mask = mask[order]
        rows = [
            rows[i].grown(n, place) for place, (i, n) in enumerate(zip(order, lengths, strict=True))
        ]
        ids, new = laid_out(rows, sides)
        mask = torch.cat([mask, new], dim=1)
        with torch.no_grad():
            logits = model(ids, attention_mask=mask, past_key_values=cache).logits
        for row, own, there in zip(rows, logits, new.bool(), strict=True):
            row.logits.append(own[there])
    return rows


def entries_of(cache, row):
    return [[head[head >= 0].tolist() for head in layer[row]] for layer in cache.positions()]


def check_company(model, spec, calls, block_size, number):
    how = {"budget": budget_of(spec, BUDGET), "block_size": block_size, "watch": lambda *_: None}
    try:
        with compress(model, spec, **how) as cache:
            rows = in_company(model, cache, calls)
            number %= len(rows)
            kept, sure = entries_of(cache, number), cache.confidence[number]
    except ValueError as error:  # a method protects more of a prompt than the budget holds
        assume("protected" not in str(error))
        raise
    with compress(model, spec, **how) as cache, torch.no_grad():
        pieces = rows[number].pieces
        alone = [model(ids[None], past_key_values=cache).logits[0] for ids in pieces]
        own = cache.confidence[0]
    torch.testing.assert_close(torch.cat(rows[number].logits), torch.cat(alone), **CLOSE)
    assert kept == entries_of(cache, 0)
    torch.testing.assert_close(sure[: len(own)], own, **CLOSE, equal_nan=True)


@st.composite
def batches(draw):
    """Up to four calls, each of up to four rows of the call before, with padding on both sides."""
    count, calls = draw(st.integers(1, 4)), []
    for number in range(draw(st.integers(1, 4))):
        order = list(range(count))
        if number:
            order = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=4))
        count = len(order)
        lengths = draw(st.lists(st.integers(1, 24), min_size=count, max_size=count))
        sides = st.tuples(st.integers(0, 5), st.integers(0, 5))
        if draw(st.booleans()):  # single tokens, without padding
            lengths, sides = [1] * count, st.just((0, 0))
        calls.append((order, lengths, draw(st.lists(sides, min_size=count, max_size=count))))
    return calls


ON_THE_LEFT = (0, 0)
FIRST = [([0, 1, 2], [23, 24, 7], [ON_THE_LEFT] * 3)]
"""Beside a text that is one token longer, and one that has a single block."""
TURNS = listed(__file__, "later_texts")
"""Later texts in which rows have unequally many blocks."""
WAITS = listed(__file__, "waiting")
"""A text whose row has no token in blocks of another's later text."""
SPECS = (*ONE_EACH, *CODED, *GRANULAR)
SHARED, BESIDE = LAYERS
QUICK = [
    ("tova", BESIDE),
    *[(spec, SHARED) for spec in ONE_EACH if base_name(spec) in ("nacl", "lazy_eviction")],
    *[(spec, BESIDE) for spec in ONE_EACH if base_name(spec) == "desirekv"],
]


@pytest.mark.parametrize(
    ("spec", "layers"), sampled([(spec, layers) for spec in SPECS for layers in LAYERS], QUICK)
)
@settings(max_examples=examples(20), deadline=None)
@given(calls=batches(), block_size=st.none() | st.integers(1, 9), number=st.integers(0, 3))
@example(calls=FIRST, block_size=6, number=0)
@example(calls=TURNS, block_size=6, number=0)
@example(calls=TURNS, block_size=1, number=0)
@example(calls=WAITS, block_size=4, number=0)
def test_a_row_is_what_it_is_alone(spec, layers, calls, block_size, number):
    check_company(model_with_layers(layers), spec, calls, block_size, number)


SIDES = {"before": (3, 0), "behind": (0, 3), "both": (2, 5)}


@pytest.mark.parametrize(
    ("side", "block_size"), sampled(product(SIDES, (None, 4)), [("both", None), ("behind", 4)])
)
def test_generate_continues_each_text_as_alone_wherever_it_is_padded(side, block_size):
    model = tiny("gemma3")
    rows = [Row([torch.arange(5 + number, 5 + number + n)]) for number, n in enumerate((21, 9, 14))]
    ids, mask = laid_out(rows, [SIDES[side], (0, 0), SIDES[side]])

    def wrote(**inputs):
        with compress(model, "h2o", 12, block_size=block_size) as cache:
            options = {"max_new_tokens": 7, **GREEDY}
            return model.generate(**inputs, past_key_values=cache, **options)

    together = wrote(input_ids=ids, attention_mask=mask)
    for number, row in enumerate(rows):
        alone = wrote(input_ids=row.pieces[0][None])
        assert together.sequences[number, -7:].equal(alone.sequences[0, -7:])
        for found, expected in zip(together.logits, alone.logits, strict=True):
            torch.testing.assert_close(found[number], expected[0], **CLOSE)


@pytest.mark.parametrize("keep", [0, 1, 4, 30])
def test_the_last_logits_are_those_of_the_last_columns(keep):
    """Of a column of padding those of the token before it, and none where there is no token."""
    model = tiny("llama")
    rows = [Row([torch.arange(5, 5 + n)]) for n in (21, 2)]
    ids, mask = laid_out(rows, [(0, 3), (0, 5)])
    found = []
    for more in ({}, {"logits_to_keep": keep}):
        with compress(model, "full", block_size=5) as cache, torch.no_grad():
            found.append(model(ids, attention_mask=mask, past_key_values=cache, **more).logits)
    whole, last = found
    torch.testing.assert_close(last, whole[:, -keep:], **CLOSE)
    before = int(mask[1].nonzero()[-1])
    assert not whole[1, : before - 1].any()
    assert whole[1, before + 1 :].equal(whole[1, before].expand(5, -1))


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"labels": torch.ones(1, 9).long()}, "labels"),
        ({"output_hidden_states": True}, "output_hidden_states = True"),
        ({"logits_to_keep": torch.tensor([2])}, "logits_to_keep"),
    ],
)
def test_what_has_places_of_its_own_is_refused_with_padding_behind_a_token(more, name):
    model, mask = tiny("llama"), torch.tensor([[1] * 7 + [0, 0]])
    message = f"^{name} .*with padding behind a token: pad on the left$"
    with compress(model, "full") as cache, pytest.raises(ValueError, match=message):
        model(torch.ones(1, 9).long(), attention_mask=mask, past_key_values=cache, **more)
    assert cache.get_seq_length() == 0
