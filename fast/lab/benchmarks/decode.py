"""Decoding speed against the full cache and against kvpress.

    python -m kvlab.fast.lab.benchmarks.decode --kvpress VENV/bin/python --out result.json

Two questions. ``whole``: how fast is one long generation, prompt included, whose full cache keeps
growing? ``constant``: what does a step cost at `ENTRIES` entries, whatever the method? With
``--model`` there is a third instead, ``real``: how soon a language model writes its first token
after a long prompt, and how fast it goes on with a quarter of the entries. Every method takes part,
and two of them read the prompt in blocks, too. The limit is then the speed of a full cache of
transformers that never holds more than a quarter of the entries. With ``--host`` it is ``host``:
what a token costs in a model whose own work takes no time.

All contenders are measured in turn, in an order drawn anew for every round, so that a change of
the machine's speed meets all of them: shares of another's speed are to be taken within each round.
The first round is not timed: it warms up and notes what the caches hold.
``kvpress_contender.py`` says how to make the environment of kvpress.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kvlab.fast.lab.benchmarks.contenders import (
    Contender,
    KvpressWorker,
    Setting,
    kvlab,
    kvpress,
    stock,
)
from kvlab.fast.lab.benchmarks.noted import must_read, quartiles
from kvlab.fast.lab.benchmarks.results import Measure, run, run_benchmark
from kvlab.fast.lab.benchmarks.workload import DATA, ENTRIES, Outcome, Run, fetched, tiny_llama
from kvlab.fast.lab.loop import Step
from kvlab.fast.models import model_location

LAGGED = "lazy_eviction@window=32"
PER_STEP, OTHERS = (tuple(DATA["decode"][name]) for name in ("per_step", "others"))
"""Methods that act at every token; and only at some tokens: of 512, at several."""
HOSTED, HELD = tuple(DATA["decode"]["hosted"]), 32
"""Methods whose time on the host is measured, and entries that they keep."""
IN_BLOCKS = ("h2o", "tova")
BLOCK = 256
LAGGED_PRESSES = tuple(map(tuple, DATA["decode"]["lagged_presses"]))
"""Presses at LazyEviction's interval. LazyEviction keeps a record of attention between its events;
no press does: SnapKV and TOVA compute the attention of their last 16 queries or last query anew,
and ObservedAttention reads the last query's, for which every step needs eager attention."""
PER_STEP_PRESSES = tuple((press, 1) for press in DATA["decode"]["presses"])
"""The presses nearest to StreamingLLM, H2O (attention observed in eager mode), TOVA and CAOTE (a
score weighted by the effect of the values on the output). No press is near to RaaS or AhaKV."""


@dataclass(frozen=True)
class Part:
    """Generations that are compared with each other."""

    name: str
    with_prompt: bool
    full: Run
    compressed: Run
    methods: tuple[str, ...]
    presses: tuple[tuple[str, int], ...]
    repeats: int
    entries: int = ENTRIES
    warm_up: int | None = None
    """Tokens of the round that is not timed; None: as many as in timed rounds."""
    at_end: bool = False
    """Whether timed rounds say what a cache holds in the end; the first one then reads little."""

    def run(self, contender: Contender) -> Run:
        """Return the generation of a contender."""
        run = self.compressed if contender.compresses else self.full
        return replace(run, prompt=contender.prompt or run.prompt)


