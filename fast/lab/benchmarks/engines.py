"""Engines that people deploy, beside transformers and kvlab: SmolLM2 after long prompts.

    python -m kvlab.fast.lab.benchmarks.engines --out result.json

All use one thread, in turn, as in ``decode.py``. Speeds are of CPU time; ``wall`` is by the clock.
Methods and OpenVINO's eviction keep a quarter of the prompt's entries. Bytes are those of keys and
values in the end, as each library says itself.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from kvlab.fast.lab.benchmarks.contenders import Contender, Setting, engine, kvlab, stock
from kvlab.fast.lab.benchmarks.decode import Part, measured, real
from kvlab.fast.lab.benchmarks.results import run, run_benchmark
from kvlab.fast.lab.benchmarks.workload import fetched
from kvlab.fast.lab.engines.agreement import SETTINGS
from kvlab.fast.models import model_location

METHODS = ("h2o", "tova", "kivi", "desirekv@interval=128")
MORE = (*METHODS, "full", "ddks@interval=128", "ahakv", "caote:h2o")
"""Methods that take part after short prompts: those below 2,048 tokens."""


def _contenders(setting: Setting, entries: int, methods: tuple[str, ...]) -> Iterator[Contender]:
    yield stock(setting)
    name = f"transformers full cache of {entries}"
    yield replace(stock(setting), name=name, prompt=entries)
    yield from (kvlab(setting, method) for method in methods)
    (options,) = (x.options for x in SETTINGS["openvino"] if x.name == "SUM, window off")
    most = entries // 32 * 32
    for about, exact in (("in float32", True), ("as it comes", False)):
        yield engine("openvino", about, {}, True, exact)
        yield engine("openvino", f"{about}, SUM at {most}", {**options, "max": most}, True, exact)
    yield engine("llama.cpp", "f16", {}, True)
    for width in ("q8_0", "q4_0"):
        yield engine("llama.cpp", width, {"type": width.upper()}, True)


def main(out: Path | None = None, lengths: str = "1024,4096,8000", repeats: int = 3) -> None:
    """Let all write 64 tokens after prompts of these lengths, in so many rounds."""
    asked = locals() | {"model": "smollm2", "tokens": 64, "cpu_time": True}
    torch.set_num_threads(1)
    model = fetched(str(model_location("smollm2")))
    several: dict[int, tuple[Part, list[Contender]]] = {}
    for length in map(int, lengths.split(",")):
        part = replace(real(length, 64, repeats), name=f"{length:,} tokens", at_end=True)
        setting = Setting(model, part.entries, cpu_time=True)
        methods = MORE if length < 2048 else METHODS
        several[length] = part, list(_contenders(setting, part.entries, methods))
    run_benchmark(
        "engines",
        "cpu",
        asked,
        {},
        lambda measure: {str(n): measured(*each, measure) for n, each in several.items()},
    )


if __name__ == "__main__":
    run(main, "engines")
