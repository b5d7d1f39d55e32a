"""The papers' own figures of memory and time beside those of the cost model.

    python -m study.planner_figures docs/study/results/planner_figures.md

writes the table of the documentation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from kvlab.fast.lab.tables import Column, Table, tabulate
from kvlab.reference import methods
from kvlab.reference.files import printed_tables
from kvlab.reference.simulator.cost import Plan, Runtime
from kvlab.reference.simulator.sizes import HARDWARE, SHAPES

THOUSAND_MIB = 1000 * 2**20
"""What DesireKV calls GB: 8 sequences of 32,768 tokens are 32,768 MiB, and 32.8 is printed."""
PROMPT = 128
"""Neither paper says how long its prompts are."""


@dataclass(frozen=True)
class PaperFigure:
    """A printed figure, and what the cost model says."""

    source: str
    what: str
    printed: float
    modelled: float
    unit: str
    note: str = ""
    paper: str = "LazyEviction"


def all_figures() -> Iterator[PaperFigure]:
    """Yield figures of the papers beside those of the cost model."""
    for each in (*desirekv_memory(), desirekv_throughput()):
        yield replace(each, paper="DesireKV")
    yield from (*lazy_eviction_memory(), *table_7(), *table_8())


# --- DesireKV ------------------------------------------------------------------------------------


@cache
def desirekv_plan(spec: str) -> Plan:
    """DesireKV §5.3: its 8B model writes until 32,768 tokens are reached, on an H20."""
    generated = 32768 - PROMPT
    return Plan(SHAPES["llama-3.1-8b"], HARDWARE["h20"], methods.get(spec), PROMPT, generated, 8)


def final_bytes(spec: str) -> float:
    """Weights and cache after the last token, as the paper counts them."""
    plan = desirekv_plan(spec)
    per_head = plan.held.elements(plan.shape.head_dim)[-1] / 8
    cache_bytes = plan.batch * plan.shape.layers * plan.shape.kv_heads * per_head
    return float(plan.shape.weight_bytes + cache_bytes)


def desirekv_memory() -> Iterator[PaperFigure]:
    """§1 and §5.3: what the cache takes, and what is saved."""
    full, rpc, desirekv = map(final_bytes, ("full", "rpc", "desirekv"))
    weights = SHAPES["llama-3.1-8b"].weight_bytes
    sizes = {
        "KV cache, batch 8 × 32,768": (32.8, full - weights),
        "weights": (15.5, weights),
        "together": (48.3, full),
    }
    for what, (printed, modelled) in sizes.items():
        yield PaperFigure("§1, Fig. 1", what, printed, modelled / THOUSAND_MIB, "thousand MiB")
    note = "P = 1024, R = 32; the paper chose them per data set"
    yield PaperFigure("§5.3", "saved by rpc", 49.7, 100 * (1 - rpc / full), "%", note)
    yield PaperFigure("§5.3", "saved by desirekv", 55.0, 100 * (1 - desirekv / full), "%", note)
    further = 100 * (1 - desirekv / rpc)
    yield PaperFigure("§5.3", "saved by desirekv beyond rpc", 11.6, further, "%")


def desirekv_throughput() -> PaperFigure:
    """§5.3: tokens per second with as many sequences as fit into 96 GB."""
    full, compressed = (
        replace(desirekv_plan(spec), runtime=Runtime(memory_share=1.0))
        for spec in ("full", "desirekv")
    )
    rates = [plan.with_batch(plan.largest_batch).tokens_per_second for plan in (full, compressed)]
    what = "throughput over that of the full cache, 96 GB"
    note = (
        f"batch {full.largest_batch} and {compressed.largest_batch}; the model's kernels read "
        "packed entries as fast as plain ones"
    )
    return PaperFigure("§5.3, Fig. 5b", what, 2.931, rates[1] / rates[0], "times", note)


# --- LazyEviction --------------------------------------------------------------------------------


def lazy_eviction_memory() -> Iterator[PaperFigure]:
    """§1, and the shape of Fig. 6: level once the budget is reached, but for the window."""
    for name in ("llama-3.1-8b", "qwen2.5-7b", "qwen3-4b", "qwq-32b"):
        what = f"KV cache of {name}, batch 32 × 16,384 (printed: more than)"
        size = SHAPES[name].token_bytes * 32 * 16384 / 1e9
        yield PaperFigure("§1", what, 100.0, size, "GB")
    policy, device = methods.get("lazy_eviction", 4096), HARDWARE["v100"]
    plan = Plan(SHAPES["qwen2.5-7b"], device, policy, PROMPT, 8192 - PROMPT)
    level = plan.held.attended[2 * 4096 - 256 :]
    what = "most over least entries once the budget is reached (printed: minor fluctuations)"
    yield PaperFigure("§5.2, Fig. 6", what, 1.0, float(level.max() / level.min()), "times")


TABLES = printed_tables("lazy_eviction")
STEPS = TABLES["latency"]["step"]
ROWS = {"full": "FullKV", "tova": "TOVA", "lazy_eviction": "LazyEviction"}
"""Registry name → row of the paper's tables."""


