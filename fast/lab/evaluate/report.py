"""The report of a comparison: one HTML file that needs no network, and its drawings beside it."""

from collections.abc import Iterator
from pathlib import Path

from kvlab.fast.lab.drawing import Picture, canvas, curve_style, finish
from kvlab.fast.lab.evaluate.compare import Comparison, caption, label, tables
from kvlab.fast.lab.files import write_text
from kvlab.fast.lab.reports import Block, Drawing, Heading, Text, write_html
from kvlab.fast.lab.sweep.report import over_memory


def write_report(comparison: Comparison, path: Path) -> None:
    """Write tables and curves, and the curves as SVG files beside them."""
    blocks = list(report_blocks(comparison, path.stem))
    write_html(blocks, path)
    for block in blocks:
        if isinstance(block, Drawing):
            write_text(path.with_name(f"{block.name}.svg"), block.svg)


def report_blocks(comparison: Comparison, name: str) -> Iterator[Block]:
    """Yield the report from top to bottom; the names of the drawings begin with ``name``."""
    sweep = comparison.sweep
    yield Heading("KV-cache compression compared", 1)
    yield Text(
        f"Task {sweep.tasks[0]}: {sweep.problems} held-out problems, seed {sweep.seeds[0]}; "
        f"{comparison.summary.mean_length:.0f} tokens of prompt and solution on average. Model: "
        f"{sweep.models[0]}. {sweep.backend} backend, {comparison.workers or 1} processes, "
        f"{comparison.seconds:.0f} s in all."
    )
    for title, table in tables(comparison):
        yield Heading(title)
        yield table
    yield Text(caption(sweep))
    accuracy = over_memory(comparison.summary, sweep.methods)
    yield Drawing(f"{name}-accuracy", "Problems solved over memory", accuracy.on_white)
    memory = memory_over_tokens(comparison)
    yield Drawing(f"{name}-memory", "Memory over tokens", memory.on_white)


def memory_over_tokens(comparison: Comparison) -> Picture:
    """Draw KiB of keys and values over tokens, at the smallest budget (LazyEviction Fig. 6)."""
    smallest = min(comparison.summary.budgets.values(), default=None)
    specs = comparison.sweep.methods
    figure, (axes,) = canvas(height=4.6)
    for number, spec in enumerate(specs):
        for budget in (None, smallest):
            curve = comparison.memory.get(label(spec, budget))
            if curve is not None:
                color = curve_style(number, len(specs))["color"]
                axes.plot(curve, label=spec, linewidth=1.2, color=color)
                break
    axes.set(xlabel="tokens written (first problem)", ylabel="KiB of keys and values")
    axes.set_ylim(0, None)
    return finish(figure, "KiB of keys and values over the tokens written.", legend="below")
