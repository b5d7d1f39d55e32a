"""Engines that people deploy, beside transformers and kvlab: SmolLM2 after long prompts.

    python -m kvlab.fast.lab.benchmarks.engines --out result.json

All run on one thread and in turn, as in `kvlab.fast.lab.benchmarks.decode`; ``share_of_full`` is of
CPU time. Methods and OpenVINO's eviction keep a quarter of the prompt's entries. Bytes are those of
keys and values in the end, as each library says itself.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

import torch
import typer

from kvlab.fast.lab.benchmarks.contenders import Contender, Setting, engine, kvlab, stock
from kvlab.fast.lab.benchmarks.decode import SCHEMA, measured, real
from kvlab.fast.lab.benchmarks.results import Out, write
from kvlab.fast.lab.benchmarks.workload import fetched
from kvlab.fast.lab.engines.agreement import SETTINGS
from kvlab.fast.lab.terminal import progress
from kvlab.fast.models import model_location

METHODS = ("h2o", "tova", "kivi", "desirekv@interval=128")
MORE = ("full", "ddks@interval=128", "ahakv", "caote:h2o")
"""Methods that only the shortest prompt is followed by, too."""


def _contenders(setting: Setting, methods: tuple[str, ...]) -> Iterator[Contender]:
    yield stock(setting)
    name = f"transformers full cache of {setting.entries}"
    yield replace(stock(setting), name=name, prompt=setting.entries)
    for method in methods:
        yield kvlab(setting, method)
    found = {each.name: each.options for each in SETTINGS["openvino"]}
    most = (setting.entries or 0) // 32 * 32
    evicting = {**found["SUM, window off"], "max": most}
    yield engine("openvino", "in float32", {}, True)
    yield engine("openvino", f"in float32, SUM at {most}", evicting, True)
    yield engine("openvino", "as it comes", {}, True, exact=False)
    yield engine("openvino", f"as it comes, SUM at {most}", evicting, True, exact=False)
    for options in ({}, {"type": "Q8_0"}, {"type": "Q4_0"}):
        yield engine("llama.cpp", options.get("type", "F16").lower(), options, True)


def main(
    out: Out = None,
    lengths: Annotated[str, typer.Option(help="Tokens of the prompts.")] = "1024,4096,8000",
    tokens: Annotated[int, typer.Option(min=2, help="Tokens to write.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds.")] = 3,
) -> None:
    """Measure engines beside transformers and kvlab."""
    torch.set_num_threads(1)
    model, found = fetched(str(model_location("smollm2"))), {}
    with progress() as bar:
        for number, length in enumerate(map(int, lengths.split(","))):
            part = replace(real(length, tokens, repeats), name=f"{length:,} tokens", at_end=True)
            setting = Setting(model, part.entries, cpu_time=True)
            several = list(_contenders(setting, METHODS if number else METHODS + MORE))
            found[length] = measured(part, several, bar)
    asked = {"model": "smollm2", "tokens": tokens, "repeats": repeats, "cpu_time": True}
    write(SCHEMA, "cpu", {"parameters": asked, "lengths": found}, out)


if __name__ == "__main__":
    sys.exit(typer.run(main))
