"""Options together, pairwise: each combination is right by a definition written here, or refused.

The definition takes each entry's score from the method without common options, and says itself
which scores are joined, what is protected, how many entries are kept and which. The reference
decides as it does, and PyTorch decides and attends as the reference.
"""

import re
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import torch
from covertable import make

from kvlab.fast.engine.layers import Layers
from kvlab.fast.engine.step import attend, begin, finish
from kvlab.fast.methods import port
from kvlab.reference import methods, policy as parts
from kvlab.reference.granularity import OfPages, OneForAllHeads, OneForAllLayers, Pages, WholePages
from kvlab.reference.methods.ddks import AlsoDemoted
from kvlab.reference.methods.openvino import CompletePages
from kvlab.reference.precisions import OnArrival
from kvlab.reference.step import StepResult, apply, apply_together, empty_cache, look
from support.replay import as_array, random_blocks, reference_block
from support.sampling import sampled
from support.tolerances import FLOAT64

BUDGET, LAYERS, HEADS = 16, 2, (2, 2, 8)
PROMPTS, SHORT = (21, 13), (9, 6)
"""Tokens of the prompts of a batch; the short ones where a prompt is protected."""
GENERATED = 9

COMMON = {
    "page": [1, 4],
    "page_score": ["mean", "max"],
    "kv_heads": ["head", "layer", "union", "model"],
    "precision": ["full", "fp8_head", "turboquant"],
    "protected": ["own", "nothing", "first2+newest3", "prompt"],
    "pin_prompt": ["false", "true"],
}
"""Options of every method."""
OF_SOME = {
    "every": [1, 3],
    "layers": ["joined", "apart"],
    "reposition": ["false", "true"],
    "evict_before_attend": ["false", "true"],
}
"""Options that several methods share, or that change what a step does."""
DEFAULTS = {name: values[0] for name, values in {**COMMON, **OF_SOME}.items()}


@dataclass(frozen=True)
class Joins:
    """What a method itself joins of its scores, by their mean."""

    heads: bool = False
    layers: bool = False
    page: int = 1


BOTH = Joins(heads=True)
METHODS = {
    "full": Joins(),
    "random": Joins(),
    "value_norm": Joins(),
    "h2o@recent=3": Joins(),
    "streaming_llm@sinks=2": Joins(),
    "tova": Joins(),
    "ddks@interval=6,selector=3,group=4": Joins(),
    "ddks@reading=mikv,group=4,recent=3": Joins(),
    "kivi@group=4,residual=8": Joins(),
    "snapkv@window=4": Joins(),
    "snapkv@window=4,schedule=every_block": Joins(),
    "knorm": Joins(),
    "nacl@proxy_share=0.2,sinks=2,recent=2": Joins(),
    "openvino@start=2,recent=2,page=2,pool=2,window=0": Joins(page=2),
    "raas@threshold=0.05,pin_prompt=false": Joins(),
    "raas@page=4,pin_prompt=false": Joins(page=4),
    "keydiff": Joins(),
    "rkv@window=3": Joins(),
    "rpc@interval=6,selector=3,compression=3.0,heads=group": Joins(),
    "ahakv@recent=3": Joins(),
    "lazy_eviction@window=4,threshold=0.05": Joins(),
    "expected_attention@ahead=5,sinks=2,buffer=4": Joins(),
    "desirekv@interval=6,selector=3,group=4": Joins(),
    "longflow@window=3": BOTH,
    "triattention": Joins(layers=True),
    "vase@recent=3,first=1": Joins(),
    "random_attention@recent=5,counted=all": Joins(),
    "caote:h2o@recent=4": Joins(),
    "caote:tova@heads=layer": Joins(),
    "caote:streaming_llm@sinks=2": Joins(),
    "caote:raas@page=4,pin_prompt=false": Joins(page=4),
    "caote:h2o@recent=4,several=joint_greedy": Joins(),
    "fast_caote:snapkv@window=4": Joins(),
    "random:h2o@recent=4": Joins(),
    "random:triattention": Joins(layers=True),
    "random:openvino@start=2,recent=2,page=2,pool=2,window=0": Joins(heads=True, page=2),
    "random:raas@page=4,pin_prompt=false": Joins(page=4),
    "random:caote:tova@heads=layer": BOTH,
    "random:desirekv@interval=6,selector=3,group=4": BOTH,
    "random:ddks@reading=mikv,group=4,recent=3": Joins(),
}
"""Every method, without the options that are combined, and what it joins."""


