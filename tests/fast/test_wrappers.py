"""What one part of a policy hands through of another that it wraps, for every wrapper.

A new attribute of `Score`, `Protect` or `Policy` is checked from the day it is written: a wrapper
that drops it fails here until it hands it through, or until a table says why it has its own.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, get_type_hints

import numpy as np
import pytest

from kvlab.fast.engine import policy as engine
from kvlab.fast.engine.port import port_part
from kvlab.fast.engine.twins import Twin, twin_of
from kvlab.reference import methods
from kvlab.reference.cache import Column
from kvlab.reference.granularity import Pages
from kvlab.reference.method import CommonOptions, Method, Wrapper
from kvlab.reference.methods.caote import Caote
from kvlab.reference.methods.openvino import CompletePages
from kvlab.reference.observation import Needs
from kvlab.reference.policy import (
    AfterPrefill,
    Edges,
    Entries,
    EveryBlock,
    Full,
    Nobody,
    Policy,
    Precision,
    Protect,
    Score,
)
from kvlab.reference.proofs.counting import Counting, Counts
from support.build import nothing_yet, observation

methods.known()


def wrappers_of(kind: type) -> list[type]:
    """Return every class of kvlab that has a part of a kind in one of its fields."""
    below = [*kind.__subclasses__()]
    for each in below:
        below.extend(each.__subclasses__())
    ours = [each for each in below if each.__module__.startswith("kvlab.reference")]
    return [each for each in ours if kind in get_type_hints(each).values() and fields(each)]


def inner_of(wrapper: type, kind: type) -> str:
    return next(name for name, hint in get_type_hints(wrapper).items() if hint is kind)


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


# --- scores --------------------------------------------------------------------------------------

OTHER_FIELDS: dict[str, list[dict[str, Any]]] = {
    "Around": [],
    "OneForAllHeads": [{"join": "layer"}, {"join": "union"}],
    "OneForAllLayers": [{}],
    "OfPages": [{"page": 4, "join": "mean"}],
    "EvictionError": [
        {"options": Caote(base=methods.parse("h2o"), **options)}
        for options in ({}, {"heads": "layer"}, {"several": "sequential"})
    ],
    "PromptFirst": [{}],
    "Crushed": [{"pages": CompletePages(8, 4, 1), "anchor": "zeros"}],
    "Counting": [{"counts": Counts()}],
}
"""The other fields of every score that wraps a score."""
ADDED = {
    "OneForAllHeads": {"joins_kv_heads": True},
    "OneForAllHeads union": {"joins_kv_heads": True, "ordinal": True, "signed": True},
    "OneForAllLayers": {"joins_layers": True},
    "EvictionError layer": {"joins_kv_heads": True},
    "EvictionError sequential": {"ordinal": True},
    "Crushed": {"ordinal": True},
}
"""What a wrapper says of its score, whatever it wraps."""
OWN = {"EvictionError": {"joins_kv_heads": False}, "EvictionError sequential": {}}
OWN["EvictionError sequential"] = OWN["EvictionError"]
"""What a wrapper does not take over: heads that attend alike still read other values."""
RATES = {"score", "retention"}
"""What a wrapper is there to change: by default the retention is its score."""


@dataclass(frozen=True)
class Plain(Score):
    """A score that says nothing of itself."""

    def score(self, state, seen, candidates, room):
        return np.zeros(seen.positions.shape)


class Marked(Plain):
    """A score of which everything differs from the default."""

    columns = {"mark": Column("a mark")}
    needs = Needs(rows="last", rotary=True)
    joins_kv_heads = joins_layers = ordinal = signed = True

    def observe(self, state, seen) -> Any:
        return "observed", state, seen

    def drawn(self, seen) -> Any:
        return {"drawn": seen}


CASES = [
    (wrapper, number)
    for wrapper in wrappers_of(Score)
    for number in range(len(OTHER_FIELDS.get(wrapper.__name__, [{}])))
]


def case(wrapper: type, number: int, inner: Score) -> tuple[str, Any]:
    """Return the name of a case, and the wrapper around a score."""
    name, others = wrapper.__name__, OTHER_FIELDS[wrapper.__name__][number]
    said = "".join(f" {value}" for value in others.values() if value == "union")
    if isinstance(options := others.get("options"), Caote):
        said = {"layer": " layer"}.get(options.heads, "") or (
            "" if options.several == "independent" else f" {options.several}"
        )
    return name + said, wrapper(inner=inner, **others)


def test_of_the_marked_score_everything_differs():
    assert public(Score) - RATES <= public(Marked)
    for name in public(Score) - RATES:
        assert getattr(Marked, name) != getattr(Plain, name)


@pytest.mark.parametrize(("wrapper", "number"), CASES)
def test_a_score_around_another_hands_everything_through(wrapper, number):
    name, around = case(wrapper, number, inner := Marked())
    own = {**ADDED.get(name, {}), **OWN.get(name, {})}
    for attribute in public(Score) - RATES:
        found, expected = getattr(around, attribute), getattr(inner, attribute)
        if attribute == "observe":
            found, expected = found("state", observation(np.ones((1, 1)))), "observed"
            assert found[0] == expected
        elif attribute == "drawn":
            assert found("seen") == expected("seen")
        else:
            assert found == own.get(attribute, expected), attribute


@pytest.mark.parametrize(("wrapper", "number"), CASES)
def test_a_score_around_another_says_what_it_adds(wrapper, number):
    name, around = case(wrapper, number, Plain())
    for attribute in public(Score) - RATES - {"observe", "drawn"}:
        expected = ADDED.get(name, {}).get(attribute, getattr(Score, attribute))
        assert getattr(around, attribute) == expected, attribute


@twin_of(Marked)
class FastMarked(engine.Score[Marked]):
    """The marked score in tensors, which needs the host, and other things than its part."""

    runs_the_reference = True

    @property
    def needs(self):
        return replace(super().needs, output=True)

    @property
    def columns(self):
        return {**super().columns, "other": Column("another mark")}

    def observe(self, state, seen):
        state.append(seen)

    def score(self, state, seen, candidates, room):
        raise NotImplementedError


FAST = {"spec", "runs_the_reference", "tensors_alone"} | RATES
"""What a wrapper in tensors has of its own: only itself can say whether it needs the host."""


@pytest.mark.parametrize(("wrapper", "number"), [each for each in CASES if each[0] is not Counting])
def test_a_score_around_another_in_tensors_hands_everything_through(wrapper, number, monkeypatch):
    monkeypatch.setattr(Marked, "signed", False)  # which CAOTE refuses
    around = port_part(case(wrapper, number, Marked())[1])
    inner = around.inner
    assert isinstance(inner, FastMarked)
    for attribute in (public(engine.Score) | public(Twin)) - FAST - {"observe"}:
        assert getattr(around, attribute) == getattr(inner, attribute), attribute
    around.observe(state := [], "seen")
    assert state == ["seen"]
    assert around.on_host and not around.tensors_alone


# --- protections ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Third(Protect):
    """The third entry; two are always protected."""

    def protected(self, seen):
        return seen.positions == 2

    def count(self, prompt):
        return 5


WRAPPING = {
    "ProtectedByEither": ({"other": Edges(recent=1)}, lambda choice, around: choice),
    "WholePages": ({"page": 2}, lambda choice, around: type(around)(choice, 2)),
    "AlsoDemoted": ({}, lambda choice, around: type(around)(choice)),
}
"""Other fields of every protection that wraps one, and what it is around another choice."""


@pytest.mark.parametrize("wrapper", wrappers_of(Protect), ids=lambda each: each.__name__)
def test_a_protection_around_another_hands_everything_through(wrapper):
    assert public(Protect) == {"protected", "count", "with_edges", "replaced"}
    others, replaced = WRAPPING[wrapper.__name__]
    around = wrapper(**{inner_of(wrapper, Protect): Third(), **others})
    seen = observation(np.ones((1, 9)), seen=9)
    assert around.protected(seen)[0, 2] and around.count(0) >= 5
    wider = around.with_edges(Edges(sinks=1, recent=2))
    assert wider.protected(seen)[0, [0, 2, 7, 8]].all() and wider.count(0) >= 5
    assert (wider.protected(seen) | ~around.protected(seen)).all()
    assert around.replaced(Nobody()) == replaced(Nobody(), around)
    assert not around.replaced(Nobody()).protected(seen)[0, 2]


# --- policies ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Coded(Precision):
    """Another precision than the default."""


@dataclass(frozen=True)
class Odd(Method):
    """A method of which every answer differs from what wrappers would say themselves."""

    differs: str = ""

    name = "odd"

    def policy(self, budget):
        given = {
            "score": Plain(),
            "schedule": AfterPrefill(),
            "protect": Third(),
            "budget": Pages(32, 4) if self.differs == "budget" else Entries(32),
            "precision": Coded() if self.differs == "precision" else Full(),
            "evict_before_attend": self.differs == "evict_before_attend",
            "reposition": self.differs == "reposition",
        }
        assert given.keys() == {field.name for field in fields(Policy)} - {"name"}
        return Policy(self.name, **given)


CHANGES = {
    "random": {"name", "score"},
    "caote": {"name", "score", "schedule"},
    "fast_caote": {"name", "score", "schedule"},
    "every method": set(),
}
"""What a wrapper answers in place of the method inside."""
DIFFERS = ["", "budget", "precision", "evict_before_attend", "reposition"]


def method_wrappers() -> list[type[Wrapper]]:
    found = [*Wrapper.__subclasses__(), *Caote.__subclasses__()]
    return [each for each in found if each.__module__.startswith("kvlab.")]


@pytest.mark.parametrize("differs", DIFFERS)
@pytest.mark.parametrize("wrapper", method_wrappers(), ids=lambda each: each.name)
def test_a_method_around_another_keeps_its_answers(wrapper, differs):
    odd = Odd(differs)
    if differs == "precision" and issubclass(wrapper, Caote):
        with pytest.raises(ValueError, match="CAOTE wraps methods that keep 16 bit, not odd"):
            wrapper(base=odd).policy(32)
        return
    inner, around = odd.policy(32), wrapper(base=odd).policy(32)
    if wrapper is CommonOptions:
        inner = replace(inner, protect=inner.protect.with_edges(Edges()))
    for field in fields(Policy):
        if field.name not in CHANGES[wrapper.name]:
            found, expected = getattr(around, field.name), getattr(inner, field.name)
            assert found == expected, field.name


@pytest.mark.parametrize("wrapper", method_wrappers(), ids=lambda each: each.name)
@pytest.mark.parametrize("said", ["joins_layers", "joins_kv_heads"])
def test_a_method_around_another_decides_in_as_many_heads_and_layers(wrapper, said, monkeypatch):
    monkeypatch.setattr(Plain, said, True)
    joined = getattr(wrapper(base=Odd()).policy(32).score, said)
    assert joined == (said == "joins_layers" or not issubclass(wrapper, Caote))


@pytest.mark.parametrize(
    "spec",
    [
        *("random:raas@page=4", "caote:raas@page=4,pin_prompt=false", "raas@page=4,kv_heads=union"),
        *("random:openvino@start=4,recent=4,page=4", "caote:openvino@start=4,recent=4,page=4"),
        *("openvino@start=4,recent=4,page=4,protected=nothing", "raas@page=4,protected=first2"),
    ],
)
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


def test_a_layer_cannot_wait_for_all_layers():
    with pytest.raises(ValueError, match="evict_before_attend = True must be False for mine"):
        Policy("mine", Marked(), EveryBlock(), Nobody(), Entries(4), evict_before_attend=True)
