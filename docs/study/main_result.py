"""The main result in one small picture: two scores and random eviction under three protections.

python -m study.main_result docs
"""

from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import Annotated

import typer

from kvlab.fast.lab.drawing import Picture
from kvlab.fast.lab.evaluate.statistics import Interval
from study.stored import stored_summary

FILE = "main-result.svg"
SWEEP, BUDGET = "map_jumps", "50%"
PROTECTIONS = {
    "newest50%": "the newest half of the budget protected",
    "prompt": "the prompt protected",
    "first1": "only the first token protected",
}
SCORES = {
    "caote:h2o@": "CAOTE applied to H2O",
    "streaming_llm@sinks=0,": "recency",
    "random@": "random eviction",
}
"""How a method begins, and what a reader calls its score."""

WIDTH, ROW, GAP = 390, 18, 25
"""Pixels: a phone's width, a bar, and the heading of a group."""
LEFT, LENGTH = 158, 120
"""Where bars begin, and how long one of 100 % is."""
BLUE, GREY = "#4a8fdb", "#8b8f98"


def draw() -> Picture:
    """Draw the share of programs that each score solves, with its interval.

    Raises:
        ValueError: if a score's matched control solves another share than the one that is drawn.
    """
    found, y, parts = stored_summary(SWEEP), 38, []
    entries, full = found.budgets[BUDGET], found.point("full", None)
    parts.append(text(0, 14, "Programs solved, with half of the entries kept", "bold"))
    assert full.interval is not None
    parts += bar(y, "full cache", full.interval, GREY)
    told = [f"full cache {written(full.interval)}"]
    controls = {each.first: each.second for each in found.gains}
    for protection, heading in PROTECTIONS.items():
        y += GAP
        parts.append(text(0, y, heading, "bold"))
        for start, name in SCORES.items():
            method, y = f"{start}protected={protection}", y + ROW
            share = found.point(method, entries).interval
            drawn = found.point(f"random@protected={protection}", entries).interval
            control = found.point(controls.get(method, method), entries).interval
            assert share is not None and drawn is not None
            if control != drawn and name != "random eviction":
                raise ValueError(f"{method}: its control is not the one that is drawn")
            parts += bar(y, name, share, GREY if start == "random@" else BLUE)
            told.append(f"{name} with {heading} {written(share)}")
    counted = len(full.results)
    for line in (
        f"{counted} held-out programs; half of the entries: {entries}.",
        "The model, trained to run them, has 0.8 million parameters.",
        "A decision at every token. Brackets: 95 % intervals.",
    ):
        y += 22 if line.startswith(str(counted)) else 15
        parts.append(text(0, y, line, size=11.5))
    description = f"Programs solved, %, with 95 % intervals: {'; '.join(told)}."
    return framed(parts, f"-8 -4 {WIDTH} {y + 14}", description)


def framed(parts: Iterable[str], box: str, description: str) -> Picture:
    """Return parts that are drawn in the box (``x y width height``) as a picture."""
    return Picture(
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="{box}" '
        f'aria-label="{escape(description)}" fill="currentColor" font-family="sans-serif" '
        f'style="width: 100%; max-width: {1.25 * WIDTH:.0f}px; height: auto">'
        f"{''.join(parts)}</svg>",
        description,
    )


def text(x: float, y: float, words: str, weight: str = "normal", size: float = 13) -> str:
    """Write a line."""
    return f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}">{words}</text>'


def written(share: Interval) -> str:
    """Write a share in percent, and the ends of its interval."""
    return f"{100 * share.mean:.3g} ({100 * share.low:.0f}–{100 * share.high:.0f})"


def bar(y: float, name: str, share: Interval, colour: str) -> Iterator[str]:
    """Draw a share as a bar with its interval, and write both beside it."""
    yield text(8, y, name)
    low, mean, high = (LEFT + LENGTH * x for x in (share.low, share.mean, share.high))
    middle = y - 4.5
    yield f'<rect x="{LEFT}" y="{middle - 5}" width="{LENGTH}" height="10" fill-opacity="0.08"/>'
    yield (
        f'<rect x="{LEFT}" y="{middle - 5}" width="{mean - LEFT:.1f}" height="10" fill="{colour}"/>'
    )
    yield (
        f'<path d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 3}v6M{high:.1f} '
        f'{middle - 3}v6" stroke="currentColor" fill="none"/>'
    )
    yield text(LEFT + LENGTH + 8, y, f"{written(share)} %", size=12.5)


def main(directory: Annotated[Path, typer.Argument(help="Where the pages are.")]) -> None:
    """Write the picture."""
    draw().save(directory / "images" / FILE)


if __name__ == "__main__":
    typer.run(main)
