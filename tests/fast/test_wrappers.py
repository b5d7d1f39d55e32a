"""What one part of a policy hands through of another that it wraps."""

from dataclasses import dataclass

import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.granularity import Pages
from kvlab.reference.method import Method, Wrapper
from kvlab.reference.methods.caote import Caote
from kvlab.reference.policy import Around, Entries, EveryBlock, Nobody, Policy, Score
from support.build import nothing_yet, observation
from support.tables import cases

methods.known()


def test_a_score_around_another_hands_everything_through():
    """What a wrapper is there to change is the score, which the retention is by default."""
    said = {name for name in vars(Score) if not name.startswith("_")}
    assert {"needs", "drawn"} < said - {"score", "retention"} <= vars(Around).keys()


@dataclass(frozen=True)
class Plain(Score):
    """A score that says nothing of itself."""

    def score(self, state, seen, candidates, room):
        return np.zeros(seen.positions.shape)


@dataclass(frozen=True)
class Odd(Method):
    name = "odd"

    def policy(self, budget):
        return Policy(self.name, Plain(), EveryBlock(), Nobody(), Entries(32))


def method_wrappers() -> list[type[Wrapper]]:
    found = [*Wrapper.__subclasses__(), *Caote.__subclasses__()]
    return [each for each in found if each.__module__.startswith("kvlab.")]


@pytest.mark.parametrize("wrapper", method_wrappers(), ids=lambda each: each.name)
@pytest.mark.parametrize("said", ["joins_layers", "joins_kv_heads"])
def test_a_method_around_another_decides_in_as_many_heads_and_layers(wrapper, said, monkeypatch):
    monkeypatch.setattr(Plain, said, True)
    joined = getattr(wrapper(base=Odd()).policy(32).score, said)
    assert joined == (said == "joins_layers" or not issubclass(wrapper, Caote))


@cases(__file__, "pages_stay_whole_whatever_rates_or_protects_them", "spec")
def test_pages_stay_whole_whatever_rates_or_protects_them(spec):
    """The score of a page's entries is one, and the page that is being written is protected."""
    policy = methods.get(spec, 16)
    assert isinstance(policy.budget, Pages)
    attention, values = np.random.default_rng(0).random((2, 2, 1, 1, 10))
    seen = observation(attention, values=values, seen=10, prompt=1)
    state = policy.score.observe(nothing_yet(policy.score, seen), seen)
    scores = policy.score.score(state, seen, seen.positions >= 0, 4)
    assert (scores[:, :8].reshape(2, 2, 4) == scores[:, :8:4, None]).all()
    assert policy.protect.protected(seen)[:, 8:].all()


def test_a_layer_cannot_wait_for_all_layers(monkeypatch):
    monkeypatch.setattr(Plain, "joins_layers", True)
    with pytest.raises(ValueError, match="evict_before_attend = True must be False for mine"):
        Policy("mine", Plain(), EveryBlock(), Nobody(), Entries(4), evict_before_attend=True)
