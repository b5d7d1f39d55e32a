"""What the design promises of every method, as properties over random streams."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from kvlab.reference import invariants as promised, methods
from kvlab.reference.observation import Observation
from kvlab.reference.policy import Entries, Precision, Score
from kvlab.reference.streams import Source, random_stream, run_stream
from support.build import run, stream
from support.cases import ALL, BUDGETED, CODED, GRANULAR, ONE_EACH, RANDOM, SELF_SIZED
from support.sampling import examples, sampled

CODED_AND_BUDGETED = tuple(spec for spec in CODED if methods.takes_budget(spec))
PLAIN = BUDGETED + SELF_SIZED + GRANULAR
"""Methods that read what came, uncoded."""

HELD = {
    "output is dense attention the evicted masked": PLAIN,
    "keep sets are ascending and entries keep their positions": ALL + GRANULAR + CODED_AND_BUDGETED,
    "due steps keep at most the budget": BUDGETED,  # pages round it: see `test_granularity`
    "a budget of the whole text evicts nothing": BUDGETED + GRANULAR + CODED_AND_BUDGETED,
    "heads may be reordered": tuple(
        spec for spec in PLAIN + CODED_AND_BUDGETED if spec not in RANDOM
    ),
    "failed steps change nothing": ALL + GRANULAR + CODED_AND_BUDGETED,
}
"""Who keeps each promise."""
QUICK = (*ONE_EACH, *GRANULAR[:2], CODED_AND_BUDGETED[0])


def make(spec: str):
    """How the promises build the policy; methods of their own size take no budget."""
    if not methods.takes_budget(spec):
        return lambda budget: methods.get(spec)
    if spec in GRANULAR + CODED:
        return lambda budget: methods.get(spec, max(16, -(-budget // 4) * 4))
    return lambda budget: methods.get(spec, budget)


@pytest.mark.parametrize("spec", [spec for spec in ALL if make(spec)(12).score.needs.queries])
def test_a_score_reads_no_other_queries_of_a_prompt_than_the_last_that_it_states(spec):
    policy, drawn = make(spec)(12), random_stream(Source(spec))
    queries = drawn.queries.copy()
    queries[:, :, : drawn.prompt - (policy.score.needs.queries or 0)] *= -1
    runs = [run_stream(policy, each) for each in (drawn, replace(drawn, queries=queries))]
    for one, other in zip(*runs, strict=True):
        assert np.array_equal(one.cache.positions, other.cache.positions)


@pytest.mark.parametrize("spec", sampled(dict.fromkeys(chain(*HELD.values())), QUICK))
@settings(max_examples=examples(20), deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3), st.sampled_from([4, 8])),
    seed=st.integers(0, 2**32 - 1),
    prompt=st.integers(0, 20),
    block=st.sampled_from([None, 1, 4, 7]),
    budget=st.integers(6, 18),
)
def test_promises_hold(spec, shape, seed, prompt, block, budget):
    """Promises that read the same run of the stream share it."""
    drawn = random_stream(Source("invariants", seed), *shape, prompt, 16, block)
    runs = {}

    def once(policy, stream):
        key = policy, stream is drawn
        if key not in runs or stream is not drawn:
            runs[key] = [*run_stream(policy, stream)]
        return runs[key]

    with patch.object(promised, "run_stream", once):
        for promise in [promise for promise, specs in HELD.items() if spec in specs]:
            assert not promised.PROMISES[promise](make(spec), budget, drawn), promise


@pytest.mark.parametrize("spec", BUDGETED + SELF_SIZED)
def test_the_streams_of_these_tests_do_evict_whenever_it_is_due(spec):
    policy, data = make(spec)(9), stream(np.random.default_rng(0), 2, 2, 4, 30)
    results = run(policy, *data, prompt=14)
    assert (results[-1].seen.positions.shape[1] < 30) == (spec != SELF_SIZED[0])
    for result in results:
        assert (result.keep is not None) == policy.schedule.due(result.seen.clock)


def test_results_do_not_share_memory_with_their_past():
    queries, keys, values = stream(np.random.default_rng(8), 1, 1, 4, 20)
    for before, after in pairwise(run(methods.get("h2o", 6), queries, keys, values, 4)):
        assert not np.shares_memory(
            before.cache.state.entries["accumulated"], after.cache.state.entries["accumulated"]
        )


# --- the promises can be broken ------------------------------------------------------------------


@dataclass(frozen=True)
class Broken(Score):
    """TOVA's score with a mistake."""

    mistake: Callable[[np.ndarray, Observation], np.ndarray]

    def score(self, state, seen, candidates, room):
        return self.mistake(seen.attention[:, :, -1].mean(axis=1), seen)


@dataclass(frozen=True)
class OneMore(Entries):
    def room(self, seen, protected):
        return super().room(seen, protected) + 1


class Ahead(Precision):
    """Keeps an entry twice and forgets the last."""

    def store(self, cache, seen, keep):
        return cache, np.concatenate([keep[:, :1], keep[:, :-1]], axis=1)


def tova(**changes):
    return lambda budget: replace(methods.get("tova", budget), **changes)


def one_more(budget):
    return replace(methods.get("tova", budget), budget=OneMore(budget))


def leaves_early(budget):
    return methods.get("tova", min(budget, 20))


class Loud(Score):
    """Needs finite values nowhere, and forgets to refuse them."""

    def score(self, state, seen, candidates, room):
        raise KeyError("nothing")


BROKEN = {
    "output is dense attention the evicted masked": tova(evict_before_attend=True),
    "keep sets are ascending and entries keep their positions": tova(precision=Ahead()),
    "due steps keep at most the budget": one_more,
    "a budget of the whole text evicts nothing": leaves_early,
    "heads may be reordered": tova(
        score=Broken(lambda x, seen: x * (1 + np.arange(len(x))[:, None] * seen.positions))
    ),
    "failed steps change nothing": tova(score=Loud()),
}


@pytest.mark.parametrize("promise", promised.PROMISES)
def test_every_promise_can_be_broken(promise):
    found = promised.check_promises(BROKEN[promise], streams=9)
    assert [each.objection for each in found if each.promise == promise] != [""]


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="streams = 0 must be at least 1"):
        promised.check_promises(tova(), streams=0)
