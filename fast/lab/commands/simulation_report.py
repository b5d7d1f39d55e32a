"""The report of ``kvlab simulate``: a table, curves, and who was kept when."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from kvlab.fast.lab.commands.simulation import COLUMNS, Row, cells, title
from kvlab.fast.lab.pages import TablePage, color, plot, svg
from kvlab.reference.traces.judge import Judgement
from kvlab.reference.traces.trace import Recording

MOST_TIMELINES = 6


def write_report(
    trace: Recording,
    rows: Sequence[Row],
    layers: Sequence[Sequence[Judgement]],
    caption: str,
    path: Path,
) -> None:
    """Write one HTML file that needs no network.

    Args:
        trace: what was replayed.
        rows: figures and refusals.
        layers: judgements of the rows without refusal, for each layer.
        caption: what the columns are.
        path: file to write.
    """
    ran = [row for row in rows if row.refusal is None]
    middle = len(layers) // 2
    plots = [
        ("Memory over tokens", memory_over_tokens(trace, ran, layers)),
        ("Error over memory", error_over_memory(ran)),
        (
            f"Who was kept when: layer {layers[middle][0].fate.layer}, KV head 0",
            timelines(trace, ran, layers[middle]),
        ),
    ]
    TablePage(
        title="kvlab simulate",
        introduction=f"{title(trace)}. The vertical line in the last picture is the end of the "
        "prompt; a line ends where its entry left.",
        columns=("method", *COLUMNS),
        rows=[(row.method, *cells(row)) for row in rows],
        caption=caption,
        plots=plots,
    ).write(path)


def label(row: Row) -> str:
    """Name a method and its budget."""
    return row.method if row.budget is None else f"{row.method}, {row.budget}"


def memory_over_tokens(
    trace: Recording, rows: Sequence[Row], layers: Sequence[Sequence[Judgement]]
) -> str:
    """KiB of keys and values of all layers and heads over tokens, as SVG."""
    figure, axes = plot()
    for number, row in enumerate(rows):
        bits = np.sum([judged[number].fate.bits for judged in layers], axis=0) * trace.shape[1]
        shade = color(number, len(rows))
        axes.plot(bits / 8 / 1024, label=label(row), linewidth=1.2, color=shade)
    axes.set(xlabel="tokens", ylabel="KiB of keys and values", ylim=(0, None))
    return svg(figure)


def error_over_memory(rows: Sequence[Row]) -> str:
    """Error of the attention output over the memory, one line per method, as SVG."""
    figure, axes = plot()
    specs = list(dict.fromkeys(row.method for row in rows))
    for number, spec in enumerate(specs):
        points = sorted((row.kilobytes, row.error) for row in rows if row.method == spec)
        axes.plot(
            *zip(*points, strict=True),
            label=spec,
            marker="os^vD<>p*h"[number % 10],
            color=color(number, len(specs)),
        )
    axes.set(xlabel="KiB of keys and values at their most", ylabel="relative error", ylim=(0, None))
    return svg(figure)


def timelines(trace: Recording, rows: Sequence[Row], judged: Sequence[Judgement]) -> str:
    """Draw every entry of a head from its birth until it left, one panel per method, as SVG."""
    shown = list(zip(rows, judged, strict=True))[:MOST_TIMELINES]
    across = min(3, len(shown))
    down = -(-len(shown) // across)
    figure = Figure(figsize=(9, 2.6 * down), layout="constrained")
    panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    t = trace.shape[3]
    for axes, (row, each) in zip(panels, shown, strict=False):
        left = np.minimum(each.fate.left[0], t - 1)
        lines = [[(born, born), (gone, born)] for born, gone in enumerate(left)]
        axes.add_collection(LineCollection(lines, linewidths=max(0.3, 120 / t), colors="tab:blue"))
        axes.axvline(trace.prompt - 0.5, color="tab:red", linewidth=0.8)
        axes.set(xlim=(0, t), ylim=(0, t))
        axes.set_title(label(row), fontsize=8)
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    figure.supxlabel("token", fontsize=9)
    figure.supylabel("position of the entry", fontsize=9)
    return svg(figure)
