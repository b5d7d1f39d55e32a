"""Draws the published test vectors of the specifications from 1.2 on; 16146a8 drew the older ones.

PYTHONPATH=docs python -m study.vectors FOLDER  # writes the folders of 1.2 to 1.4, byte for byte
"""

import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from kvlab.reference.conformance import draws, publishing
from kvlab.reference.conformance.made import (
    cases_of_stream,
    draw_stream,
    made_case,
    options_of,
)
from kvlab.reference.conformance.targets import composition
from kvlab.reference.conformance.vectors import MODEL, SPECIFICATIONS, Case
from kvlab.reference.conformance.whole_cache import model_in
from kvlab.reference.method import Example
from kvlab.reference.streams import Source

TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


def cases(spec: str) -> Iterator[Case]:
    """Draw the cases that a specification added."""
    for told in TABLES[spec].get("blocks", ()):
        for number, row in enumerate(told["sizes"], told.get("first", 0)):
            name = f"{told['operation']}/{told['group']}/{number}"
            sizes = told["fixed"] | dict(zip(told["axes"], row, strict=True))
            drawn = draws.BLOCKS[told["operation"]](Source(f"{spec} {name}"), **sizes)
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
            drawn = whole_cache(Source(f"{spec} {name}"), told["calls"], told["padding"])
            none = {"block_size": None, "softcap": None, "sliding_window": None}
            told_all = {**options_of(method), "budget": told["budget"], "model": str(MODEL), **none}
            yield made_case(name, told["group"], method, (drawn, told_all))


def whole_cache(source: Source, calls: Sequence[int], padding: Sequence[int]) -> dict[str, Any]:
    """Draw the tokens of a batch; noise of 5e-6 changes no decision: `is_steady` of 16146a8."""
    N, t, before = len(padding), sum(calls), np.array(padding)
    tokens = source.integers(1, model_in(str(MODEL)).config.vocab_size, N, t)
    return {
        "tokens": np.where(np.arange(t) >= before[:, None], tokens, 0),
        "padding": before,
        "calls": np.array(calls),
        "continues": np.tile(np.arange(N), (len(calls), 1)),
    }


def main(folder: Path) -> None:
    """Write the folders of all specifications that are drawn here."""
    for spec, tables in TABLES.items():
        drawn = [as_published(case, tables["later"]) for case in cases(spec)]
        publishing.write(drawn, folder / SPECIFICATIONS[spec], spec)


def as_published(case: Case, later: Sequence[str]) -> Case:
    """Answer a case, and leave out the options that its method was given after the publication."""
    parameters = {name: x for name, x in case.parameters.items() if name not in later}
    return replace(publishing.answered_anew(case), parameters=parameters)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
