"""What is evicted together: pages and heads, by hand and on random streams."""

from itertools import product

import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.cache import State
from kvlab.reference.granularity import OfPages, OneForAllHeads, Pages, WholePages
from kvlab.reference.observation import NO_ATTENTION, Clock
from kvlab.reference.policy import Edges, Score
from kvlab.reference.step import Block, apply_together, empty_cache, look, step
from support.build import observation


class Given(Score):
    """Scores that a test hands over."""

    needs = NO_ATTENTION

    def __init__(self, scores) -> None:
        self.scores = np.array(scores, dtype=float)

    def score(self, state, seen, candidates, room):
        return self.scores


def scored(score: Score, candidates=None, heads: int = 1) -> list[list[float]]:
    """Rate eight entries, those at positions 0, 1, 4, 5, 6, 7, 8, 9 of ten tokens."""
    seen = eight_entries(heads)
    if candidates is None:
        candidates = np.ones(seen.positions.shape, dtype=bool)
    return score.score(State({}), seen, np.array(candidates), 4).tolist()


def eight_entries(heads: int = 1):
    positions = np.tile([0, 1, 4, 5, 6, 7, 8, 9], (heads, 1))
    return observation(np.full((heads, 1, 1, 8), 1 / 8), positions=positions, seen=10)


# --- by hand -------------------------------------------------------------------------------------


def test_a_page_is_worth_the_mean_or_the_maximum_of_its_entries():
    given_scores = Given([[4, 2, 1, 1, 1, 5, 0, 6]])
    assert scored(OfPages(given_scores, 4, "mean")) == [[3, 3, 2, 2, 2, 2, 3, 3]]
    assert scored(OfPages(given_scores, 4, "max")) == [[4, 4, 5, 5, 5, 5, 6, 6]]


def test_heads_decide_together_by_mean_or_in_turns():
    one, other = [8, 7, 6, 5, 4, 3, 2, 1], [1, 2, 3, 4, 8, 7, 6, 5]
    mean = scored(OneForAllHeads(Given([one, other]), "layer"), heads=2)
    assert mean == 2 * [[4.5, 4.5, 4.5, 4.5, 6, 5, 4, 3]]
    union = scored(OneForAllHeads(Given([one, other]), "union"), heads=2)
    assert union == 2 * [[0, -1, -2, -3, 0, -1, -2, -3]]


def test_layers_decide_together_by_the_mean_of_what_their_heads_decide():
    """Value norms 4 3 2 1 and 5 in one layer, 1 1 7 1 and 5 in the other: means 2.5 2 4.5 1, 5."""
    policy = methods.get("value_norm@kv_heads=model", 3)
    blocks = [
        Block(Clock(5, 5, 5), layer, *tensors(lengths), np.full(5, np.nan), layers=2)
        for layer, lengths in enumerate([[4, 3, 2, 1, 5], [1, 1, 7, 1, 5]])
    ]
    looked = [look(policy, empty_cache(policy, 1, 1), block) for block in blocks]
    assert [each.decision.keep.tolist() for each in looked] == [[[0, 1, 4]], [[2, 3, 4]]]
    together = apply_together(policy, looked)
    assert [each.cache.positions.tolist() for each in together] == 2 * [[[0, 2, 4]]]
    assert together[1].cache.values.vectors.tolist() == [[[1], [7], [5]]]
    with pytest.raises(ValueError, match="in all 2 layers together"):
        step(policy, empty_cache(policy, 1, 1), blocks[0])


def tensors(lengths):
    """Return queries and keys that are zero, and values of these lengths, for one head."""
    nothing = np.zeros((1, len(lengths), 1))
    return nothing[None], nothing, np.array(lengths, dtype=float).reshape(1, -1, 1)


def test_entries_that_are_safe_take_nobodys_turn():
    candidates = [[False, True, True, True, True, True, True, True]]
    (places,) = scored(OneForAllHeads(Given([[9, 7, 8, 1, 2, 3, 4, 5]]), "union"), candidates)
    assert places[1:] == [-1, 0, -6, -5, -4, -3, -2]


def test_a_page_with_a_safe_entry_is_safe_and_so_is_the_newest():
    def marked(inner):
        return np.flatnonzero(WholePages(inner, 4).protected(eight_entries())[0]).tolist()

    assert marked(Edges()) == [6, 7]
    assert marked(Edges(sinks=1)) == [0, 1, 6, 7]
    assert marked(Edges(recent=3)) == [2, 3, 4, 5, 6, 7]


def test_a_page_that_has_just_been_filled_is_the_newest():
    """Tokens 4 to 7 fill the second page; with token 8 the third begins."""
    for seen, newest in ((7, [4, 5, 6]), (8, [4, 5, 6, 7]), (9, [8])):
        given = observation(np.ones((1, 1, 1, seen)), positions=np.arange(seen)[None])
        assert np.flatnonzero(WholePages(Edges(), 4).protected(given)[0]).tolist() == newest


@pytest.mark.parametrize(("sinks", "recent"), [*product((0, 1, 4, 5), (0, 1, 2, 5, 6))])
def test_as_many_pages_as_safe_entries_can_touch(sinks, recent):
    """The newest token and recent - 1 before it; of all places in a page the worst."""
    edges, touched = Edges(sinks=sinks, recent=recent), []
    for seen in range(100, 104):
        positions = np.arange(seen)[None]
        protected = WholePages(edges, 4).protected(
            observation(np.ones((1, 1, 1, seen)), positions=positions)
        )
        touched.append(len(np.unique(positions[protected] // 4)))
    assert WholePages(edges, 4).count(prompt=0) == 4 * max(touched)


def test_the_open_page_counts_whole():
    seen = eight_entries()
    protected = WholePages(Edges(), 4).protected(seen)
    assert [Pages(budget, 4).room(seen, protected) for budget in (8, 11, 12)] == [4, 4, 8]
    with pytest.raises(ValueError, match="budget = 4 must be at least the 8 entries"):
        Pages(7, 4).room(seen, WholePages(Edges(sinks=1), 4).protected(seen))
