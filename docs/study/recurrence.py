"""LazyEviction: token importance recurrence, attention that comes back."""

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float, Int

from kvlab.fast.lab.drawing import RED, Picture, canvas, finish
from kvlab.reference.notation import Array
from kvlab.reference.simulator.observed import Recurring


def attention_map(rows: Float[Array, "t t"], prompt: int, marked: Sequence[int] = ()) -> Picture:
    """Draw the causal attention of one head, query by entry, in powers of ten.

    Red lines mark the end of the prompt; marked entries get an arrow.
    """
    figure, (axes,) = canvas(width=6.4, height=5.6)
    shown = np.log10(np.maximum(rows, 1e-4))
    shown = np.where(np.tril(np.ones_like(rows)) > 0, shown, np.nan)
    image = axes.imshow(shown, cmap="viridis", interpolation="nearest", vmin=-4)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, ticks=[-4, -3, -2, -1, 0])
    bar.ax.set_yticklabels(["≤ 0.0001", "0.001", "0.01", "0.1", "1"], fontsize=7.5)
    for line in (axes.axhline, axes.axvline):
        line(prompt - 0.5, color=RED, linewidth=0.8)
    arrow = {"arrowstyle": "->", "color": RED, "linewidth": 1.2}
    for entry in marked:
        place = entry, entry
        axes.annotate("", place, xytext=(11, -1), textcoords="offset points", arrowprops=arrow)
    axes.set(xlabel="entry that is attended to", ylabel="token that attends")
    return finish(figure, "Attention of one head: columns that light up, fade and light up again.")


def lifelines(
    rows: Float[Array, "t t"], recurring: Sequence[Recurring], words: Sequence[str]
) -> Picture:
    """Draw the attention that entries receive over the tokens, one panel each.

    Args:
        rows: causal attention of the head in which they recur.
        recurring: entries.
        words: text of every token.
    """
    figure, panels = canvas(1, len(recurring), height=0.5 + 0.95 * len(recurring), sharex=True)
    for axes, entry in zip(panels, recurring, strict=True):
        tokens = np.arange(entry.position, len(rows))
        axes.vlines(tokens, 0, rows[tokens, entry.position], linewidth=1.2, color="C0")
        axes.axhline(entry.threshold, color=RED, linewidth=0.6)
        axes.set(ylim=(0, 1.02), xlim=(0, len(rows)), yticks=[0, 1])
        axes.set_ylabel(words[entry.position].strip() or "⏎", rotation=0, ha="right", va="center")
    panels[-1].set_xlabel("token that attends")
    return finish(
        figure,
        "Single tokens receive much attention, then none for many steps, then much again.",
    )


def interval_histogram(intervals: Int[Array, " entries"], quantile: float = 0.8) -> Picture:
    """Draw how the longest intervals of entries are distributed, and a quantile of them.

    The paper's window is the 80 % quantile. Entries that are never activated have an MRI of 0, and
    are counted in the title.
    """
    figure, (axes,) = canvas(height=3.2)
    active = intervals[intervals > 0]
    axes.hist(active, bins=40, color="C0", alpha=0.85)
    limit = float(np.quantile(active, quantile))
    axes.axvline(limit, color=RED, linewidth=1, label=f"{quantile:.0%} below {limit:.0f}")
    axes.set(xlabel="maximum recurrence interval, generated tokens", ylabel="entries")
    axes.set_title(
        f"{len(intervals):,} entries: {(intervals > 1).mean():.1%} recur (MRI > 1), "
        f"{(intervals == 0).mean():.1%} are never activated"
    )
    return finish(figure, f"MRI of entries; {quantile:.0%} lie below {limit:.0f} tokens.")


def most_recurring(entries: Iterable[Recurring], count: int, gap: int = 16) -> list[Recurring]:
    """Return the entries that came back most often after at least ``gap`` steps, one per position.

    Args:
        entries: entries of `activations`.
        count: how many at most.
        gap: steps without activation.
    """
    best: dict[int, Recurring] = {}

    def returns(entry: Recurring) -> tuple[int, int]:
        return sum(each >= gap for each in entry.gaps[1:]), entry.interval

    for entry in entries:
        if entry.position not in best or returns(entry) > returns(best[entry.position]):
            best[entry.position] = entry
    return sorted(best.values(), key=returns, reverse=True)[:count]
