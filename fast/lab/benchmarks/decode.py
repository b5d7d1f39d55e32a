"""Decoding speed against the full cache and against kvpress.

    python -m kvlab.fast.lab.benchmarks.decode --kvpress VENV/bin/python --out result.json

Two questions. ``whole``: how fast is one long generation, prompt included, whose full cache keeps
growing? ``constant``: what does a step cost at `ENTRIES` entries, whatever the method?

All contenders are measured in turn, in an order drawn anew for every round, so that a change of
the machine's speed meets all of them. A contender's share of the full cache's speed is taken
within each round. The first round is not timed: it warms up and notes what the caches hold.
``kvpress_contender.py`` says how to make the environment of kvpress.
"""

import json
import random
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import Progress

from kvlab.fast.lab.benchmarks.contenders import Contender, Kvlab, Kvpress, KvpressWorker, Stock
from kvlab.fast.lab.benchmarks.machine import machine, versions
from kvlab.fast.lab.benchmarks.workload import ENTRIES, Footprint, Run, tiny_llama
from kvlab.fast.lab.commands.terminal import console, progress

SCHEMA = 2
LAGGED = "lazy_eviction@window=32"
PER_STEP = (
    "streaming_llm",
    "h2o",
    "tova",
    "raas@pin_prompt=false",
    "caote:h2o",
    "caote:tova",
    "fast_caote:h2o",
    "ahakv",
)
LAGGED_PRESSES = (("snapkv", 32), ("tova", 32), ("observed_attention", 32))
"""At LazyEviction's interval. No press keeps a record of attention between its events, as
LazyEviction does: SnapKV computes that of its last 16 queries anew, TOVA that of the last one,
ObservedAttention reads that of the last one and needs eager attention in every step for it."""
PER_STEP_PRESSES = (
    ("streaming_llm", 1),
    ("observed_attention", 1),
    ("tova", 1),
    ("critical_tova", 1),
)
"""Nearest to StreamingLLM, H2O (the attention that is observed, in eager mode), TOVA and CAOTE
(a score weighted by what the values do to the output). RaaS and AhaKV have no neighbour there."""


@dataclass(frozen=True)
class Part:
    """Generations that are compared with each other."""

    name: str
    with_prompt: bool
    full: Run
    """What a full cache does."""
    compressed: Run
    """What a compressed one does."""
    methods: tuple[str, ...]
    presses: tuple[tuple[str, int], ...]
    repeats: int

    def run(self, contender: Contender) -> Run:
        """Return what a contender has to do."""
        return self.compressed if contender.compresses else self.full


