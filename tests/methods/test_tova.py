from kvlab.reference import methods
from kvlab.reference.cache import State
from kvlab.reference.step import select
from support.build import kept, observation
from support.tables import cases


@cases(__file__, "two_stay_by_hand", "attention stay")
def test_two_stay_by_hand(attention, stay):
    for spec in ("tova", "tova@per_head=true"):  # of one KV head
        assert kept(methods.get(spec, 2), State(), observation(attention)) == stay


def test_all_kv_heads_share_one_keep_set():
    """Heads .7/.2/.1 and .1/.2/.7 alone would evict 2 and 0; their mean evicts 1."""
    seen = observation([[[[0.7, 0.2, 0.1]]], [[[0.1, 0.2, 0.7]]]])
    shared = select(methods.get("tova", 2), State(), seen).keep
    own = select(methods.get("tova@per_head=true", 2), State(), seen).keep
    assert shared.tolist() == [[0, 2], [0, 2]]
    assert own.tolist() == [[0, 1], [1, 2]]
