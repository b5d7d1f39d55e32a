"""What eviction gained where it was measured: a sorted dot plot that a phone's page holds.

Each dot is tokens per second over those of the full cache in the same machinery.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import product
from typing import Any

from kvlab.fast.lab.drawing import Picture
from study.main_result import BLUE, GREY, WIDTH, framed, text
from study.speeds import at_once_in_blocks, in_blocks
from study.stored import plain_name, stored_file

ROW = 16
"""Pixels of a method."""
ROUNDS = "benchmarks/decode-smollm2-rounds-cpu"
"""The file of SmolLM2 in transformers."""
LEFT, LENGTH = 130, 204
"""Where the axis begins, and how long it is."""
ENDS, TICKS = (0.8, 6), (1, 1.5, 2, 3, 4, 5)
LEGEND = (
    "Dot: median; bar: lowest to highest round; blue: all above 1.",
    "Ring, the limit: on the CPU a full cache of as few entries, on",
    "the H200 bytes alone, which launching's noise can exceed.",
    "A quarter of the entries is kept. On the H200 a model has the",
    "shape of Llama-3.1-8B and random weights.",
)


@dataclass(frozen=True)
class Gain:
    """A method's tokens per second, as a multiple of the full cache's."""

    method: str
    median: float
    low: float
    """Of the rounds."""
    high: float
    limit: float | None = None
    """What bytes alone allow, or a full cache of as few entries."""


@dataclass(frozen=True)
class Setting:
    """What was measured in one machinery."""

    lines: Sequence[str]
    gains: Sequence[Gain]


def on_the_h200(part: str, **asked: Any) -> dict[str, dict[str, Any]]:
    """Return the rows without CUDA graphs by their methods."""
    rows = stored_file("benchmarks/end-to-end-gpu")["parts"][part]
    found = (row for row in rows if not row["graphed"] and asked.items() <= row.items())
    return {row["method"]: row for row in found}


def of_rows(rows: Mapping[str, dict[str, Any]], methods: Sequence[str]) -> list[Gain]:
    """Return gains over the full cache; rounds are no pairs here, so all of them are compared."""
    return [of_row(rows[method], rows["full"]) for method in methods]


def of_row(row: Mapping[str, Any], full: Mapping[str, Any]) -> Gain:
    """Return what a row gains, and what its bytes and its number of texts allow."""
    texts = row["batch"] / full["batch"]
    rounds = product(full["ms_per_token"], row["ms_per_token"])
    ratios = [texts * its / mine for its, mine in rounds]
    median = row["tokens_per_second"] / full["tokens_per_second"]
    limit = texts * full["must_bytes"] / row["must_bytes"]
    return Gain(row["method"], median, min(ratios), max(ratios), limit)


def on_a_cpu() -> list[Gain]:
    """Return gains of SmolLM2 in transformers over kvlab's full cache, round by round.

    Their limit is transformers' full cache with as few entries.
    """
    stored = stored_file(ROUNDS)
    rows = {row["name"]: row["tokens_per_second"] for row in stored["parts"]["real"]}
    full = rows.pop("kvlab full")
    gains = {
        name: of_rounds(name.removeprefix("kvlab "), [a / b for a, b in zip(x, full, strict=True)])
        for name, x in rows.items()
    }
    limit = gains[f"transformers full cache of {stored['parameters']['entries']}"].median
    return [replace(x, limit=limit) for name, x in gains.items() if name.startswith("kvlab")]


def in_vllm(share: float) -> list[Gain]:
    """Return gains of SmolLM2 in vLLM over its full cache with as much memory, round by round."""
    rows = (row for row in in_blocks() if row["share"] == share and row["blocks"])
    return [of_rounds(row["method"].partition("@")[0], row["rounds"]) for row in rows]


def of_rounds(method: str, ratios: Sequence[float]) -> Gain:
    """Return the gain of rounds that were paired."""
    return Gain(method, statistics.median(ratios), min(ratios), max(ratios))


def settings() -> Mapping[str, Sequence[Setting]]:
    """Return what was measured, by what eviction spares."""
    vllm = stored_file("vllm_in_blocks")["parameters"]
    tokens, requests = int(vllm["prompts"]) + vllm["written"], vllm["requests"]
    served = f"SmolLM2 in vLLM, CPU, texts of {tokens:,} tokens:"
    alone = at_once_in_blocks()
    read = stored_file(ROUNDS)["parameters"]["prompt"]
    together, one = on_the_h200("equal_memory"), on_the_h200("one_text", prompt=32_768)
    texts = {method: row["batch"] for method, row in together.items()}
    return {
        "Same memory, more texts": (
            Setting(
                (served, f"memory for one full cache: {requests} texts at once, not {alone}"),
                in_vllm(0.25),
            ),
        ),
        "As many texts, less to read": (
            Setting((f"SmolLM2, CPU, one text of {read:,} tokens",), on_a_cpu()),
            Setting((served, f"memory for all {requests} full caches"), in_vllm(1.0)),
        ),
        "H200, no CUDA graph: launching takes most time": (
            Setting(
                (
                    f"{texts['lazy_eviction']} texts of {together['full']['prompt']:,} tokens "
                    f"(SnapKV {texts['snapkv']}) against {texts['full']} full",
                    "caches, as much memory once prompts are read",
                ),
                of_rows(together, ("lazy_eviction", "snapkv")),
            ),
            Setting(
                (f"one text of {one['full']['prompt']:,} tokens",),
                of_rows(one, ("h2o", "caote:h2o")),
            ),
        ),
    }


def drawn_gains() -> Picture:
    """Draw every gain as a dot, between its rounds, those of a setting sorted."""
    y, parts, told = 14, [], []
    parts.append(text(0, y, "Measured: tokens per second, × the full cache's", "bold"))
    y += 20
    parts += axis(y)
    parts.append(text(0, y, "thick line: the full cache", size=11))
    for heading, found in settings().items():
        y += 26
        parts.append(text(0, y, heading, "bold"))
        for setting in found:
            y += 7
            for line in setting.lines:
                y += 15
                parts.append(text(0, y, line, size=11.5))
            top = y + 3
            rows = []
            for gain in sorted(setting.gains, key=lambda each: -each.median):
                y += ROW
                rows += row(y, gain)
                limit = f", limit {gain.limit:.2f}" if gain.limit else ""
                told.append(f"{gain.method} {gain.median:.2f}{limit} ({' '.join(setting.lines)})")
            parts += [*lines(top, y + 4), *rows]
    y += 16
    parts += axis(y)
    y += 6
    for line in LEGEND:
        y += 15
        parts.append(text(0, y, line, size=11.5))
    description = f"Tokens per second over the full cache's: {'; '.join(told)}."
    return framed(parts, f"0 0 {WIDTH} {y + 8}", description)


def place(gain: float) -> float:
    """Return where a gain stands on the axis: as far right as it is many times as large."""
    low, high = (math.log(x) for x in ENDS)
    return LEFT + LENGTH * (math.log(gain) - low) / (high - low)


def axis(y: float) -> list[str]:
    """Write the numbers of the axis."""
    return [text(place(x) - 3 * len(f"{x:g}"), y, f"{x:g}", size=11) for x in TICKS]


def lines(top: float, bottom: float) -> Iterator[str]:
    """Draw the lines of the axis behind a setting: that of the full cache is the thickest."""
    for tick in TICKS:
        opacity, width = (0.7, 1.2) if tick == 1 else (0.13, 1)
        yield (
            f'<path d="M{place(tick):.1f} {top}V{bottom}" stroke="currentColor" '
            f'stroke-opacity="{opacity}" stroke-width="{width}"/>'
        )


def row(y: float, gain: Gain) -> Iterator[str]:
    """Draw a method's dot, blue if all its rounds lie above the full cache, and write it."""
    middle, colour = y - 4, BLUE if gain.low > 1 else GREY
    yield text(8, y, escape(plain_name(gain.method)), size=12)
    yield (
        f'<path d="M{place(gain.low):.1f} {middle}H{place(gain.high):.1f}" stroke="{colour}" '
        'stroke-width="2.5" stroke-opacity="0.6"/>'
    )
    yield f'<circle cx="{place(gain.median):.1f}" cy="{middle}" r="4" fill="{colour}"/>'
    if gain.limit:
        yield (
            f'<circle cx="{place(gain.limit):.1f}" cy="{middle}" r="4.5" fill="none" '
            'stroke="currentColor" stroke-width="1.3"/>'
        )
    yield text(LEFT + LENGTH + 10, y, f"{gain.median:.2f} ×", size=12)
