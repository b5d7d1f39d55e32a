"""Rows of a batch are reordered, repeated, left out, copied, saved: each goes on as if alone."""

import functools
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvlab.fast import compress
from kvlab.fast.engine.columns import Columns
from kvlab.fast.huggingface import CompressedCache
from kvlab.fast.huggingface.padding import WindowLayer
from kvlab.fast.kernels.vector_tables import partners_of
from kvlab.fast.methods import port
from kvlab.reference import methods
from kvlab.reference.cache import Column
from support.cases import CODED, GRANULAR, ONE_EACH, budget_of
from support.models import CHOICES, LAYERS, model_with_layers, prompts, tiny, written
from support.sampling import diagonal, sampled

LENGTHS = (21, 13, 17)
USE = (
    *("block", "token", "token", "reorder", "token", "token", "repeat", "token", "select"),
    *("token", "token", "copy", "token", "block", "token", "reorder", "save", "token", "token"),
    *("copy", "block", "token", "token", "token", "save", "block", "token"),
)
"""Calls with a block of four tokens or with a single token, and what is done in between."""
MOVES = {
    "reorder": (lambda cache: cache.reorder_cache(torch.tensor([2, 1, 1])), (2, 1, 1)),
    "repeat": (lambda cache: cache.batch_repeat_interleave(2), (0, 0, 1, 1, 2, 2)),
    "select": (lambda cache: cache.batch_select_indices(torch.tensor([3, 0, 2])), (3, 0, 2)),
}
"""What is done to the rows of a cache, and which they are afterwards."""
CASES = (*ONE_EACH, *CODED, *GRANULAR[:2], "h2o@every=9,recent=4")
"""Every method, every code, and tokens that wait to be observed."""


def fed(model, cache, input_ids, **given):
    with torch.no_grad():
        return model(input_ids, past_key_values=cache, **given).logits[:, -1]


class Batch:
    """A cache, and what each of its rows was given, call by call."""

    def __init__(self, model, cache):
        self.model, self.cache = model, cache
        self.left: list[CompressedCache] = []
        self.random = torch.Generator().manual_seed(5)
        mask = prompts(LENGTHS)["attention_mask"]
        ids = self.text(*mask.shape)
        self.rows = [[own[-n:]] for own, n in zip(ids, LENGTHS, strict=True)]
        self.logits = fed(model, cache, ids * mask, attention_mask=mask)

    def text(self, N, new):
        """Return tokens of which no row has one twice: its values would be exactly equal."""
        held = self.cache.get_seq_length()
        columns = torch.arange(held, held + new) + 1
        return CHOICES * columns + torch.randint(CHOICES, (N, new), generator=self.random)

    def call(self, new):
        ids = self.text(len(self.rows), new)
        self.logits = fed(self.model, self.cache, ids)
        for row, own in zip(self.rows, ids, strict=True):
            row.append(own)

    def move(self, change, order):
        change(self.cache)
        self.rows = [list(self.rows[i]) for i in order]

    def copy(self):
        self.left.append(self.cache)
        self.cache = self.cache.copy()
        self.leave(self.left[-1], 7)

    def save(self, path):
        self.cache.save(path)
        self.leave(self.cache, 7)
        self.cache.load(path)

    def leave(self, cache, fill):
        for n in (1, 3, 1):
            fed(self.model, cache, torch.full((len(cache.clocks), n), fill))


def used(batch, path):
    steps = {
        "token": lambda: batch.call(1),
        "block": lambda: batch.call(4),
        "copy": batch.copy,
        "save": lambda: batch.save(path),
        **{name: functools.partial(batch.move, *how) for name, how in MOVES.items()},
    }
    for step in USE:
        steps[step]()
    for left in batch.left:
        batch.leave(left, 9)


