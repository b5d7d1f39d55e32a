"""A comparison as one HTML file that needs no network."""

import io
from importlib.resources import files
from pathlib import Path

import jinja2
import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from kvlab.fast.evaluate.compare import Comparison, Row, label
from kvlab.reference.quantization import FULL_BITS

matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "kvlab"})


def write_report(comparison: Comparison, path: Path) -> None:
    """Write tables and curves, and the curves as SVG files beside them."""
    accuracy, memory = accuracy_over_memory(comparison), memory_over_steps(comparison)
    template = (files("kvlab.fast.evaluate") / "report.html.jinja").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    html = environment.from_string(template).render(
        comparison=comparison,
        sections=sections(comparison),
        accuracy_plot=Markup(accuracy),
        memory_plot=Markup(memory),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, encoding="utf-8")
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
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
    for number, spec in enumerate(comparison.settings.specs):
        points = np.array(
            [
                (row.average_bits, row.accuracy, row.accuracy_low, row.accuracy_high)
                for row in comparison.rows
                if row.spec == spec and row.refusal is None
            ],
            dtype=float,
        )
        if not len(points):
            continue
        bits, accuracy, low, high = points.T
        axes.errorbar(
            100 * bits / FULL_BITS,
            accuracy,
            yerr=[accuracy - low, high - accuracy],
            label=spec,
            marker="os^vD<>p*h"[number % 10],
            color=color(number, len(comparison.settings.specs)),
            elinewidth=0.6,
            capsize=2,
            linewidth=1.4,
        )
    axes.set(
        xlabel="memory at the last token, % of the full cache",
        ylabel="problems solved",
        ylim=(-0.05, 1.05),
    )
    return _svg(figure)


def memory_over_steps(comparison: Comparison) -> str:
    """KiB of keys and values over tokens, at the smallest budget, as SVG (LazyEviction Fig. 6)."""
    smallest = min(comparison.budgets.values(), default=None)
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
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
    return _svg(figure)


def color(number: int, of: int) -> tuple[float, float, float, float]:
    """Return the colour of one of several curves."""
    palette = matplotlib.colormaps["tab10" if of <= 10 else "tab20"]
    return palette(number % palette.N)


def _svg(figure: Figure) -> str:
    axes = figure.axes[0]
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside right upper", fontsize=7, frameon=False)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    drawing = buffer.getvalue()
    return drawing[drawing.index("<svg") :]
