"""Throughput of vLLM, of which kvlab evicts blocks, by the memory that it may use.

    python -m kvlab.fast.lab.benchmarks.vllm --out result.json

All requests come at once; each has a random prompt. Pools of blocks are shares of what all need
together. Methods keep a quarter of a request. Every row is a process of its own, with one thread;
loading the model is not counted. Speeds are of CPU time, and by the clock.
"""

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import typer
from transformers import AutoConfig

from kvlab.fast.lab import engines
from kvlab.fast.lab.benchmarks.results import Out, measuring, write
from kvlab.fast.lab.benchmarks.workload import VOCABULARY, Run, drawn
from kvlab.fast.models import model_location

SCHEMA = 1
BLOCK = 32
SHARES = (1.0, 0.5, 0.25)
METHODS = ("streaming_llm@protected=first4", "tova", "h2o", "caote:h2o")
WITHOUT, INSTALLED = "full, without the plug-in", "full, the plug-in not configured"


def _rows() -> Iterator[tuple[float, str]]:
    for share in SHARES:
        yield share, WITHOUT
        if share == 1:
            yield share, INSTALLED
        yield from ((share, method) for method in METHODS)


def _settings(run: Run, share: float, method: str) -> dict[str, Any]:
    """Return the settings of vLLM's worker; one block is vLLM's own."""
    needed = run.batch * -(-(run.prompt + run.tokens) // BLOCK)
    settings: dict[str, Any] = {
        "block_size": BLOCK,
        "enable_prefix_caching": True,
        "max_num_seqs": run.batch,
        "num_gpu_blocks_override": int(needed * share) + 1,
        "without_plugin": method == WITHOUT,
    }
    if method in METHODS:
        settings |= engines.plugged(method, (run.prompt + run.tokens) // 4)
    return settings


def _measured(model: str, run: Run, share: float, method: str) -> dict[str, Any]:
    known = min(VOCABULARY, AutoConfig.from_pretrained(model).vocab_size)
    asked = {"weights": model, "prompts": drawn(run, known).tolist(), "tokens": run.tokens}
    asked |= {"settings": _settings(run, share, method), "timed": True}
    found = engines.generate("vllm", asked)
    cpu, wall = (after - before for before, after in zip(*found["times"], strict=True))
    row = {"share": share, "method": method, "cpu_seconds": cpu, "seconds": wall}
    for name, seconds in (("of_cpu_time", cpu), ("by_the_clock", wall)):
        row[f"requests_per_second_{name}"] = run.batch / seconds
        row[f"tokens_per_second_{name}"] = run.batch * run.tokens / seconds
    return row | {name: found[name] for name in ("preempted", "at_once", "version")}


def main(
    model: str = "smollm2",
    requests: int = 12,
    prompt: int = 256,
    written: int = 256,
    out: Out = None,
) -> None:
    """Measure so many requests of one length."""
    engines.launch("vllm")
    location = model_location(model)
    run, rows = Run(prompt, written, requests), list(_rows())
    asked = {"model": model, "requests": requests, "prompt": prompt, "written": written}
    with measuring(out, asked, "cpu", len(rows)) as once:
        found = [
            once(
                f"{method} at {share} of the memory",
                partial(_measured, location, run, share, method),
            )
            for share, method in rows
        ]
        write(SCHEMA, "cpu", {"parameters": asked, "block": BLOCK, "rows": found}, out)


if __name__ == "__main__":
    sys.exit(typer.run(main))
