"""Rows of a batch are reordered, repeated, left out, copied, saved: each goes on as if alone."""

import pytest
import torch
from cases import BUDGETED, CODED, GRANULAR, ONE_EACH
from models import SHAPE, built, prompts, tiny
from sampling import diagonal
from transformers import LlamaConfig

from kvlab.fast import compress
from kvlab.fast.kernels.vector_tables import partners_of

BUDGET = 12
LENGTHS = (21, 13, 17)
CHOICES = 16
"""Different tokens in a column of the batch."""
USE = (
    *("block", "token", "token", "reorder", "token", "token", "select", "token", "repeat"),
    *("token", "token", "copy", "token", "block", "token", "select", "save", "token", "token"),
    *("reorder", "copy", "block", "token", "token", "token", "save", "block", "token"),
)
"""Calls with a block of four tokens or with a single token, and what is done in between."""
ORDERS = {"reorder": (2, 1, 1), "select": (3, 0, 2), "repeat": (0, 0, 1, 1, 2, 2)}
CASES = (*ONE_EACH, *CODED, *GRANULAR[:2], "h2o@every=9,recent=4")
"""Every method, every code, and tokens that wait to be observed."""


def budget_of(spec: str) -> int | None:
    budgeted = spec in (*BUDGETED, *CODED, *GRANULAR) or spec.startswith("h2o")
    return BUDGET if budgeted and not spec.startswith("full") else None


def fed(model, cache, calls):
    """Call a model without gradients; return the logits of the last token."""
    with torch.no_grad():
        return [model(**call, past_key_values=cache).logits[:, -1] for call in calls][-1]


def used(model, cache, path):
    """Use a cache as ``USE`` says; return every row's calls, and the last logits."""
    random = torch.Generator().manual_seed(5)

    def text(N: int, new: int, held: int = 0):
        """Return tokens of which no row has one twice: its values would be exactly equal."""
        columns = torch.arange(held, held + new) + 1
        return CHOICES * columns + torch.randint(CHOICES, (N, new), generator=random)

    mask = prompts(LENGTHS)["attention_mask"]
    first = text(*mask.shape)
    logits = fed(model, cache, [{"input_ids": first * mask, "attention_mask": mask}])
    rows = [[ids[-n:]] for ids, n in zip(first, LENGTHS, strict=True)]

    def call(new: int) -> None:
        nonlocal logits
        ids = text(len(rows), new, cache.get_seq_length())
        logits = fed(model, cache, [{"input_ids": ids}])
        for row, own in zip(rows, ids, strict=True):
            row.append(own)

    for step in USE:
        order = [i for i in ORDERS.get(step, ()) if i < len(rows)]
        if step in ("block", "token"):
            call(4 if step == "block" else 1)
        elif step == "copy":
            left, cache = cache, cache.copy()
            fed(model, left, [{"input_ids": torch.full((len(rows), n), 7)} for n in (1, 3, 1)])
        elif step == "save":
            cache.save(path)
            fed(model, cache, [{"input_ids": torch.full((len(rows), n), 7)} for n in (1, 3, 1)])
            cache.load(path)
        elif step == "repeat":
            cache.batch_repeat_interleave(2)
        elif step == "select":
            cache.batch_select_indices(torch.tensor(order))
        else:
            cache.reorder_cache(torch.tensor(order))
        rows = [list(rows[i]) for i in order] or rows
    return rows, logits, cache


@pytest.mark.parametrize(("spec", "layers"), diagonal(CASES, [3, 1]))
def test_a_row_goes_on_as_if_alone_whatever_is_done_to_the_batch(spec, layers, tmp_path):
    shape = {**SHAPE, "num_hidden_layers": layers, "vocab_size": 64 * CHOICES}
    model = built(LlamaConfig(**shape), torch.float64)
    with compress(model, spec, budget_of(spec), watch=lambda *_: None) as cache:
        rows, logits, cache = used(model, cache, tmp_path / "context")
        kept, confidence = cache.positions(), cache.confidence
    assert len(rows) == 3
    for number, row in enumerate(rows):
        with compress(model, spec, budget_of(spec), watch=lambda *_: None) as cache:
            alone = fed(model, cache, [{"input_ids": ids[None]} for ids in row])
        torch.testing.assert_close(logits[number], alone[0], rtol=0, atol=1e-6)
        sure = confidence[number, : cache.confidence.shape[1]]
        torch.testing.assert_close(sure, cache.confidence[0], equal_nan=True)
        for together, own in zip(kept, cache.positions(), strict=True):
            entries = together[number][together[number] >= 0].view(len(own[0]), -1)
            torch.testing.assert_close(entries, own[0])


def test_a_copy_knows_where_its_own_values_lie():
    """Of every row of its keys' tables, which change as often as those of the original."""
    model, spec = tiny("llama"), "desirekv@interval=6,selector=3,group=4"
    with compress(model, spec, watch=lambda *_: None) as cache:
        fed(model, cache, [prompts([21, 17])])
        for number, held in enumerate((cache, cache.copy())):
            tokens = prompts([14, 14], seed=number)["input_ids"]
            fed(model, held, [{"input_ids": tokens[:, i : i + 1]} for i in range(14)])
            for entries in held.compressed.caches:
                keys, values, found = entries.tables()
                assert len(keys) > 1
                torch.testing.assert_close(found, partners_of(keys, values, len(entries)))
