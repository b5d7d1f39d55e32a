"""Throughput of vLLM, of which kvlab evicts blocks, by the memory that it may use.

    python -m kvlab.fast.lab.benchmarks.vllm --out result.json

All requests come at once; each is a passage of a novel. Pools of blocks are shares of what all need
together. Methods keep a quarter of a request; with ``block_size``, by which they evict within
prompts, too, they hold at most a quarter. Every row is a process of its own, with one thread;
loading the model is not counted. Rounds measure all rows in turn; speeds are of CPU time, and by
the clock. ``accepted`` is the share of what a method wrote that the full cache finds likeliest,
after the same tokens. ``must_bytes`` are those that a token of all requests at once reads:
weights, and entries, on average over the text, or as many as a method keeps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig

from kvlab.fast.lab import engines
from kvlab.fast.lab.benchmarks.noted import must_read
from kvlab.fast.lab.benchmarks.results import Measure, run, run_benchmark
from kvlab.fast.lab.benchmarks.workload import VOCABULARY, Run, drawn, fetched
from kvlab.fast.lab.loop import Step
from kvlab.fast.models import model_location
from kvlab.reference.tasks import english
from kvlab.reference.transformer import load_tokenizer

BLOCK = 32
SHARES = "1,0.5,0.25"
METHODS = ("streaming_llm@protected=first4", "random:h2o", "tova", "h2o", "caote:h2o")
"""One of them is the control: random eviction that protects what H2O protects."""
WITHOUT, INSTALLED = "full, without the plug-in", "full, the plug-in not configured"
KEPT = ("at_once", "preempted", "blocks", "version")
"""What a row keeps of what vLLM's worker tells, besides its times."""


def rows(shares: str, methods: Sequence[str]) -> Iterator[tuple[float, str]]:
    """Yield shares of the memory, and what runs in it."""
    for share in map(float, shares.split(",")):
        yield share, WITHOUT
        if share == 1:
            yield share, INSTALLED
        yield from ((share, method) for method in methods)


@dataclass(frozen=True)
class Served:
    """Requests of one length, and the model that answers them."""

    location: Path
    run: Run
    rows: Sequence[Any] = ()
    block_size: int = 0

    @cached_property
    def prompts(self) -> Any:
        """Passages; random tokens for a model without a tokenizer."""
        length = self.run.prompt
        if not (self.location / "tokenizer.json").is_file():
            known = AutoConfig.from_pretrained(self.location).vocab_size
            return drawn(self.run, min(VOCABULARY, known)).tolist()
        encode = load_tokenizer(self.location).encode
        seeds = map(np.random.default_rng, range(self.run.batch))
        return [encode(english.passage(seed, length + 100)).ids[:length] for seed in seeds]

    def written(self, share: float, method: str) -> Any:
        """Let vLLM answer all; one block of its pool is its own."""
        length = self.run.prompt + self.run.tokens
        needed = self.run.batch * -(-length // BLOCK)
        settings: dict[str, Any] = {
            "block_size": BLOCK,
            "enable_prefix_caching": True,
            "max_num_seqs": self.run.batch,
            "num_gpu_blocks_override": int(needed * share) + 1,
            "without_plugin": method == WITHOUT,
        }
        if "full" not in method:
            within = {"block_size": self.block_size} if self.block_size else {}
            budget = length // 4 // BLOCK * BLOCK - self.block_size
            settings |= engines.plugged(method, budget, **within)
        asked = {"weights": str(self.location), "prompts": self.prompts, "tokens": self.run.tokens}
        return engines.generate("vllm", {**asked, "settings": settings, "timed": True})

    @cached_property
    def model(self) -> Any:
        """The model in transformers."""
        return fetched(str(self.location))

    @torch.inference_mode()
    def accepted(self, texts: Sequence[Sequence[int]]) -> float:
        """Return the share of the tokens of texts that the full cache finds likeliest."""
        right = []
        for prompt, text in zip(self.prompts, texts, strict=True):
            logits = self.model(torch.tensor([[*prompt, *text]])).logits[0, len(prompt) - 1 : -1]
            right.append((logits.argmax(dim=-1) == torch.tensor(text)).float().mean())
        return float(torch.stack(right).mean())


def measured(served: Served, rounds: int, measure: Measure) -> Any:
    """Return what was measured of every row, in so many rounds."""
    length, rows, run = f"{served.run.prompt} tokens", served.rows, served.run
    written = measure(
        Step(
            f"{row[1]} at {row[0]} of the memory, {length}, round {n}",
            partial(served.written, *row),
        )
        for n in range(1, rounds + 1)
        for row in rows
    )
    found = {row: [*written.values()][n :: len(rows)] for n, row in enumerate(rows)}
    spent = {
        row: np.diff([x["times"] for x in found[row]], axis=1)[:, 0].T.tolist() for row in rows
    }
    first = {row[1]: row for row in rows[::-1] if "full" not in row[1]}
    accepted = measure(
        Step(f"{method}, {length}, accepted", partial(served.accepted, found[row][0]["tokens"]))
        for method, row in first.items()
    )
    entries = run.prompt + run.tokens / 2, (run.prompt + run.tokens) // 4

    return [
        {
            "share": share,
            "method": method,
            **dict(zip(("cpu_seconds", "seconds"), spent[share, method], strict=True)),
            "accepted": accepted.get(f"{method}, {length}, accepted"),
            **{name: each[0][name] for name in KEPT},
            "must_bytes": must_read(served.model, entries[method in first], each[0]["at_once"]),
        }
        for (share, method), each in found.items()
    ]


def main(
    model: str = "smollm2",
    requests: int = 8,
    prompts: str = "256,1024",
    written: int = 256,
    rounds: int = 2,
    shares: str = SHARES,
    methods: str = " ".join(METHODS),
    block_size: int = 0,
    out: Path | None = None,
) -> None:
    """Measure so many requests of each of these lengths."""
    asked = locals()
    engines.launch("vllm")
    location = Path(model_location(model))
    every = [*rows(shares, methods.split())]

    def parts(measure: Measure) -> Any:
        runs = (Run(int(each), written, requests) for each in prompts.split(","))
        served = (Served(location, run, every, block_size) for run in runs)
        return {str(each.run.prompt): measured(each, rounds, measure) for each in served}

    run_benchmark("vllm", "cpu", asked, {"block": BLOCK}, parts)


if __name__ == "__main__":
    run(main, "vllm")
