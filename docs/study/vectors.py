"""Draws the published test vectors of the specifications from 1.2 on; 16146a8 drew the older ones.

PYTHONPATH=docs python -m study.vectors FOLDER  # writes the folders from 1.2 on, byte for byte
"""

import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from kvlab.reference.conformance import draws, plan, publishing, whole_cache
from kvlab.reference.conformance.made import (
    cases_of_stream,
    draw_stream,
    made_case,
    option_cases,
    options_of,
    planned_cases,
)
from kvlab.reference.conformance.targets import answer, composition
from kvlab.reference.conformance.vectors import MODEL, SPECIFICATIONS, Case
from kvlab.reference.conformance.whole_cache import model_in
from kvlab.reference.method import Example
from kvlab.reference.streams import Source

TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))

NUDGE, NUDGES = 5e-6, 4
"""Noise of all weights that changes no decision of a whole cache, and how often it is drawn."""


def cases(spec: str) -> Iterator[Case]:
    """Draw the cases that a specification added."""
    for told in TABLES[spec].get("blocks", ()):
        for number, row in enumerate(told["sizes"], told.get("first", 0)):
            name = f"{told['operation']}/{told['group']}/{number}"
            sizes = told["fixed"] | dict(zip(told["axes"], row, strict=True))
            drawn = draws.BLOCKS[told["operation"]](Source(f"{spec} {name}"), **sizes)
            assert drawn is not None
            yield made_case(name, told["group"], None, drawn)
    for told in TABLES[spec].get("events", ()):
        for number, text in enumerate(told["scripts"]):
            name = f"events/{told['group']}/{number}"
            drawn = draws.BLOCKS["events"](Source(name), text=text, **told["pool"])
            assert drawn is not None
            yield made_case(name, told["group"], None, drawn)
    for told in TABLES[spec].get("streams", ()):
        for method, (number, sizes) in product(told["methods"], enumerate(told["streams"])):
            stream = draw_stream(Source(f"{spec} {told['source']} {number}"), **sizes)
            example = Example(method, told["budget"])
            (case,) = cases_of_stream(example, stream, told["group"], ["run"])
            yield replace(case, name=f"{case.target}/{told['group']}/{method}/{number}")
    for told in TABLES[spec].get("caches", ()):
        for number, method in enumerate(told["methods"], told["first"]):
            name = f"{composition(method)}.whole_cache/{told['group']}/{method}/{number}"
            drawn = batch(Source(f"{spec} {name}"), told["calls"], told["padding"])
            none = {"block_size": None, "softcap": None, "sliding_window": None}
            yield cache_case(name, told["group"], method, drawn, {"budget": told["budget"], **none})
    if TABLES[spec].get("planned"):
        yield from planned_cases("small")
        yield from option_cases()
        yield from planned_caches()


# --- whole caches --------------------------------------------------------------------------------


def cache_case(name: str, group: str, method: str, drawn: Any, told: dict[str, Any]) -> Case:
    """Return the case of a batch under a method."""
    parameters = {**options_of(method), "budget": None, "model": str(MODEL), **told}
    return made_case(name, group, method, (drawn, parameters))


def planned_caches() -> Iterator[Case]:
    """Draw the planned whole caches, each with the first batch that leaves no doubt."""
    chosen, group = TABLES["whole_caches"], "cache_pairs"
    for number, row in enumerate(plan.rows("caches", plan.TABLES["caches"][0])):
        name, _, own = row["method"].partition("@")
        asked = {"page": 1, "kv_heads": "head", "precision": "full"}
        told = [own] if own else []
        told += [f"{key}={row[key]}" for key, usual in asked.items() if row[key] != usual]
        method = f"{name}@{','.join(told)}" if told else name
        padding, calls, moves = (chosen[key][row[key]] for key in ("padding", "calls", "moves"))
        budget = None if name in ("full", "kivi") else row["budget"]
        limits = {key: row[key] or None for key in ("block_size", "softcap", "sliding_window")}
        title = f"{name}.whole_cache/{group}/{method}/{number}"
        for attempt in range(50):
            source = Source(f"{group} {number} {attempt}")
            drawn = batch(source, calls, padding)
            for call in (len(calls) // 3, len(calls) - 2):
                drawn["continues"][call] = moves
            if row["learned_sinks"]:
                drawn["learned_sinks"] = source.normal(*LAYERS_AND_HEADS)
            case = cache_case(title, group, method, drawn, {"budget": budget, **limits})
            if is_steady(case):
                yield case
                break
        else:
            raise AssertionError(f"{title}: every batch leaves doubt")


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


LAYERS_AND_HEADS = 4, 4
"""Of the embedded model."""


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


# --- files ---------------------------------------------------------------------------------------


def main(folder: Path, specs: Sequence[str] = ()) -> None:
    """Write the folders of all specifications that are drawn here, or of some."""
    for spec in specs or TABLES["specifications"]:
        drawn = [as_published(case, TABLES[spec]["later"]) for case in cases(spec)]
        publishing.write(drawn, folder / SPECIFICATIONS[spec], spec)


def as_published(case: Case, later: Sequence[str]) -> Case:
    """Answer a case, and leave out the options that its method was given after the publication."""
    parameters = {name: x for name, x in case.parameters.items() if name not in later}
    return replace(publishing.answered_anew(case), parameters=parameters)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
