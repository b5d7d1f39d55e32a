"""Draws whole caches: the planned ones, which are published, and others for `fuzz`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from kvlab.reference.conformance import plan, whole_cache
from kvlab.reference.conformance.made import drawn_case, made_case, options_of
from kvlab.reference.conformance.targets import answer, composition
from kvlab.reference.conformance.vectors import MODEL, Case
from kvlab.reference.conformance.whole_cache import model_in
from kvlab.reference.streams import Source

(PLANNED,) = plan.TABLES["caches"]
WORDS = plan.TABLES["whole_caches"]
"""Padding, calls and moved rows, by the words of the plan."""

ATTEMPTS = 50
"""Most batches that are drawn until one leaves no doubt."""

NUDGE, NUDGES = 5e-6, 4
"""Noise of all weights that changes no decision of a whole cache, and how often it is drawn."""

LAYERS_AND_HEADS = 4, 4
"""Of the embedded model."""


def any_case(target: str, choose: Callable[[Sequence[Any]], Any]) -> Case | None:
    """Draw a small case of any target; None if what was chosen does not fit.

    Raises:
        ValueError: if the target is a whole cache of a method that the plan does not have.
    """
    method, _, operation = target.rpartition(".")
    if operation != "whole_cache":
        return drawn_case(target, choose)
    specs = [spec for spec in PLANNED["method"] if composition(spec) == method]
    if not specs:
        allowed = ", ".join(sorted(map(composition, PLANNED["method"])))
        raise ValueError(f"target = {target!r} must be a whole cache of one of {allowed}")
    dimensions = {**plan.dimensions(PLANNED), "method": specs}
    row = {name: choose(values) for name, values in dimensions.items()}
    if not plan.fits(PLANNED, row):
        return None
    case = _case_of(row, Source(f"drawn {target}", choose(range(2**31))), "drawn", target)
    return case if is_steady(case) else None


def planned_caches() -> Iterator[Case]:
    """Draw the planned whole caches, each with the first batch that leaves no doubt."""
    group = "cache_pairs"
    for number, row in enumerate(plan.rows("caches", PLANNED)):
        spec = _spec_of(row)
        title = f"{composition(spec)}.whole_cache/{group}/{spec}/{number}"
        sources = (Source(f"{group} {number} {attempt}") for attempt in range(ATTEMPTS))
        drawn = (_case_of(row, source, group, title) for source in sources)
        case = next(filter(is_steady, drawn), None)
        if case is None:
            raise AssertionError(f"{title}: every batch leaves doubt")
        yield case


def _spec_of(row: Mapping[str, Any]) -> str:
    name, _, own = row["method"].partition("@")
    usual = {"page": 1, "kv_heads": "head", "precision": "full"}
    told = [own] if own else []
    told += [f"{key}={row[key]}" for key, value in usual.items() if row[key] != value]
    return f"{name}@{','.join(told)}" if told else name


def _case_of(row: Mapping[str, Any], source: Source, group: str, title: str) -> Case:
    padding, calls, moves = (WORDS[key][row[key]] for key in ("padding", "calls", "moves"))
    spec = _spec_of(row)
    budget = None if composition(spec) in ("full", "kivi") else row["budget"]
    limits = {key: row[key] or None for key in ("block_size", "softcap", "sliding_window")}
    drawn = batch(source, calls, padding)
    for call in (len(calls) // 3, len(calls) - 2):
        drawn["continues"][call] = moves
    if row["learned_sinks"]:
        drawn["learned_sinks"] = source.normal(*LAYERS_AND_HEADS)
    return cache_case(title, group, spec, drawn, {"budget": budget, **limits})


def cache_case(name: str, group: str, method: str, drawn: Any, told: dict[str, Any]) -> Case:
    """Return the case of a batch under a method."""
    parameters = {**options_of(method), "budget": None, "model": str(MODEL), **told}
    return made_case(name, group, method, (drawn, parameters))


def batch(source: Source, calls: Sequence[int], padding: Sequence[int]) -> dict[str, Any]:
    """Draw the tokens of a batch."""
    N, t, before = len(padding), sum(calls), np.array(padding)
    tokens = source.integers(1, model_in(str(MODEL)).config.vocab_size, N, t)
    return {
        "tokens": np.where(np.arange(t) >= before[:, None], tokens, 0),
        "padding": before,
        "calls": np.array(calls),
        "continues": np.tile(np.arange(N), (len(calls), 1)),
    }


def is_steady(case: Case) -> bool:
    """Whether noise on the weights, so on all queries, keys and values, changes no decision.

    Nor may it change a logit by more than half of the tolerance.
    """
    model, logits, kept = model_in(str(MODEL)), case.expected["logits"], case.expected["kept"]
    for number in range(NUDGES):
        source = Source("nudge of a whole cache", number)
        weights = {
            name: x * (1 + NUDGE * source.normal(*x.shape)) for name, x in model.weights.items()
        }
        with patch.object(whole_cache, "model_in", return_value=replace(model, weights=weights)):
            found = answer(case)
        off = np.abs(found["logits"].value - logits.value).max()
        same = np.array_equal(found["kept"].value, kept.value)
        if not same or off > logits.tolerance["float32"][0] / 2:
            return False
    return True