# --- cases ---------------------------------------------------------------------------------------


def own_options(base: str) -> dict[str, list[Any]]:
    """Return which options of `OF_SOME` a method has."""
    has = {name for part in methods.parse(base).parts for name in vars(part)}
    return {name: values for name, values in OF_SOME.items() if name in has}


def factors_of(base: str) -> dict[str, list[Any]]:
    """Return the options of a method and their values, without those that it writes itself."""
    has_page = ("page", "page_score") if "page=" in base else ()
    mine = {name: values for name, values in COMMON.items() if name not in has_page}
    if "pin_prompt=" in base:
        del mine["pin_prompt"]
    return {**mine, **own_options(base)}


def pairs(factors: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Return cases such that any two values of two factors occur together in one of them."""
    rows = make(list(factors.values()), strength=2)
    return [dict(zip(factors, row, strict=True)) for row in rows]


def spread_pairs() -> dict[str, list[dict[str, Any]]]:
    """Return cases in which any two values of common options occur, and any with each method."""
    found = {base: [] for base in METHODS}
    for case in pairs({"base": [*METHODS], **COMMON, "own": [0, 1, 2, 3]}):
        base, number = case.pop("base"), case.pop("own")
        own = own_options(base)
        choices = [*product(*own.values())]
        chosen = dict(zip(own, choices[-1 - number * 5 % len(choices)], strict=True))
        found[base].append({name: {**case, **chosen}[name] for name in factors_of(base)})
    return found


def two_of(case: dict[str, Any]) -> set[tuple[tuple[str, Any], ...]]:
    """Return every two values of a case."""
    return {*combinations(case.items(), 2)}


def written(base: str, case: dict[str, Any]) -> str:
    options = ",".join(f"{name}={value}" for name, value in case.items())
    return f"{base}{',' if '@' in base else '@'}{options}"


# --- the definition ------------------------------------------------------------------------------


class Definition:
    """What a method with options keeps, from its scores alone."""

    def __init__(self, base: str, case: dict[str, Any]) -> None:
        own = {name: case[name] for name in own_options(base)}
        plain = methods.get(written(base, own) if own else base, budget_of(base))
        joins = METHODS[base]
        self.case, self.joined_heads = case, joins.heads
        apart = case.get("layers") == "apart"
        self.layers = case["kv_heads"] == "model" or (joins.layers and not apart)
        self.own_page, self.page = joins.page, max(joins.page, case.get("page", 1))
        self.score, self.protect = plain.score, plain.protect
        while isinstance(self.score, OfPages | OneForAllHeads | OneForAllLayers):
            self.score = self.score.inner
        self.demoted = isinstance(self.protect, AlsoDemoted)
        while isinstance(self.protect, WholePages | AlsoDemoted):
            inner = self.protect
            self.protect = inner.inner if isinstance(inner, WholePages) else inner.protect
        self.schedule, self.budget = plain.schedule, plain.budget

    def protected(self, seen) -> np.ndarray:
        positions, n = seen.positions, seen.positions.shape[1]
        marks = {
            "nothing": np.zeros(positions.shape, dtype=bool),
            "first2+newest3": (positions < 2) | (np.arange(n) >= n - 3),
            "prompt": positions < seen.clock.prompt,
        }.get(self.case["protected"])
        if marks is None:
            marks = self.protect.protected(seen)
        if self.case.get("pin_prompt") == "true":
            marks = marks | (positions < seen.clock.prompt)
        if self.page > 1:
            pages = positions // self.page
            newest = pages == (seen.clock.seen - 1) // self.page
            touched = [np.isin(row, row[held]) for row, held in zip(pages, marks, strict=True)]
            marks = np.stack(touched) | newest
        return marks | (seen.bits < 16) if self.demoted else marks

    def room(self, seen, protected: np.ndarray) -> int:
        """Return how many entries are kept besides the protected ones."""
        budget = self.budget
        if not isinstance(budget, parts.Entries | Pages):
            return budget.room(seen, protected)
        if self.page == 1:
            counted = protected & (seen.bits == 16) if self.demoted else protected
            return budget.budget - counted[0].sum()
        held = len(np.unique(seen.positions[0, protected[0]] // self.page))
        extra = isinstance(budget, CompletePages) and seen.clock.seen % self.page > 0
        return (budget.budget // self.page + extra - held) * self.page

    def joined(self, scores: np.ndarray, seen, candidates: np.ndarray) -> np.ndarray:
        """Join the scores of one layer ``[G, n]`` over pages and heads."""
        scores = self.over_pages(scores, seen, self.own_page, "mean")
        how = self.case["kv_heads"]
        if self.joined_heads or how in ("layer", "model"):
            scores = np.tile(scores.mean(axis=0), (len(scores), 1))
        if how == "union":
            places = np.empty(scores.shape)
            for head, row in enumerate(np.where(candidates, scores, -np.inf)):
                places[head, np.lexsort((np.arange(len(row)), row))] = np.arange(len(row))
            scores = np.tile(places.max(axis=0), (len(scores), 1))
        page_score = self.case.get("page_score", "mean")
        return self.over_pages(scores, seen, self.page, page_score)

    def over_pages(self, scores: np.ndarray, seen, page: int, how: str) -> np.ndarray:
        found = scores.copy()
        for head, pages in enumerate(seen.positions // page):
            for number in np.unique(pages):
                members = scores[head, pages == number]
                found[head, pages == number] = members.max() if how == "max" else members.mean()
        return found

    def keep(self, looked: list[StepResult]) -> list[list[list[int]]] | None:
        """Return which indices every head of every layer keeps; None if nothing is decided."""
        if not self.schedule.due(looked[0].seen.clock):
            return None
        rated, sets = [], []
        for layer in looked:
            candidates = ~self.protected(layer.seen)
            room = self.room(layer.seen, ~candidates)
            open_entries = int(candidates[0].sum())
            if room >= open_entries:
                scores = np.zeros(candidates.shape)
                room = open_entries
            else:
                scores = self.score.score(layer.cache.state, layer.seen, candidates, room)
                scores = self.joined(scores, layer.seen, candidates)
            rated.append(scores)
            sets.append((candidates, room))
        if self.layers:
            rated = [np.mean(rated, axis=0)] * len(rated)
        return [
            [best(row, may, room) for row, may in zip(scores, candidates, strict=True)]
            for scores, (candidates, room) in zip(rated, sets, strict=True)
        ]


def best(scores: np.ndarray, candidates: np.ndarray, room: int) -> list[int]:
    """Return the protected entries and the ``room`` best candidates, of equal ones the later."""
    order = sorted(np.flatnonzero(candidates), key=lambda entry: (scores[entry], entry))
    stay = [*np.flatnonzero(~candidates), *order[len(order) - room :]]
    return sorted(int(entry) for entry in stay)


# --- both sides ----------------------------------------------------------------------------------


def budget_of(spec: str) -> int | None:
    return BUDGET if methods.takes_budget(spec) else None


def refusal(spec: str, prompts: tuple[int, ...]) -> str:
    """Return what refuses a specification, or nothing."""
    try:
        policy = methods.get(spec, budget_of(spec))
        for prompt in prompts:
            policy.check(prompt)
    except ValueError as error:
        return str(error)
    return ""


def run_reference(policy, definition: Definition, blocks, row: int) -> list[list[StepResult]]:
    """Run one sequence through all layers, and compare every step with the definition."""
    caches = [empty_cache(policy, HEADS[0], HEADS[2]) for _ in range(LAYERS)]
    stream, coded = [], not isinstance(policy.precision, parts.Full | OnArrival)
    for each in blocks:
        if each[0].clock.rows[row].block == 0:
            stream.append([])
            continue
        given = [reference_block(block, row) for block in each]
        looked = [look(policy, cache, block) for cache, block in zip(caches, given, strict=True)]
        kept = definition.keep(looked)
        if policy.score.joins_layers:
            results = apply_together(policy, looked)
        else:
            results = [apply(policy, x, x.decision.keep) if x.decision else x for x in looked]
        for layer, result in enumerate(results):
            keep = None if kept is None else kept[layer]
            assert (result.decision is None) == (keep is None)
            if keep is not None:
                assert result.decision.keep.tolist() == keep
                if not coded:
                    left = np.take_along_axis(result.seen.positions, np.array(keep), axis=1)
                    assert np.array_equal(result.cache.positions, left)
            if isinstance(policy.precision, OnArrival):
                assert (result.cache.keys.bits < 16).all() and (result.cache.values.bits < 16).all()
        caches = [result.cache for result in results]
        stream.append(results)
    return stream


def check(base: str, case: dict[str, Any]) -> int:
    """Compare a combination with the definition, and PyTorch with the reference, or see it refused.

    Return how many decisions evicted something; -1 if it is refused.
    """
    spec = written(base, case)
    pinned = case["protected"] == "prompt" or case.get("pin_prompt") == "true"
    prompts = SHORT if pinned else PROMPTS
    if said := refusal(spec, prompts):
        given = {name for name, value in case.items() if value != DEFAULTS[name]}
        given |= {"protected"} if "pin_prompt" in given else set()
        assert any(re.search(rf"\b{name}\b", said) for name in given), (spec, said)
        return -1
    policy = methods.get(spec, budget_of(base))
    blocks = [*random_blocks(3, HEADS, prompts, GENERATED, 8, torch.float64, LAYERS)]
    definition = Definition(base, case)
    rows = [run_reference(policy, definition, blocks, row) for row in range(len(prompts))]
    steps = iter(zip(*rows, strict=True))

    def compare(block, shown) -> None:
        for row, clock in enumerate(block.clock.rows):
            if clock.block:
                expected = now[row][block.layer]
                positions = as_array(shown.cache.positions[row])
                found = [sorted(head[head >= 0].tolist()) for head in positions]
                assert found == expected.cache.positions.tolist(), (spec, clock, block.layer)
                output = as_array(shown.output[row, :, :, -clock.block :])
                np.testing.assert_allclose(output, expected.output, rtol=0, atol=FLOAT64)

    layers = Layers(port(policy), LAYERS, watch=compare)
    for each in blocks:
        now = next(steps)
        begin(layers, each[0].clock)
        for place, block in enumerate(each):
            attend(layers, place, block)
        finish(layers)
    every = [result for row in rows for results in row for result in results]
    return sum(each.decision is not None and each.decision.scores is not None for each in every)


@pytest.mark.parametrize("base", sampled(METHODS, [*METHODS][::8]))
def test_a_spread_of_options_is_right_or_refused(base):
    for case in spread_pairs()[base]:
        check(base, case)


@pytest.mark.slow
@pytest.mark.parametrize("base", METHODS)
def test_all_pairs_of_options_are_right_or_refused(base):
    """A value that is refused alone is left out, and a pair that others hide is tried alone."""
    factors = factors_of(base)
    default = {name: DEFAULTS[name] for name in factors}
    alone = {
        (name, value): check(base, {**default, name: value})
        for name, values in factors.items()
        for value in values
    }
    allowed = {
        name: [value for value in values if alone[name, value] >= 0]
        for name, values in factors.items()
    }
    cases = pairs({name: values for name, values in allowed.items() if len(values) > 1})
    evicted = {number: check(base, {**default, **case}) for number, case in enumerate(cases)}
    right = {two for number in evicted if evicted[number] >= 0 for two in two_of(cases[number])}
    for hidden in {two for case in cases for two in two_of(case)} - right:
        check(base, {**default, **dict(hidden)})
    assert max(evicted.values()) > 0 or base in ("full", "kivi@group=4,residual=8")
