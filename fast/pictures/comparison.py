"""Tables and drawings of a comparison on the embedded reasoner."""

from collections.abc import Mapping, Sequence

from kvlab.fast.evaluate.compare import Comparison, Row
from kvlab.fast.evaluate.statistics import wilson
from kvlab.fast.pages import color
from kvlab.fast.pictures.picture import Picture, canvas, finish
from kvlab.fast.pictures.table import Table
from kvlab.reference.quantization import FULL_BITS
from kvlab.reference.tasks.reasoning import Grade


def solved(row: Row) -> str:
    """Return the share of problems solved and its 95 % interval, in percent."""
    if row.accuracy is None or row.accuracy_low is None or row.accuracy_high is None:
        return f"refused: {row.refusal}"
    low, high = 100 * row.accuracy_low, 100 * row.accuracy_high
    return f"{100 * row.accuracy:.0f} % ({low:.0f}–{high:.0f})"


def results(comparison: Comparison) -> Table:
    """List what `kvlab.fast.evaluate.compare.compare` found, refusals left out."""
    rows = [
        (
            row.spec,
            "own rule" if row.budget is None else str(row.budget),
            solved(row),
            f"{row.output_error:.3f}",
            f"{row.kl:.3f}",
            f"{row.entries:.0f}",
            f"{row.kilobytes:.0f}",
            f"{row.average_bits:.1f}",
        )
        for row in comparison.rows
        if row.refusal is None
    ]
    columns = ("method", "budget", "solved (95 %)", "error", "KL", "entries", "KiB", "bits")
    return Table(columns, rows)


def solved_by(grades: Mapping[str, Sequence[Grade]]) -> Table:
    """List the shares of problems solved, with 95 % intervals, and the steps that were right."""
    rows = []
    for name, own in grades.items():
        right = sum(grade.solution_correct and grade.answer_correct for grade in own)
        low, high = wilson(right, len(own))
        steps = sum(grade.correct_steps for grade in own) / len(own)
        rows.append(
            (
                name,
                f"{right} of {len(own)}",
                f"{100 * low:.0f}–{100 * high:.0f} %",
                f"{steps:.1f}",
            )
        )
    return Table(("method", "solved", "95 %", "right steps, mean"), rows)


def accuracy_over_memory(comparison: Comparison) -> Picture:
    """Draw problems solved, with 95 % intervals, over the memory that is left."""
    figure, (axes,) = canvas(height=4)
    specs = comparison.settings.specs
    for number, spec in enumerate(specs):
        rows = [row for row in comparison.rows if row.spec == spec and row.accuracy is not None]
        if not rows:
            continue
        accuracy = [row.accuracy or 0.0 for row in rows]
        axes.errorbar(
            [100 * (row.average_bits or 0.0) / FULL_BITS for row in rows],
            accuracy,
            yerr=[
                [row.accuracy - row.accuracy_low for row in rows],  # type: ignore[operator]
                [row.accuracy_high - row.accuracy for row in rows],  # type: ignore[operator]
            ],
            label=spec,
            marker="os^vD<>p*h"[number % 10],
            color=color(number, len(specs)),
            elinewidth=0.6,
            capsize=2,
            linewidth=1.4,
        )
    axes.set(xlabel="memory at the last token, % of the full cache", ylabel="problems solved")
    axes.set_ylim(-0.05, 1.05)
    return finish(figure, "Problems solved over the memory that is left, per method.")
