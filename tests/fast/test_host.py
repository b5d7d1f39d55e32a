"""Parts without a twin run on the host, and agree with the reference as twins do."""

import logging
from dataclasses import dataclass, fields, replace
from itertools import product

import numpy as np
import pytest
import torch

from kvlab.fast import compress
from kvlab.fast.engine import host, port
from kvlab.fast.engine.layers import Layers
from kvlab.fast.engine.step import attend, begin
from kvlab.reference import methods
from kvlab.reference.cache import Column
from kvlab.reference.methods.caote import Caote, EvictionError
from kvlab.reference.methods.h2o import H2O
from kvlab.reference.observation import NO_ATTENTION, Needs
from kvlab.reference.policy import Edges, Entries, EveryBlock, Full as FullPrecision, Policy, Score
from support.models import prompts, tiny, written
from support.outside import methods_named, write_files
from support.replay import DTYPES, HEADS, Comparison, random_blocks
from support.sampling import diagonal, sampled

BUDGET = 12


@dataclass(frozen=True)
class Fading(Score):
    """Attention that fades, weighted by how long queries are, a draw, and the entry's age.

    It remembers a number and a count of every entry, and of the stream a mean and a count.
    """

    keep: float = 0.9

    columns = {"faded": Column("attention", start=0.25), "age": Column("blocks", integer=True)}

    def observe(self, state, seen):
        received = seen.attention.mean(axis=1).sum(axis=1)
        length = np.linalg.norm(seen.queries, axis=-1).mean()
        usual = 0.5 * (state.stream.get("usual", length) + length)
        faded = self.keep * state.entries["faded"] + np.tanh(length / usual) * received
        state = state.with_entries(faded=faded, age=state.entries["age"] + 1)
        return state.with_stream(usual=usual, blocks=state.stream.get("blocks", 0) + 1)

    def score(self, state, seen, candidates, room):
        drawn = self.drawn(seen)["drawn"] * state.stream["blocks"] / 100
        return state.entries["faded"] / (1 + state.entries["age"]) + drawn

    def drawn(self, seen):
        rng = np.random.default_rng([7, seen.layer, seen.clock.seen])
        return {"drawn": rng.random(seen.positions.shape)}

    def retention(self, state, seen, candidates):
        return seen.attention[:, :, -1] + state.entries["faded"][:, None]


@dataclass(frozen=True)
class NewestRow(Score):
    needs = Needs(rows="last")

    def score(self, state, seen, candidates, room):
        return seen.attention[:, :, -1].max(axis=1)


@dataclass(frozen=True)
class ShortKeys(Score):
    """Keys that are short; nothing of attention."""

    needs = NO_ATTENTION

    def score(self, state, seen, candidates, room):
        return 1 / np.linalg.norm(seen.keys, axis=-1)


@dataclass(frozen=True)
class TurnedBack(Score):
    """The first channel of keys before their rotation."""

    needs = Needs(rows="none", rotary=True)

    def score(self, state, seen, candidates, room):
        return seen.rotate(seen.keys, -seen.positions)[..., 0]


@dataclass(frozen=True)
class OddPositions(Edges):
    """Besides the edges, the first odd positions."""

    def protected(self, seen):
        return super().protected(seen) | ((seen.positions % 2 == 1) & (seen.positions < 6))

    def count(self, prompt):
        return super().count(prompt) + 3


@dataclass(frozen=True)
class Growing(Entries):
    """One entry more for every twenty tokens."""

    def room(self, seen, protected):
        return super().room(seen, protected) + seen.clock.seen // 20


RECENT, TWELVE = Edges(recent=3), Entries(BUDGET)


def policy(score, protect=RECENT, budget=TWELVE, every=1, **options):
    name = type(score).__name__
    return Policy(name, score, EveryBlock(every), protect, budget, FullPrecision(), **options)


def around(score, several="independent"):
    return EvictionError(score, Caote(H2O(), several=several))


POLICIES = {
    "own state": policy(Fading()),
    "lagged": policy(Fading(), every=5),
    "CAOTE": policy(around(Fading())),
    "CAOTE in turn": policy(around(Fading(), "sequential"), every=4),
    "evict, then attend": policy(Fading(), evict_before_attend=True),
    "newest row": policy(NewestRow()),
    "no attention": policy(ShortKeys()),
    "rotary": policy(TurnedBack()),
    "protection": policy(Fading(), OddPositions(sinks=1, recent=3)),
    "budget": policy(Fading(), budget=Growing(BUDGET)),
    "twin of the score alone": policy(methods.get("h2o", 8).score, OddPositions(), Growing(BUDGET)),
}


KINDS = (("gqa", "float32"), ("mha", "bfloat16"), ("mqa", "float64"))


@pytest.mark.parametrize(("name", "kind"), diagonal(list(POLICIES), KINDS))
def test_streams_agree_with_the_reference(name, kind):
    heads, dtype = kind
    number_format, tolerance = DTYPES[dtype]
    comparison = Comparison(POLICIES[name], tolerance)
    for block in random_blocks(3, HEADS[heads], [20, 13], 24, 7, number_format):
        comparison.feed(block)
    assert comparison.found.evictions > 10


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("prompt", [5, 20])
def test_layers_may_have_budgets_of_their_own(fast, prompt, tmp_path):
    """Layers share a cache until their counts differ: a short prompt fits into all budgets."""
    with methods_named(*write_files(tmp_path)[0 if fast else 1 :]):
        comparison = Comparison(methods.get("pyramid@recent=2", BUDGET), DTYPES["float64"][1], 3)
        shared = set()
        for blocks in random_blocks(3, HEADS["gqa"], [prompt, 3], 24, 7, torch.float64, layers=3):
            comparison.feed(blocks)
            shared.add(comparison.layers.shared)
    assert comparison.layers.kept == [(18, 18), (12, 12), (6, 6)]
    assert shared == ({True, False} if fast and prompt == 5 else {False})
    assert not comparison.layers.shared


