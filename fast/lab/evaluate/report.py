"""A comparison as one HTML file that needs no network."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from markupsafe import Markup

from kvlab.fast.lab.evaluate.compare import Comparison, Row, label
from kvlab.fast.lab.pages import color, plot, svg, write_page
from kvlab.reference.quantization import FULL_BITS


def write_report(comparison: Comparison, path: Path) -> None:
    """Write tables and curves, and the curves as SVG files beside them."""
    accuracy, memory = accuracy_over_memory(comparison), memory_over_steps(comparison)
    write_page(
        path,
        "compare.html.jinja",
        comparison=comparison,
        sections=sections(comparison),
        accuracy_plot=Markup(accuracy),
        memory_plot=Markup(memory),
    )
    path.with_name(f"{path.stem}-accuracy.svg").write_text(accuracy, encoding="utf-8")
    path.with_name(f"{path.stem}-memory.svg").write_text(memory, encoding="utf-8")


def sections(comparison: Comparison) -> list[tuple[str, list[Row]]]:
    """Group the rows: memory by the method's own rule, then one section per budget."""
    own = [row for row in comparison.rows if row.budget is None]
    grouped = [("memory by the method's own rule", own)] if own else []
    for text, entries in comparison.budgets.items():
        rows = [row for row in comparison.rows if row.budget == entries]
        title = f"budget {text} = {entries} entries" if text.endswith("%") else f"budget {entries}"
        if rows:
            grouped.append((title, rows))
    return grouped


def accuracy_over_memory(comparison: Comparison) -> str:
    """Accuracy over the budget in bytes, one line per method, as SVG (LazyEviction Fig. 5)."""
    curves = {
        spec: [
            (
                100 * (row.average_bits or 0) / FULL_BITS,
                row.accuracy or 0,
                row.accuracy_low or 0,
                row.accuracy_high or 0,
            )
            for row in comparison.rows
            if row.spec == spec and row.refusal is None
        ]
        for spec in comparison.settings.specs
    }
    return accuracy_curves(curves, "memory at the last token, % of the full cache")


def accuracy_curves(
    curves: Mapping[str, Sequence[tuple[float, float, float, float]]], horizontal: str
) -> str:
    """Draw shares of problems solved, as SVG.

    Args:
        curves: per method, points of x, share, and the ends of its interval.
        horizontal: what x is.
    """
    figure, axes = plot()
    for number, (spec, points) in enumerate(curves.items()):
        if not points:
            continue
        x, accuracy, low, high = np.array(points, dtype=float).T
        axes.errorbar(
            x,
            accuracy,
            yerr=[accuracy - low, high - accuracy],
            label=spec,
            marker="os^vD<>p*h"[number % 10],
            color=color(number, len(curves)),
            elinewidth=0.6,
            capsize=2,
            linewidth=1.4,
        )
    axes.set(xlabel=horizontal, ylabel="problems solved", ylim=(-0.05, 1.05))
    return svg(figure)


def memory_over_steps(comparison: Comparison) -> str:
    """KiB of keys and values over tokens, at the smallest budget, as SVG (LazyEviction Fig. 6)."""
    smallest = min(comparison.budgets.values(), default=None)
    figure, axes = plot()
    for number, spec in enumerate(comparison.settings.specs):
        for budget in (None, smallest):
            curve = comparison.memory.get(label(spec, budget))
            if curve is not None:
                shade = color(number, len(comparison.settings.specs))
                axes.plot(curve, label=spec, linewidth=1.2, color=shade)
                break
    axes.set(
        xlabel="tokens written (first problem)", ylabel="KiB of keys and values", ylim=(0, None)
    )
    return svg(figure)
