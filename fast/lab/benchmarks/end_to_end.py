"""Decoding with a model of 8B shape: tokens per second and memory, with CUDA graphs and without.

    python -m kvlab.fast.lab.benchmarks.end_to_end --out end-to-end-gpu.json

The model has the shape of Llama-3.1-8B and random weights in bfloat16. Speed does not depend on the
weights where the number of kept entries does not; DesireKV's does, so what its cache holds is
reported, too. ``one_text``: after prompts of several lengths, of which methods keep a quarter.
``equal_memory``: as many texts of the first length as fit into the same memory.

``graphed`` methods replay tokens (`compress(graphs=True)`). Their control is ``full`` with graphs,
that of the others ``full`` without. The limit of a row is what must be read, weights and entries,
over the speed at which this device copies. ``--small`` runs a tiny model on any device: its times
mean nothing.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from kvlab.fast import compress
from kvlab.fast.huggingface import graphs
from kvlab.fast.lab.benchmarks.kernels import copying
from kvlab.fast.lab.benchmarks.noted import must_read, profiled, quartiles
from kvlab.fast.lab.benchmarks.results import Measure, gpu_or_small, run, run_benchmark
from kvlab.fast.lab.benchmarks.workload import DATA, Run, drawn, held_by, random_llama, tiny_llama
from kvlab.fast.lab.loop import Step
from kvlab.reference.methods import takes_budget

STOCK = "stock"
GRAPHED, OTHERS, PRESSES = map(DATA["end_to_end"].get, ("graphed", "others", "presses"))
"""Methods whose tokens can be captured; other methods; and presses, measured where kvpress is
installed, which evict once, after the prompt."""
WARM_UP, TIMED, ROUNDS = 10, 12, 3
"""Tokens before any is timed, tokens of a round, and rounds, of which the median counts."""
SHARE = 4
"""A method keeps one of so many tokens of a prompt."""
CAP = 2**33
"""Bytes that caches may hold in ``equal_memory``: as many as 16 full caches of 4,096 tokens."""
COPIED = 2**30, 2**26
"""Bytes whose copying is timed, and of a small case."""
MOST = 64
"""Most texts at once."""

Token = Callable[[Tensor], Tensor]


def _next(model: Any, cache: Any, tokens: Tensor) -> Tensor:
    logits = model(tokens, past_key_values=cache, logits_to_keep=1).logits
    return logits[:, -1:].argmax(dim=-1)


def _timed(token: Token, tokens: Tensor) -> list[float]:
    """Return the seconds per token of every round."""
    seconds = []
    for number in range(1 + ROUNDS):
        _wait(tokens)
        began, count = time.perf_counter(), TIMED if number else WARM_UP
        for _ in range(count):
            tokens = token(tokens)
        _wait(tokens)
        seconds.append((time.perf_counter() - began) / count)
    return seconds[1:]


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


@torch.no_grad()
def measure(
    model: Any,
    method: str,
    length: int,
    batch: int,
    graphed: bool,
    block_size: int | None = None,
    by_kernel: bool = False,
) -> dict[str, Any]:
    """Read a prompt, write tokens, and say how fast that was and what was allocated for it.

    Args:
        model: of transformers.
        method: with its options, or `STOCK`, or one of `PRESSES`.
        length: tokens of each prompt.
        batch: texts at once.
        graphed: whether tokens are captured.
        block_size: tokens that are read at once, of all texts together; None: all. Only methods
            read in blocks.
        by_kernel: whether a token is profiled.
    """
    prompt = drawn(Run(length, 0, batch), model.config.vocab_size).to(model.device)
    found: dict[str, Any] = {"method": method, "prompt": length, "batch": batch, "graphed": graphed}
    before = torch.cuda.memory_allocated() if model.device.type == "cuda" else 0
    if before:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    with ExitStack() as stack:
        press = nullcontext()
        if method == STOCK or method in PRESSES:
            cache: Any = DynamicCache(config=model.config)
            press = press if method == STOCK else _press(method)(model)
        else:
            found["budget"] = length // SHARE if takes_budget(method) else None
            read_at_once = block_size and max(1, block_size // batch)
            made = compress(model, method, found["budget"], graphs=graphed, block_size=read_at_once)
            cache = stack.enter_context(made)
        token = partial(_next, model, cache)
        with press:
            first = token(prompt)
        _wait(first)
        found["read_seconds"] = time.perf_counter() - began
        found["backends"] = profiled(partial(token, first))[1]
        rounds = found["ms_per_token"] = [1e3 * x for x in _timed(token, first)]
        found["quartiles"] = quartiles(rounds)
        found["tokens_per_second"] = 1e3 * batch / found["quartiles"][1]
        entries, held = held_by(cache)
        found |= {"entries": entries, "cache_bytes": held}
        found["must_bytes"] = must_read(model, entries, batch, held)
        for name, key in (("allocated_bytes", "current"), ("peak_bytes", "peak")):
            counted = torch.cuda.memory_stats().get(f"allocated_bytes.all.{key}", 0)
            found[name] = counted - before if before else None
        if by_kernel:
            found["profile"] = profiled(partial(token, first))[0]
    return found


def _press(name: str) -> Any:
    """Return a press of kvpress that keeps what methods keep."""
    import kvpress  # type: ignore[import-not-found]

    return getattr(kvpress, name.partition(":")[2])(compression_ratio=1 - 1 / SHARE)


def several(lengths: Sequence[int]) -> Iterator[tuple[str, int, bool]]:
    """Yield what is measured with one text: method, length of the prompt, and whether by graphs."""
    for length in lengths:
        yield from ((method, length, True) for method in GRAPHED)
        presses = PRESSES if find_spec("kvpress") else ()
        yield from ((method, length, False) for method in (STOCK, *GRAPHED, *OTHERS, *presses))


def main(
    lengths: str = "4096,16384,32768",
    cap: int = CAP,
    only: str = "",
    block_size: int | None = None,
    profile: bool = False,
    small: bool = False,
    out: Path | None = None,
) -> None:
    """Measure how fast a model of 8B shape decodes."""
    asked, device = locals(), gpu_or_small("end_to_end", small)
    prompts = [64] if small else [int(length) for length in lengths.split(",")]
    most = 2 if small else MOST
    model = (
        tiny_llama(device) if small else random_llama(device, torch.bfloat16, **DATA["llama"]["8b"])
    )
    captured = device in graphs.DEVICES
    asked_for = only.split(",") if only else ["full", "h2o"] if small else None
    rows = [row for row in several(prompts) if asked_for is None or row[0] in asked_for]
    rows = [row for row in rows if captured or not row[2]]
    about: dict[str, Any] = {"cap_bytes": cap}  # by which a stopped run is found again

    def step(method: str, length: int, batch: int, graphed: bool) -> Step:
        name = f"{method}, {batch} texts of {length:,} tokens{', graphed' if graphed else ''}"
        given = method, length, batch, graphed, block_size, profile
        return Step(name, partial(measure, model, *given))

    def parts(run: Measure) -> dict[str, list[dict[str, Any]]]:
        about["copied_bytes_per_second"] = copying(device, 10, COPIED[small])
        alone = list(run([step(method, n, 1, graphed) for method, n, graphed in rows]).values())
        bytes_of = {x["method"]: x["cache_bytes"] for x in alone if x["prompt"] == prompts[0]}
        together = []
        for method, one in bytes_of.items():
            if method not in PRESSES:
                graphed = captured and method in GRAPHED
                together.append(step(method, prompts[0], max(1, min(most, cap // one)), graphed))
        return {"one_text": alone, "equal_memory": list(run(together).values())}

    run_benchmark("end_to_end", device, asked, about, parts)


if __name__ == "__main__":
    run(main, "end_to_end")