def printed_milliseconds(length: int, spec: str) -> tuple[float, str]:
    """Return Table 8's figure at a budget of half the length, and a note on the figure.

    One of nine rows contradicts itself (claim LE-12c): its throughput counts, the note has both.
    """
    throughput, latency = TABLES["throughput"][str(length)][ROWS[spec]]
    if abs(throughput * latency / 1000 - 1) <= 0.01:
        return latency, ""
    inverse = round(1000 / throughput, 2)
    return inverse, f"{latency} is printed, and {throughput} tokens/s, which are {inverse}"


def latency_plan(spec: str, length: int, runtime: Runtime) -> Plan:
    """One sequence on a V100; of the paper's models only Qwen3-4B can be read in 16 ms there."""
    policy = methods.get(spec, None if spec == "full" else length // 2)
    shape, device = SHAPES["qwen3-4b"], HARDWARE["v100"]
    return Plan(shape, device, policy, PROMPT, length - PROMPT, 1, None, runtime)


@cache
def fitted_runtime() -> Runtime:
    """Find the two numbers that the paper does not give, from two entries of Table 7's first row.

    The host's time per launch makes the full cache take 16.46 ms at 2K, and how often the cache is
    moved per token makes it take 27.14 ms at 16K. All other entries are predictions.
    """
    plain = Runtime()
    plan = latency_plan("full", STEPS[-1], plain)
    attention = plan.kernels["attention"]
    cache_seconds = attention.bytes[-1] / (plan.hardware.bandwidth * plain.bandwidth_share)
    rest = plan.step_seconds[-1] - cache_seconds
    full = TABLES["latency"][ROWS["full"]]
    first, last = full[0] / 1e3, full[-1] / 1e3
    return replace(plain, host=first / plan.launches[0], passes=(last - rest) / cache_seconds)


def table_7() -> Iterator[PaperFigure]:
    """Appendix E.2: milliseconds of single steps; two of them are fitted."""
    runtime = fitted_runtime()
    host, passes = 1e6 * runtime.host, runtime.passes
    fitted = f"fitted: host {host:.0f} µs per kernel, cache moved {passes:.1f} times a token"
    for spec in ("full", "lazy_eviction"):
        seconds = latency_plan(spec, STEPS[-1], runtime).step_seconds
        for step, printed in zip(STEPS, TABLES["latency"][ROWS[spec]], strict=True):
            mean = 1e3 * float(np.mean(seconds[step - PROMPT - 25 : step - PROMPT]))
            note = fitted if spec == "full" and step in (STEPS[0], STEPS[-1]) else ""
            yield PaperFigure("Table 7", f"{spec}, token {step}", printed, mean, "ms", note)


def table_8() -> Iterator[PaperFigure]:
    """Appendix E.2: mean milliseconds of a token."""
    for length, spec in product((4096, 8192, 16384), ROWS):
        milliseconds, note = printed_milliseconds(length, spec)
        mean = 1e3 * float(latency_plan(spec, length, fitted_runtime()).step_seconds.mean())
        yield PaperFigure("Table 8", f"{spec}, {length} tokens", milliseconds, mean, "ms", note)


def figures_table(found: Sequence[PaperFigure]) -> Table:
    """Lay the figures out."""
    columns = (
        Column("paper"),
        Column("where", "source"),
        Column("figure", lambda each: f"{each.what}; {each.note}" if each.note else each.what),
        Column("printed", lambda each: f"{each.printed:g} {each.unit}"),
        Column("model", "modelled", ".4g"),
        Column("ratio", lambda each: each.modelled / each.printed, ".2f"),
    )
    return tabulate(found, columns, words=3)


def main(out: Annotated[Path, typer.Argument(help="Where the table is written.")]) -> None:
    """Write the table."""
    out.write_text(f"{figures_table([*all_figures()]).markdown()}\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