MOVED = (0, 2)
"""Rows that are in other places than before the last move."""
QUICK = [(spec, [*LAYERS][i % 2], MOVED[i // 2 % 2]) for i, spec in enumerate(CASES[::4])]


@pytest.mark.parametrize(
    ("spec", "layers", "number"), sampled(product(CASES, LAYERS, MOVED), QUICK)
)
def test_a_row_goes_on_as_if_alone_whatever_is_done_to_the_batch(spec, layers, number, tmp_path):
    model = model_with_layers(layers)
    with compress(model, spec, budget_of(spec), watch=lambda *_: None) as cache:
        batch = Batch(model, cache)
        used(batch, tmp_path / "context")
        kept, confidence = batch.cache.positions(), batch.cache.confidence
    assert len(batch.rows) == 3
    with compress(model, spec, budget_of(spec), watch=lambda *_: None) as cache:
        alone = [fed(model, cache, ids[None]) for ids in batch.rows[number]][-1]
    torch.testing.assert_close(batch.logits[number], alone[0], rtol=0, atol=1e-6)
    sure = confidence[number, : cache.confidence.shape[1]]
    torch.testing.assert_close(sure, cache.confidence[0], equal_nan=True)
    for together, own in zip(kept, cache.positions(), strict=True):
        entries = together[number][together[number] >= 0].view(len(own[0]), -1)
        torch.testing.assert_close(entries, own[0])


# --- every attribute ---

SHORT = (21, 5, 17)
"""The second text is below the budget: it has other counts, and has lost no entry."""
OF_TRANSFORMERS = {
    WindowLayer: (
        *("is_initialized", "sliding_window", "cumulative_length", "_sliding_window_tensor"),
        *("record_past", "dtype", "device"),
    )
}
"""Attributes that are the same for all rows, of classes that are not ours."""
KINDS_HERE = {
    "h2o@every=9,recent=4": {"StreamClock.first_evictions", "StreamClock.written"},
    "rkv@every=5,window=3": {"State.stream", "WindowLayer.keys"},
    "ddks@interval=6,selector=3,group=4,reading=mikv": {"Storage.balance"},
    "desirekv@interval=6,selector=3,group=4": {"StreamClock._confidence", "VectorTable.slots"},
    "lazy_eviction@window=4,precision=fp8": {"Storage.scale", "Coded.parts"},
}
"""Methods, and attributes that differ from row to row under each of them."""


FEWER = lambda cache: cache.batch_select_indices(torch.tensor([2, 0])), (2, 0)


def in_order(x, order, name):
    """Return the rows of a tensor or a tuple; a buffer has an axis of columns before them."""
    if isinstance(x, tuple):
        return tuple(x[row] for row in order)
    return x.index_select(int(name == "Columns.buffers"), torch.tensor(order))


def equal(x, y):
    if isinstance(x, torch.Tensor):
        return torch.equal(torch.nan_to_num(x.double()), torch.nan_to_num(y.double()))
    return x == y


def moved(before, after, order, name):
    """Compare all that is in an object, its rows in another order; return what differs by row."""
    alike = getattr(type(before), "ALIKE", OF_TRANSFORMERS.get(type(before)))
    if alike is not None:
        assert vars(before).keys() ^ vars(after).keys() <= {*alike}, name
        parts = {f"{type(before).__name__}.{x}": x for x in vars(before) if x not in alike}
        found = [(getattr(before, x), getattr(after, x), where) for where, x in parts.items()]
    elif isinstance(before, dict):
        assert before.keys() == after.keys(), name
        found = [(before[key], after[key], name) for key in before]
    elif isinstance(before, list) or (isinstance(before, tuple) and holds_parts(before)):
        found = [(x, y, name) for x, y in zip(before, after, strict=True)]
    elif before is None or isinstance(before, range):
        assert before == after, name
        return set()
    else:
        assert isinstance(before, torch.Tensor | tuple), f"{name} neither moves nor is alike"
        assert equal(in_order(before, order, name), after), name
        return set() if equal(in_order(before, [2, 1, 0], name), before) else {name}
    return set().union(*(moved(x, y, order, where) for x, y, where in found))


def holds_parts(x):
    return any(isinstance(part, torch.Tensor) or hasattr(type(part), "ALIKE") for part in x)


@pytest.mark.parametrize(("spec", "layers"), diagonal(list(KINDS_HERE), list(LAYERS)))
def test_every_attribute_moves_with_its_row_or_is_declared_alike(spec, layers, tmp_path):
    model = model_with_layers(layers)
    with (
        compress(model, spec, budget_of(spec), watch=lambda *_: None) as cache,
        torch.inference_mode(),
    ):
        written(model, cache, prompts(SHORT), 9)
        cache.text.rope_owner.rope_deltas = torch.tensor([[0], [3], [7]])
        cache.text.layers.separate()
        differ = moved(cache, cache.copy(), [0, 1, 2], "copy")
        for change, order in (MOVES["reorder"], MOVES["repeat"], FEWER):
            other = cache.copy()
            change(other)
            moved(cache, other, order, "move")
        cache.text.rope_owner.rope_deltas = None
        cache.save(tmp_path / "context")
        before = cache.copy()
        cache.load(tmp_path / "context")
        moved(before, cache, [0, 1, 2], "file")
    wanted = {x for x in KINDS_HERE[spec] if layers != "that share a cache" or "Window" not in x}
    assert wanted | {"Images.rope_deltas", "Columns.buffers", "StreamClock._fed"} <= differ


def test_a_copy_and_moved_rows_know_where_their_own_values_lie():
    """Of every row of its keys' tables, which change as often as those of the original."""
    model, spec = tiny("llama"), "desirekv@interval=6,selector=3,group=4"
    with compress(model, spec, watch=lambda *_: None) as cache:
        fed(model, cache, prompts([21, 17])["input_ids"])
        both = [(cache, 0), (cache.copy(), 1)]
        texts = [prompts([14, 14], seed=number)["input_ids"] for _, number in both]
        for i in range(14):
            for held, number in both:
                fed(model, held, texts[number][:, i : i + 1])
        for order in ([0, 1], [1, 0]):
            for held, _ in both:
                held.reorder_cache(torch.tensor(order))
                for entries in held.text.layers.caches:
                    tables = entries.tables()
                    assert tables is not None and len(tables[0]) > 1
                    found, expected = entries.partners(), partners_of(*tables, len(entries))
                    torch.testing.assert_close(found, expected)


def test_every_row_has_a_count_of_demoted_entries():
    model, given = tiny("llama"), prompts([25, 17])
    with compress(model, "ddks@interval=6,selector=3,group=4") as cache:
        fed(model, cache, **given)
        for token in prompts([9, 9])["input_ids"].T:
            fed(model, cache, token[:, None])
        cache.batch_repeat_interleave(2)
        assert cache.text.layers.caches[0].demoted == (5, 5, 5, 5)


def test_rows_behind_slots_that_were_given_back_begin_with_start_values():
    columns = Columns({"mark": Column(start=7, integer=True)})
    for rows in (10, 10):
        columns.append({"keys": torch.zeros((1, 1, rows, 4))}, torch.float32)
    columns["mark"].zero_()
    columns.trim()
    for rows in (1, 2):
        columns.append({"keys": torch.zeros((1, 1, rows, 4))}, torch.float32)
    assert columns["mark"].flatten().tolist() == [0] * 20 + [7] * 3


def test_padding_among_remembered_queries_takes_no_place():
    """Of the queries 1 to 4 the first row has the last two; the first that counts is a sink."""
    score: Any = port(methods.get("expected_attention@sinks=1,buffer=4,origin=buffer", 8)).score
    remembered = {
        "queries": torch.arange(1.0, 5).reshape(1, 1, 1, 4, 1).expand(2, 1, 1, 4, 2),
        "query_positions": torch.tensor([[-1, -1, 5, 6], [3, 4, 5, 6]]),
    }
    seen = SimpleNamespace(
        clock=SimpleNamespace(prefilling=False, seen=torch.tensor([[[7]], [[7]]])),
        rotate=lambda vectors, by: vectors,
    )
    state = SimpleNamespace(stream=remembered)
    mean, _, first = score.queries_to_come(state, seen)
    assert mean[..., 0].flatten().tolist() == [4, 3]
    assert first.flatten().tolist() == [2, 4]
