"""CAOTE: its score beside the change of the output that it predicts, and what evictions cost."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from kvlab.fast.lab.drawing import GREY, RED, Picture, canvas, finish
from kvlab.fast.lab.tables import Column, Table, tabulate
from kvlab.reference.methods.caote import eviction_error, fast_eviction_error
from kvlab.reference.notation import Array
from kvlab.reference.proofs.definitions import output_without
from kvlab.reference.simulator.observed import Head, choice


def outputs_without(h: Float[Array, " n"], values: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """Return attention's output without each entry, computed anew: n softmaxes."""
    return np.stack([output_without(np.log(h), values, [j]) for j in range(len(h))])


def recomputed_errors(h: Float[Array, " n"], values: Float[Array, "n d"]) -> Float[Array, " n"]:
    """‖X − X'‖ of every entry, X' being attention computed anew without it."""
    return np.linalg.norm(h @ values - outputs_without(h, values), axis=-1)


def scores_by_entry(h: Float[Array, " n"], values: Float[Array, "n d"]) -> Table:
    """List attention, FastCAOTE's and CAOTE's score, and the recomputed error of every entry."""
    columns = h, fast_eviction_error(h, values), eviction_error(h, values)
    rows = zip(values, *columns, recomputed_errors(h, values), strict=True)
    return Table(
        ("entry", "value", "attention", "FastCAOTE", "CAOTE", "recomputed error"),
        [
            (str(j), str(v.tolist()), *(f"{number:.4f}" for number in numbers))
            for j, (v, *numbers) in enumerate(rows)
        ],
        words=2,
    )


def moved_outputs(h: Float[Array, " n"], values: Float[Array, "n 2"]) -> Picture:
    """Draw the values, attention's output X, and where it goes without each entry."""
    figure, (axes,) = canvas(width=6, height=2.8)
    output = h @ values
    axes.scatter(*values.T, s=900 * h, alpha=0.25)
    for j, (value, moved) in enumerate(zip(values, outputs_without(h, values), strict=True)):
        beside = {"xytext": (0, 20), "textcoords": "offset points", "ha": "center", "fontsize": 9}
        axes.annotate(f"$v_{j}$, weight {h[j]:.2f}", tuple(value), **beside)
        arrow = {"arrowstyle": "->", "color": RED, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", tuple(moved), tuple(output), arrowprops=arrow)
        apart = np.linalg.norm(moved - output)
        place = moved + 0.12 * (moved - output) / apart
        side = "left" if moved[0] > output[0] else "right"
        axes.text(place[0], place[1], f"without {j}: {apart:.2f}", fontsize=8, va="center", ha=side)
    axes.plot(*output, "k*", markersize=9)
    axes.annotate("X", tuple(output), xytext=(5, 4), textcoords="offset points")
    axes.set_aspect("equal")
    axes.margins(0.3, 0.3)
    return finish(
        figure,
        "Values of three entries, as large as their weights, the output X, and an arrow from X to "
        "the output without each entry: away from its value, by CAOTE's score.",
    )


def scores_and_errors(h: Float[Array, " n"], values: Float[Array, "n d"]) -> Picture:
    """Draw attention and CAOTE's score of every entry against the recomputed error."""
    figure, (left, right) = canvas(2, width=8, sharey=True)
    errors = recomputed_errors(h, values)
    for axes, score, name in ((left, h, "attention"), (right, eviction_error(h, values), "CAOTE")):
        lowest = score.argmin()
        axes.loglog(score, errors, "o", markersize=3, alpha=0.6)
        axes.plot(score[lowest], errors[lowest], "v", color=RED, label="evicted")
        axes.set(xlabel=f"{name}'s score")
    right.plot(*[[errors.min(), errors.max()]] * 2, linewidth=0.8, color=GREY, label="equal")
    left.set_ylabel("change of the output, recomputed")
    return finish(
        figure,
        "Attention tells the change of the output only roughly; CAOTE's score equals it.",
    )


def losses(heads: Sequence[Head], shares: Sequence[float]) -> Table:
    """List what evicting shares of the entries costs by attention and by CAOTE's score.

    Args:
        heads: heads of one text.
        shares: shares of the entries that are evicted together; 0 for a single one.
    """
    rows = []
    for share in shares:
        found = [choice(head, share) for head in heads]
        attention, error, common = np.concatenate(found, axis=1)
        row = {
            "evicted": f"{share:.0%}" if share else "one entry",
            "same entries": f"{common.mean():.0%}",
            "change, by attention": f"{100 * attention.mean():.2g} %",
            "change, by CAOTE": f"{100 * error.mean():.2g} %",
            "less by": f"{1 - error.mean() / attention.mean():.0%}",
            "queries with less": f"{(error < attention).mean():.0%}",
            "with more": f"{(error > attention).mean():.0%}",
        }
        rows.append(row)
    return tabulate(rows, [Column(heading) for heading in rows[0]])
