"""``kvlab simulate``: replay a trace under methods and budgets. Needs the reference alone."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich import box
from rich.table import Table

from kvlab.fast.commands.terminal import AsJson, console, progress
from kvlab.fast.evaluate.compare import takes_budget
from kvlab.reference import methods as registry
from kvlab.reference.selection import budget_entries
from kvlab.reference.simulator.oracle import mass_bounds
from kvlab.reference.simulator.replay import Fate, replay
from kvlab.reference.simulator.trace import Trace, load

DEFAULT_METHODS = "streaming_llm tova h2o caote:h2o lazy_eviction@window=16,threshold=0.01"


@dataclass(frozen=True)
class Summary:
    """One method at one budget, over layers, KV heads and generated tokens."""

    method: str
    budget: int | None
    entries: float
    """Largest number per KV head."""
    kilobytes: float
    """Of keys and values at that time, all recorded layers and heads."""
    mass: float
    """Mean share of the full cache's attention that falls on what is there."""
    error: float
    """Mean relative error of the attention output."""
    bound: float
    """The most that any keep sets of ``entries`` entries could hold of the attention."""


def simulate(
    trace: Annotated[Path, typer.Argument(help="Trace, as `kvlab trace` writes it.")],
    methods: Annotated[
        str, typer.Option(help="Registry syntax, separated by ';' or blanks.")
    ] = DEFAULT_METHODS,
    budget: Annotated[
        list[str] | None,
        typer.Option(help="Entries, or percent of the trace's tokens; may be repeated."),
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(help="Tokens per block of the prompt; default: all at once.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = os.cpu_count() or 1,
    as_json: AsJson = False,
) -> None:
    """Ask what methods would have kept of a recorded generation, and what that would have cost."""
    recorded = load(trace)
    tokens = recorded.queries.shape[3]
    if recorded.prompt == tokens:
        raise ValueError(f"{trace} holds a prompt of {tokens} tokens and nothing generated")
    budgets = sorted({budget_entries(text, tokens) for text in budget or ("50%", "70%")})
    asked = [
        (spec, entries)
        for spec in methods.replace(";", " ").split()
        for entries in (budgets if takes_budget(spec) else [None])
    ]
    if not asked:
        raise ValueError("methods must name at least one method")
    policies = [registry.get(spec, entries) for spec, entries in asked]
    layers = []
    with progress(transient=True) as bar:
        task = bar.add_task("layers", total=len(recorded.queries))
        for fates in replay(recorded, policies, block_size, workers):
            layers.append(fates)
            bar.advance(task)
    found = summaries(recorded, asked, layers)
    if as_json:
        print(json.dumps([asdict(each) for each in found], indent=1))
        return
    console.print(table(recorded, found))
    console.print(CAPTION, style="dim")


CAPTION = (
    "over the generated tokens, all recorded layers and KV heads · entries, KiB: largest · mass: "
    "share of the full cache's attention on what is there · bound: the most that so many entries "
    "could hold if they were chosen anew for every token · error: attention output, relative"
)


def summaries(
    trace: Trace, asked: Sequence[tuple[str, int | None]], layers: Sequence[Sequence[Fate]]
) -> list[Summary]:
    """Sum up every method."""
    generated, heads = slice(trace.prompt, None), trace.keys.shape[1]
    largest = [
        max(int(fates[row].entries[generated].max()) for fates in layers)
        for row in range(len(asked))
    ]
    sizes = sorted(set(largest))
    bounds = np.mean([b[..., generated].mean(axis=(1, 2)) for b in mass_bounds(trace, sizes)], 0)
    best = dict(zip(sizes, bounds.tolist(), strict=True))
    found = []
    for row, (spec, budget) in enumerate(asked):
        own = [fates[row] for fates in layers]
        bits = np.sum([fate.bits[generated] for fate in own], axis=0) * heads
        found.append(
            Summary(
                spec,
                budget,
                largest[row],
                float(bits.max()) / 8 / 1024,
                float(np.mean([fate.mass[:, generated].mean() for fate in own])),
                float(np.mean([fate.error[:, generated].mean() for fate in own])),
                best[largest[row]],
            )
        )
    return found


def table(trace: Trace, found: Sequence[Summary]) -> Table:
    """Lay the figures out."""
    tokens = trace.queries.shape[3]
    title = (
        f"{trace.metadata.model}: {trace.prompt} tokens given, {tokens - trace.prompt} generated"
    )
    result = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    result.add_column("method", overflow="fold")
    for name in ("budget", "entries", "KiB", "mass", "bound", "error"):
        result.add_column(name, justify="right", no_wrap=True)
    for each in found:
        result.add_row(
            each.method,
            "own rule" if each.budget is None else str(each.budget),
            f"{each.entries:.0f}",
            f"{each.kilobytes:.0f}",
            f"{each.mass:.4f}",
            f"{each.bound:.4f}",
            f"{each.error:.4f}",
        )
    return result
