"""Tables and drawings of a comparison on the embedded reasoner."""

from collections.abc import Mapping, Sequence

import numpy as np

from kvlab.fast.lab.evaluate.compare import Comparison, Row
from kvlab.fast.lab.evaluate.statistics import wilson
from kvlab.fast.lab.pages import color
from kvlab.fast.lab.pictures.picture import Picture, canvas, finish
from kvlab.fast.lab.pictures.table import Table
from kvlab.reference.quantization import FULL_BITS
from kvlab.reference.tasks.reasoning import Grade


def solved(row: Row) -> str:
    """Return the share of problems solved and its 95 % interval, in percent."""
    if row.accuracy is None or row.accuracy_low is None or row.accuracy_high is None:
        return f"refused: {row.refusal}"
    low, high = 100 * row.accuracy_low, 100 * row.accuracy_high
    return f"{100 * row.accuracy:.0f} % ({low:.0f}–{high:.0f})"


def results(comparison: Comparison) -> Table:
    """List what `kvlab.fast.lab.evaluate.compare.compare` found, refusals left out."""
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
    curves = {
        spec: [
            (
                100 * (row.average_bits or 0) / FULL_BITS,
                row.accuracy,
                row.accuracy_low or 0,
                row.accuracy_high or 0,
            )
            for row in comparison.rows
            if row.spec == spec and row.accuracy is not None
        ]
        for spec in comparison.settings.specs
    }
    return solved_over(curves, "memory at the last token, % of the full cache")


def solved_over(
    curves: Mapping[str, Sequence[tuple[float, float, float, float]]], horizontal: str
) -> Picture:
    """Draw shares of problems solved, one line per method.

    Args:
        curves: per method, points of x, share, and the ends of its interval.
        horizontal: what x is.
    """
    figure, (axes,) = canvas(height=4.6)
    drawn = {spec: np.array(points, dtype=float).T for spec, points in curves.items() if points}
    for number, (spec, (x, share, low, high)) in enumerate(drawn.items()):
        axes.errorbar(
            x,
            share,
            yerr=[share - low, high - share],
            label=spec,
            marker="os^vD<>p*h"[number % 10],
            color=color(number, len(drawn)),
            elinewidth=0.6,
            capsize=2,
            linewidth=1.4,
        )
    axes.set(xlabel=horizontal, ylabel="problems solved", ylim=(-0.05, 1.05))
    if drawn:
        figure.legend(loc="outside lower center", ncols=2, fontsize=7.5, frameon=False)
    return finish(
        figure, f"Problems solved over {horizontal.partition(',')[0]}, per method.", legend=False
    )
