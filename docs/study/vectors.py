"""Draws the published test vectors of the specifications from 1.2 on; 16146a8 drew the older ones.

PYTHONPATH=docs python -m study.vectors FOLDER  # writes the folders from 1.2 on, byte for byte
"""

import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from kvlab.reference.conformance import draws, publishing
from kvlab.reference.conformance.drawn_caches import batch, cache_case, planned_caches
from kvlab.reference.conformance.made import (
    cases_of_stream,
    draw_stream,
    made_case,
    option_cases,
    planned_cases,
)
from kvlab.reference.conformance.targets import composition
from kvlab.reference.conformance.vectors import SPECIFICATIONS, Case
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
