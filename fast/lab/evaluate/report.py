"""The report of a comparison: one HTML file that needs no network, and its drawings beside it."""

from collections.abc import Iterator
from pathlib import Path

from kvlab.fast.lab.drawing import Picture, canvas, curve_style, finish
from kvlab.fast.lab.evaluate.compare import Comparison, caption, label, tables
from kvlab.fast.lab.evaluate.findings import sentences
from kvlab.fast.lab.files import write_text
from kvlab.fast.lab.reports import Block, Drawing, Heading, Page, Text, write_html
from kvlab.fast.lab.sweep.report import over_memory
from kvlab.fast.lab.viewer import write_viewer
from kvlab.reference.simulator.timeline import Timeline


def write_report(
    comparison: Comparison, path: Path, example: Timeline | None = None
) -> Path | None:
    """Write tables and curves, the curves as SVG files beside them, and the page of the viewer.

    Args:
        comparison: what was found.
        path: path of the report.
        example: methods on one problem, for the viewer.

    Returns:
        The path of the viewer's page, if there is an example.
    """
    page = None
    if example is not None:
        page = path.with_name(f"{path.stem}-viewer.html")
        write_viewer(example, page, "What the methods kept of one problem")
    blocks = list(report_blocks(comparison, path.stem, page))
    write_html(blocks, path)
    for block in blocks:
        if isinstance(block, Drawing):
            write_text(path.with_name(f"{block.name}.svg"), block.svg)
    return page


def report_blocks(comparison: Comparison, name: str, page: Path | None = None) -> Iterator[Block]:
    """Yield the report from top to bottom; the names of the drawings begin with ``name``."""
    sweep = comparison.sweep
    yield Heading("KV-cache compression compared", 1)
    for sentence in sentences(comparison):
        yield Text(sentence)
    accuracy = over_memory(comparison.summary, sweep.methods)
    yield Drawing(
        f"{name}-accuracy",
        "Problems solved over memory, with 95 % intervals: higher is better, further left is less "
        "memory.",
        accuracy.on_white,
    )
    if page is not None:
        yield Heading("One problem on which methods differ")
        yield Page("What the methods kept", page.read_text(encoding="utf-8"))
    yield Heading("All figures")
    for title, table in tables(comparison):
        yield Heading(title, 3)
        yield table
    yield Text(caption(sweep))
    memory = memory_over_tokens(comparison)
    yield Drawing(f"{name}-memory", "Memory over tokens", memory.on_white)
    yield Text(
        f"Task {sweep.tasks[0]}: {sweep.problems} held-out problems, seed {sweep.seeds[0]}; "
        f"{comparison.summary.mean_length:.0f} tokens of prompt and solution on average. Model: "
        f"{sweep.models[0]}. {sweep.backend} backend, {comparison.workers or 1} processes, "
        f"{comparison.seconds:.0f} s in all."
    )


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