def constant(stretch: int, repeats: int) -> Part:
    """`ENTRIES` entries throughout: compressed caches are full from the start.

    A full cache holds as many on average, half of ``stretch`` fewer at first and more in the end.
    """
    return Part(
        name="constant",
        with_prompt=False,
        full=Run(ENTRIES - stretch // 2, stretch),
        compressed=Run(ENTRIES, stretch),
        methods=(*PER_STEP, LAGGED),
        presses=(*PER_STEP_PRESSES, *LAGGED_PRESSES),
        repeats=repeats,
    )


def whole(tokens: int, repeats: int) -> Part:
    """One long generation from a short prompt."""
    run = Run(64, tokens)
    return Part("whole", True, run, run, (LAGGED,), LAGGED_PRESSES, repeats)


@dataclass
class Outcome:
    """What was measured of one contender."""

    name: str
    run: Run
    peak: Footprint
    tokens_per_second: list[float] = field(default_factory=list)

    def share_of(self, full: "Outcome") -> float:
        """Median, over the rounds, of this speed divided by another's."""
        pairs = zip(self.tokens_per_second, full.tokens_per_second, strict=True)
        return statistics.median(mine / its for mine, its in pairs)

    def to_json(self, full: "Outcome") -> dict[str, Any]:
        """Return plain data; ``full`` is whom to relate it to."""
        return {
            **asdict(self),
            "median": statistics.median(self.tokens_per_second),
            "lowest": min(self.tokens_per_second),
            "highest": max(self.tokens_per_second),
            "share_of_full": self.share_of(full),
        }


def contenders(part: Part, model: Any, worker: KvpressWorker | None) -> Iterator[Contender]:
    """Yield who takes part, the full cache of transformers first."""
    yield Stock(model)
    for method in ("full", *part.methods):
        yield Kvlab(model, method)
    if worker is not None:
        yield Kvpress(worker)
        for press, interval in part.presses:
            yield Kvpress(worker, press, interval)


def measure(part: Part, several: list[Contender], bar: Progress) -> list[Outcome]:
    """Measure all in turn, as often as ``part`` says, after a round that is not timed."""
    task = bar.add_task(part.name, total=(part.repeats + 1) * len(several))
    outcomes = []
    for contender in several:
        run = part.run(contender)
        outcomes.append(Outcome(contender.name, run, contender.footprint(run)))
        bar.advance(task)
    for turn in range(part.repeats):
        pairs = list(zip(several, outcomes, strict=True))
        random.Random(turn).shuffle(pairs)
        for contender, outcome in pairs:
            speed = contender.speed(outcome.run, part.with_prompt)
            outcome.tokens_per_second.append(speed)
            bar.advance(task)
    return outcomes


def kvpress_worker(
    python: Path | None, device: str, threads: int
) -> tuple[KvpressWorker | None, dict[str, Any]]:
    """Start kvpress if there is one, and say what the result says about it."""
    if python is None:
        return None, {"measured": False, "reason": "no environment given"}
    if not python.exists():
        return None, {"measured": False, "reason": f"{python} does not exist"}
    worker = KvpressWorker(python, device, threads)
    return worker, {"measured": True, "versions": worker.versions}


def print_outcomes(part: str, outcomes: list[Outcome]) -> None:
    """Print one part for people."""
    console.print(f"{part}: tokens/s, median (lowest to highest), share of the full cache's, held")
    for o in outcomes:
        median, low, high = (f(o.tokens_per_second) for f in (statistics.median, min, max))
        speeds = f"{median:6.0f} ({low:.0f} to {high:.0f}) {o.share_of(outcomes[0]):5.0%}"
        held = f"{o.peak.entries} entries, {o.peak.bytes / 2**20:.1f} MiB"
        console.print(f"  {o.name:34s} {speeds}  {held}", highlight=False)


def main(
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    kvpress: Annotated[
        Path | None, typer.Option(help="Python of an environment with kvpress 0.5.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds at constant size.")] = 15,
    whole_repeats: Annotated[int, typer.Option(min=1, help="Timed rounds of the whole.")] = 3,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of the whole generation.")] = 4096,
    stretch: Annotated[
        int, typer.Option(min=2, max=2 * ENTRIES - 2, help="Tokens at constant size.")
    ] = 128,
    threads: Annotated[int, typer.Option(min=1, help="Threads of PyTorch.")] = 1,
    device: Annotated[str, typer.Option(help="As PyTorch names it.")] = "cpu",
) -> None:
    """Measure decoding speed."""
    torch.set_num_threads(threads)
    model = tiny_llama(device)
    worker, about_kvpress = kvpress_worker(kvpress, device, threads)
    if worker is None:
        console.print(f"kvpress is not measured: {about_kvpress['reason']}")
    parts = {}
    try:
        with progress() as bar:
            for part in (constant(stretch, repeats), whole(tokens, whole_repeats)):
                parts[part.name] = measure(part, list(contenders(part, model, worker)), bar)
    finally:
        if worker is not None:
            worker.close()
    for name, outcomes in parts.items():
        print_outcomes(name, outcomes)
    result = {
        "schema": SCHEMA,
        "machine": machine(device),
        "versions": versions(),
        "kvpress": about_kvpress,
        "parameters": {
            "entries": ENTRIES,
            "repeats": repeats,
            "whole_repeats": whole_repeats,
            "tokens": tokens,
            "stretch": stretch,
            "device": device,
        },
        "parts": {
            name: [outcome.to_json(outcomes[0]) for outcome in outcomes]
            for name, outcomes in parts.items()
        },
    }
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(typer.run(main))
