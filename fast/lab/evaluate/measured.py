"""What the decoding benchmark measured, beside the cost model."""

import json
from collections.abc import Iterator
from importlib.resources import files

from kvlab.reference import methods
from kvlab.reference.planner.cost import Plan
from kvlab.reference.planner.figures import PaperFigure
from kvlab.reference.planner.hardware import HARDWARE
from kvlab.reference.planner.shape import Shape

RESULT = "decode-cpu.json"
TINY = Shape("tiny llama of the benchmark", 4, 256, 8, 8, 32, 688, 512)
FLOAT32_OVER_16_BITS = 2


def measured_figures() -> Iterator[PaperFigure]:
    """Yield the bytes that each method's cache had allocated at its fullest.

    State is of 32-bit numbers on both sides; keys and values were float32 when measured.
    """
    text = (files("kvlab.fast.lab.benchmarks") / "results" / RESULT).read_text(encoding="utf-8")
    result = json.loads(text)
    entries = result["parameters"]["entries"]
    for outcome in result["parts"]["constant"]:
        kind, _, spec = outcome["name"].partition(" ")
        if kind != "kvlab" or spec.endswith("fused"):
            continue
        run = outcome["run"]
        policy = methods.get(spec, None if spec == "full" else entries)
        memory = Plan(TINY, HARDWARE["h200"], policy, run["prompt"], run["tokens"] - 1).memory
        modelled = FLOAT32_OVER_16_BITS * memory.cache + memory.state
        yield PaperFigure(
            "kvlab",
            RESULT,
            f"{spec}: cache",
            outcome["peak"]["bytes"] / 1024,
            modelled / 1024,
            "KiB",
        )