# --- methods with twins, run without them --------------------------------------------------------


def without_twins(part):
    """The same part of a policy under a class that has no twin; CAOTE keeps its own."""
    if isinstance(part, EvictionError):
        return replace(part, inner=without_twins(part.inner))
    kind = type(part)
    alone = type(f"{kind.__name__}OnHost", (kind,), {})
    return alone(**{f.name: getattr(part, f.name) for f in fields(part)})


SPECS = (
    "h2o@every=4",
    "tova",
    "snapkv@window=3,schedule=every_block",
    "raas@pin_prompt=false,threshold=0.05",
    "lazy_eviction@window=4,threshold=0.05",
    "nacl",
    "caote:h2o",
)


@pytest.mark.parametrize(
    ("spec", "beams"),
    sampled(product(SPECS, [1, 3]), [("h2o@every=4", 1), (SPECS[2], 3), ("caote:h2o", 1)]),
)
def test_a_method_writes_the_same_with_and_without_twins(spec, beams):
    model, inputs, chosen = tiny("llama"), prompts([21, 13]), methods.get(spec, BUDGET)
    alone = replace(
        chosen,
        score=without_twins(chosen.score),
        protect=without_twins(chosen.protect),
        budget=without_twins(chosen.budget),
    )
    options = {"num_beams": beams, "num_return_sequences": beams}
    if beams > 1:
        options["return_dict_in_generate"] = True
    found = []
    for each in (alone, chosen):
        with compress(model, each, block_size=6) as cache:
            found.append((written(model, cache, inputs, 8, **options), cache.positions()))
            assert each is chosen or not cache.text.layers.shared
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-6)


def test_memory_counts_what_lies_on_the_host():
    model = tiny("llama")
    remembered = policy(without_twins(methods.get("snapkv@window=3", 8).score))
    with compress(model, remembered) as cache:
        written(model, cache, prompts([9]), 4)
        states = cache.text.layers.caches[0].state.stream[host.STREAM]
        queries = sum(x.nbytes for state in states for x in state.values())
        columns = sum(cache.text.layers.caches[0].columns.nbytes.values())
        assert cache.memory().layers[0].total == columns + queries > columns


@pytest.mark.parametrize(
    ("declared", "known"),
    [
        (Needs(), [7, 7, 6, 1, 1]),
        (Needs(rows="last"), [1, 1, 1, 1, 1]),
        (Needs(prompt=False), [0, 0, 0, 1, 1]),
        (NO_ATTENTION, [0, 0, 0, 0, 0]),
    ],
)
def test_rows_that_a_score_does_not_declare_are_nan(declared, known):
    """So a wrong declaration ends in scores that are NaN, and not in wrong ones."""
    rows = []

    @dataclass(frozen=True)
    class Spy(ShortKeys):
        needs = declared

        def observe(self, state, seen):
            assert seen.attention.shape[2:] == (seen.clock.block, seen.positions.shape[1])
            some = ~np.isnan(seen.attention)
            assert (some.any(axis=-1) == some.all(axis=-1)).all()
            rows.append(int(some.all(axis=(0, 1, 3)).sum()))
            return state

    spied = Layers(port.port(policy(Spy())), 1)
    for (block,) in random_blocks(3, HEADS["gqa"], [20], 2, 7, torch.float32):
        begin(spied, block.clock)
        attend(spied, 0, block)
    assert rows == known


# --- what is said, and what is refused -----------------------------------------------------------


def test_a_part_on_the_host_is_said_once(caplog, monkeypatch):
    monkeypatch.setattr(host, "_named", set())
    with caplog.at_level(logging.WARNING, "kvlab"):
        for _ in range(2):
            port.port(POLICIES["own state"])
        port.port(POLICIES["budget"])
        port.port(methods.get("h2o", 8))
    said = [record.getMessage() for record in caplog.records]
    assert [text.partition(" has no PyTorch")[0] for text in said] == ["Fading", "Growing"]
    assert "slow" in said[0]


def test_a_precision_without_a_twin_is_refused_with_what_to_write():
    class Rounded(FullPrecision):
        pass

    unheard = replace(methods.get("h2o", 8), precision=Rounded())
    with pytest.raises(ValueError, match=r"Rounded has no PyTorch .* @twin_of\(Rounded\)"):
        port.port(unheard)


@dataclass(frozen=True)
class Constant(ShortKeys):
    worth: float

    def score(self, state, seen, candidates, room):
        return np.full(seen.positions.shape, self.worth)


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (Constant(np.nan), "Constant gave one in layer 0"),
        (around(Constant(-1.0)), "Constant gave a negative one"),
    ],
)
def test_numbers_that_cannot_be_are_refused_by_name(score, message):
    model, refused = tiny("llama"), pytest.raises(ValueError, match=message)
    with compress(model, policy(score)) as cache, refused:
        written(model, cache, prompts([20]), 3)
