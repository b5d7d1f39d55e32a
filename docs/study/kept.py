"""What methods keep of one generation, in all layers and KV heads."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure

from kvlab.fast.lab.drawing import INK, Picture, canvas, finish
from kvlab.reference.notation import Array
from kvlab.reference.quantization import FULL_BITS
from kvlab.reference.simulator.timeline import Run

KEPT = "#4c78c8"
"""A blue that shows on white and on dark grey; fewer bits are paler."""
GONE = (0.55, 0.55, 0.55, 0.4)
"""Colour of an entry that was evicted."""


def kept_bits(run: Run) -> Float[Array, "t s"]:
    """Return the bits per element of every position after every step.

    Mean over keys and values, layers and KV heads; scales left out. An evicted entry has 0 bits, a
    position that is not read yet NaN.
    """
    width = np.array(run.states, dtype=float).mean(axis=1)
    columns = [width[run.stored(step)].mean(axis=(0, 1)) for step in range(len(run.steps))]
    unread = np.arange(run.read)[:, None] >= run.steps
    return np.where(unread, np.nan, np.stack(columns, axis=1))


def kept_over_steps(run: Run) -> Picture:
    """Draw which positions a method keeps while it writes, and below how many entries it holds."""
    size = {"width": 5.2, "height": 5.0}
    figure, (positions, entries) = canvas(1, 2, **size, sharex=True, height_ratios=(4, 1))
    draw_positions(figure, positions, run)
    draw_entries(entries, run)
    return finish(figure, description(run))


def draw_positions(figure: Figure, axes: Axes, run: Run) -> None:
    """Draw the bits of every position over the steps, from the end of the prompt on."""
    bits = kept_bits(run)[:, run.steps >= run.prompt]
    gone = np.zeros((*bits.shape, 4))
    gone[~np.isnan(bits)] = GONE
    extent = (run.prompt - 0.5, run.read + 0.5, -0.5, run.read - 0.5)
    shown = {"extent": extent, "origin": "lower", "aspect": "auto", "interpolation": "none"}
    axes.imshow(gone, **shown)
    colors = LinearSegmentedColormap.from_list("kept", [(*to_rgb(KEPT), 0), (*to_rgb(KEPT), 1)])
    image = axes.imshow(np.nan_to_num(bits), cmap=colors, vmin=0, vmax=FULL_BITS, **shown)
    axes.axhline(run.prompt - 0.5, color=INK, linewidth=0.6, linestyle=":")
    for text, y, side in (("prompt", run.prompt - 4, "top"), ("answer", run.prompt + 2, "bottom")):
        axes.text(run.prompt + 1, y, text, fontsize=8, verticalalignment=side)
    axes.set(ylabel="position in the text")
    bar = figure.colorbar(image, ax=axes, ticks=[0, 4, 8, FULL_BITS], aspect=30, pad=0.02)
    bar.set_label("bits kept", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_linewidth(0.4)


def draw_entries(axes: Axes, run: Run) -> None:
    """Draw the entries per KV head, beside those of the full cache and the budget."""
    answer = run.steps >= run.prompt
    steps, entries = run.steps[answer], run.entries()[answer]
    axes.plot(steps, steps, color="0.55", linewidth=0.9, label="full cache")
    axes.plot(steps, entries, color=KEPT, linewidth=1.6, label="kept")
    if run.budget is not None:
        axes.axhline(run.budget, color=INK, linewidth=0.7, linestyle="--", label="budget")
    axes.set(xlabel="tokens read", ylabel="entries", ylim=(0, 1.05 * run.read))
    axes.legend(fontsize=7.5, frameon=False, ncols=3, loc="lower right")


def description(run: Run) -> str:
    """Say in words what `kept_over_steps` shows."""
    last = kept_bits(run)[:, -1]
    prompt, answer = last[: run.prompt] > 0, last[run.prompt :] > 0
    bits = float(last[last > 0].mean())
    budget = "" if run.budget is None else f" with a budget of {run.budget} entries"
    return (
        f"What {run.method} keeps{budget} of {run.prompt} tokens of a prompt and the "
        f"{run.read - run.prompt} that follow. In the end some KV head still holds "
        f"{prompt.sum()} positions of the prompt and {answer.sum()} of the answer, at {bits:.1f} "
        "bits on average over all layers and heads."
    )


def page_table(table: Mapping[int, int], pages: int, blocks: int, size: int) -> Picture:
    """Draw the pages of a text above the blocks of a pool, and the table as lines between them.

    Args:
        table: block of every page that is still held.
        pages: pages of the text so far.
        blocks: blocks of the pool.
        size: tokens of a page.
    """
    figure, (axes,) = canvas(width=7.5, height=2.2)
    for page in range(pages):
        axes.text(page, 1, f"{page * size}–\n{page * size + size - 1}", **_box(page in table))
    for block in range(blocks):
        axes.text(block, 0, str(block), **_box(block in table.values()))
    for page, block in table.items():
        axes.plot([page, block], [0.8, 0.12], color=KEPT, linewidth=0.9)
    axes.set(xlim=(-0.7, max(pages, blocks) - 0.3), ylim=(-0.3, 1.3))
    axes.set_yticks([0, 1], ["blocks of\nthe pool", "tokens of\nthe pages"])
    axes.set_xticks([])
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    return finish(
        figure,
        f"{len(table)} of {pages} pages are held, each in a block of the pool; "
        f"{blocks - len(table)} of {blocks} blocks are free.",
    )


def _box(used: bool) -> dict[str, Any]:
    face = (*to_rgb(KEPT), 0.35) if used else (1, 1, 1, 0)
    box = {"boxstyle": "square,pad=0.3", "facecolor": face, "edgecolor": "0.55", "linewidth": 0.6}
    return {"ha": "center", "va": "center", "fontsize": 7, "bbox": box}
