"""When eviction pays: the share of the cache in the bytes of a token, and the planner's misses."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kvlab.fast.lab.drawing import INK, NARROW, RED, Picture, canvas, finish
from kvlab.fast.lab.tables import Column, Table, tabulate
from kvlab.reference.methods import takes_budget
from kvlab.reference.simulator.cost import Runtime
from kvlab.reference.simulator.sizes import HARDWARE, SHAPES, Shape
from study.benchmarks import with_limits
from study.speeds import GIB, planned
from study.stored import stored_file

MODEL, DEVICE, KEPT = "llama-3.1-8b", "h200", 1 / 4
HOST = 23
"""Microseconds in which the host launches a kernel, without graphs."""
LEVELS = (1.05, 1.1, 1.25, 1.5, 2, 3)
LENGTHS, TEXTS = (512, 131_072), (0.6, 512)
ON_THE_MAP = {
    **{"v100": "V100", "h100": "A100, H100", "h20": "H20", "h200": "H200"},
    **{"epyc-9654": "EPYC 9654"},
}
"""Devices, by how many entries they hold, and their names: an A100 holds as much as an H100."""
APART = 1.45
"""Factor between the places of two names at least."""


def weights_read(shape: Shape) -> float:
    """Return the bytes of weights that a token reads: of an embedding apart only its own row."""
    return shape.weight_bytes - (0 if shape.tied else 2 * shape.vocabulary * shape.hidden)


def most_gained(tokens: Any, texts: Any, shape: Shape, kept: float = KEPT) -> Any:
    """Return how many times as fast a token becomes at most with this share of the entries."""
    weights, cache = weights_read(shape), tokens * texts * shape.token_bytes
    return (weights + cache) / (weights + kept * cache)


def of_limits(texts: int) -> list[float]:
    """Return which percentages of its limit H2O reaches with so many texts at once."""
    return [100 * row["share_of_limit"] for row in h2o_on_the_h200() if row["batch"] == texts]


def drawn_map() -> Picture:
    """Draw what eviction to a quarter gains at most, over length and number of texts."""
    shape = SHAPES[MODEL]
    figure, (axes,) = canvas(width=NARROW, height=4.2)
    tokens, texts = (np.geomspace(*ends, 200) for ends in (LENGTHS, TEXTS))
    gains = most_gained(tokens[None], texts[:, None], shape)
    shades = [("tab:blue", share / 14) for share in range(len(LEVELS) + 1)]
    axes.contourf(tokens, texts, gains, (1, *LEVELS, 4), colors=shades)
    axes.contour(tokens, texts, gains, LEVELS, colors=INK, linewidths=0.6)
    for level in LEVELS:
        entries = entries_for(level, shape)
        place = min(entries / 5, 6e4)
        along(axes, f"{level:g} ×", place, entries / place, below=level < 2)
    place = 0.0
    for name, text in ON_THE_MAP.items():
        entries = (Runtime().memory_share * HARDWARE[name].memory - shape.weight_bytes) / (
            shape.token_bytes
        )
        axes.plot(tokens, entries / tokens, "--", color=RED, linewidth=0.9)
        place = max(place * APART, entries / LENGTHS[1])
        axes.text(1.15 * LENGTHS[1], place, text, fontsize=8, color=RED, va="center")
    axes.set(xscale="log", yscale="log", xlim=LENGTHS, ylim=TEXTS)
    axes.set_xticks([2**n for n in range(9, 18, 2)], [f"{2**n:,}" for n in range(9, 18, 2)])
    axes.set_yticks([2**n for n in range(0, 10, 2)], [str(2**n) for n in range(0, 10, 2)])
    axes.minorticks_off()
    axes.set_title(
        "Llama-3.1-8B, a quarter of the entries stays: speed-up by\n"
        "bytes alone (above a red line full caches do not fit)"
    )
    axes.set(xlabel="tokens of a text", ylabel="batch (texts at once)")
    return finish(
        figure,
        "How many times as fast bytes alone let a token of Llama-3.1-8B become if a quarter of the "
        "entries stays, over tokens of a text and texts at once. Dashed: the most full caches that "
        "a device holds.",
        "none",
    )


def along(axes: Any, text: str, tokens: float, texts: float, below: bool = False) -> None:
    """Write a text along a line of equally many entries."""
    slope = math.degrees(math.atan2(-texts, tokens))
    turned = {"rotation": slope, "transform_rotates_text": True, "rotation_mode": "anchor"}
    place = {"va": "top", "y": texts / 1.06} if below else {"va": "bottom", "y": texts * 1.03}
    axes.text(tokens, s=text, fontsize=8, color=INK, **turned, **place)


def entries_for(gain: float, shape: Shape, kept: float = KEPT) -> float:
    """Return the entries of all texts with which a token gains so much at most."""
    return weights_read(shape) * (gain - 1) / (1 - kept * gain) / shape.token_bytes


def h2o_on_the_h200() -> list[dict[str, Any]]:
    """Return the rows of H2O with a CUDA graph on the H200."""
    file = stored_file("benchmarks/end-to-end-gpu")
    rows = [row for part in ("one_text", "equal_memory") for row in with_limits(file, part)]
    return [row for row in rows if row["method"] == "h2o" and row["graphed"]]


def misses() -> Iterator[dict[str, Any]]:
    """Yield every row of a whole model on the H200 with what the planner says."""
    stored = stored_file("benchmarks/end-to-end-gpu")["parts"]
    for row in (row for part in stored.values() for row in part):
        if row["method"].startswith("kvpress"):
            continue
        spec = "full" if row["method"] == "stock" else row["method"]
        budget = row["prompt"] // 4 if takes_budget(spec) else row["prompt"]
        host = 0 if row["graphed"] else HOST
        plan = planned(spec, row["prompt"], 64, row["batch"], budget, DEVICE, host)
        model, measured = 1e3 * plan.decode_seconds / 64, row["quartiles"][1]
        peak = (plan.memory - plan.shape.weight_bytes) / GIB
        found = {"measured": measured, "model": model, "ratio": measured / model}
        yield {**row, **found, "peak": row["peak_bytes"] / GIB, "planned": peak}


def peak_missed() -> float:
    """Return by how many percent a peak of one text misses the planner's at most, but for R-KV."""
    rows = [row for row in misses() if row["batch"] == 1 and row["method"] != "rkv"]
    return max(abs(100 * row["peak"] / row["planned"] - 100) for row in rows)


def beside_the_planner(_: str) -> Table:
    """List these rows, those that miss most first."""
    rows = sorted(misses(), key=lambda row: -abs(math.log(row["ratio"])))
    columns = (
        Column(
            "method",
            lambda x: x["method"] + " (no control)" * (x["method"] == "stock" and x["graphed"]),
        ),
        Column("prompt", format=","),
        Column("texts", "batch"),
        Column("CUDA graph", lambda row: "yes" if row["graphed"] else "no"),
        Column("measured, ms", "measured", ".1f"),
        Column("model, ms", "model", ".1f"),
        Column("ratio", format=".2f"),
        Column("peak, GiB", "peak", ".1f"),
        Column("model, GiB", "planned", ".1f"),
    )
    return tabulate(rows, columns)


FUNCTIONS: Mapping[str, Any] = {each.__name__: each for each in (of_limits, peak_missed)}
"""What expressions of the ledger may call besides its own."""