def constant(stretch: int, repeats: int) -> Part:
    """Return steps with `ENTRIES` entries throughout; a full cache holds as many on average."""
    full, compressed = (Run(entries, stretch) for entries in (ENTRIES - stretch // 2, ENTRIES))
    methods, presses = (*PER_STEP, LAGGED), (*PER_STEP_PRESSES, *LAGGED_PRESSES)
    return Part("constant", False, full, compressed, methods, presses, repeats)


def _whole(tokens: int, repeats: int) -> Part:
    run = Run(64, tokens)
    return Part("whole", True, run, run, (LAGGED,), LAGGED_PRESSES, repeats)


def _host(stretch: int, repeats: int) -> Part:
    """Return steps of a model so small that the host's work is all that takes time."""
    run = Run(HELD, stretch)
    return Part("host", False, run, run, HOSTED, (), repeats, HELD)


def real(length: int, tokens: int, repeats: int) -> Part:
    """Return what a language model writes after a prompt of ``length`` tokens."""
    run = Run(length, tokens)
    methods, presses = (*PER_STEP, LAGGED, *OTHERS), (*PER_STEP_PRESSES, ("snapkv", 32))
    return Part("real", False, run, run, methods, presses, repeats, length // 4, 2)


def _contenders(part: Part, setting: Setting, worker: KvpressWorker | None) -> Iterator[Contender]:
    yield stock(setting)
    if part.warm_up is not None:
        name = f"transformers full cache of {part.entries}"
        yield replace(stock(setting), name=name, prompt=part.entries)
    for method in ("full", *part.methods):
        yield kvlab(setting, method)
    for method in IN_BLOCKS if part.warm_up is not None else ():
        yield kvlab(setting, method, BLOCK)
    if worker is not None:
        yield kvpress(worker, setting)
        for press, interval in part.presses:
            yield kvpress(worker, setting, press, interval)


def measured(part: Part, several: Sequence[Contender], measure: Measure) -> list[dict[str, Any]]:
    """Measure contenders, the full cache of transformers first, in turn."""

    def step(contender: Contender, turn: int) -> Step:
        run = part.run(contender)
        if turn == 0:
            run = Run(64, 4) if part.at_end else replace(run, tokens=part.warm_up or run.tokens)
        return Step(name_of(contender, turn), partial(contender.measured, run, turn == 0))

    def name_of(contender: Contender, turn: int) -> str:
        return f"{part.name}, round {turn} of {part.repeats}, {contender.name}"

    steps, rounds = [step(each, 0) for each in several], range(1, part.repeats + 1)
    for turn in rounds:
        order = list(several)
        random.Random(turn - 1).shuffle(order)
        steps += [step(each, turn) for each in order]
    found = measure(steps, kind=Outcome)
    rows = []
    for each in several:
        held, *timings = (found[name_of(each, turn)] for turn in (0, *rounds))
        if part.at_end:
            held = timings[-1]
        run = part.run(each)
        size = held.entries, run.batch
        speeds = [timing.speed(part.with_prompt) for timing in timings]
        rows.append(
            {
                "name": each.name,
                "run": asdict(run),
                "peak": {"entries": held.entries, "bytes": held.bytes},
                "tokens_per_second": speeds,
                "first_seconds": [timing.first for timing in timings],
                "wall": [(timing.tokens - 1) / timing.wall for timing in timings],
                "quartiles": quartiles(speeds),
                "must_bytes": each.model and must_read(each.model, *size, held.bytes),
            }
        )
    return rows


def main(
    out: Path | None = None,
    kvpress: Path | None = None,
    repeats: int = 15,
    whole_repeats: int = 3,
    tokens: int = 4096,
    stretch: int = 128,
    threads: int = 1,
    device: str = "cpu",
    model: str | None = None,
    prompt: int = 2048,
    only: str | None = None,
    cpu_time: bool = False,
    host: bool = False,
) -> None:
    """Measure decoding speed."""
    asked = locals()
    torch.set_num_threads(threads)
    directory = str(model_location(model)) if model else ""
    worker, about = None, {"measured": False, "reason": "no environment given"}
    if kvpress is not None:
        worker = KvpressWorker(kvpress, device, str(threads), directory)
        about = {"measured": True, "versions": worker.versions}
    if model is not None:
        parts, network = [real(prompt, tokens, whole_repeats)], fetched(directory)
    elif host:
        parts, network = [_host(stretch, repeats)], tiny_llama(device, "host")
    else:
        parts = [constant(stretch, repeats), _whole(tokens, whole_repeats)]
        network = tiny_llama(device)
    several = {}
    for part in parts:
        first, *others = _contenders(part, Setting(network, part.entries, cpu_time), worker)
        chosen = [each for each in others if only is None or each.name in only.split(",")]
        several[part] = [first, *chosen]

    run_benchmark(
        "decode",
        device,
        {"entries": parts[0].entries, **asked},
        {"kvpress": about},
        lambda measure: {part.name: measured(part, of, measure) for part, of in several.items()},
    )


if __name__ == "__main__":
    run(main, "decode")
