"""AhaKV: early entries collect more attention; how flat attention is."""

from collections.abc import Mapping, Sequence
from math import log

import numpy as np
from jaxtyping import Float

from kvlab.fast.lab.drawing import RED, Picture, canvas, finish
from kvlab.reference.notation import Array
from kvlab.reference.proofs.ahakv import mean_entropy


def accumulated_attention(
    measured: Mapping[str, Float[Array, "heads t t"]], recent: int
) -> Picture:
    """Draw the attention that entries accumulate, by position, beside the expectation of Eq. 4.

    Args:
        measured: causal attention of several heads or draws, by the name of its panel.
        recent: also draw the sum over the last ``recent`` rows alone, Eq. 5.
    """
    figure, panels = canvas(len(measured), width=4 * len(measured), sharey=True)
    for axes, (name, attention) in zip(panels, measured.items(), strict=True):
        t = attention.shape[-1]
        low, middle, high = np.quantile(attention.sum(axis=1), (0.25, 0.5, 0.75), axis=0)
        axes.fill_between(range(t), low, high, alpha=0.25, color="C0", linewidth=0)
        axes.plot(middle, linewidth=1, color="C0", label="all rows: median, quartiles")
        expected = np.cumsum(1 / np.arange(t, 0, -1))[::-1]
        axes.plot(expected, linewidth=1.2, linestyle="--", color="C1", label="Eq. 4")
        last = attention[:, -recent:].sum(axis=1).mean(axis=0)
        axes.plot(last, linewidth=1, color="C2", label=f"last {recent} rows, mean")
        axes.set(xlabel="position", yscale="log", title=name)
        axes.set_ylim(3e-3, None)
    panels[0].set_ylabel("accumulated attention")
    return finish(
        figure,
        "Accumulated attention falls with the position; the sum over recent rows does not fall.",
    )


def entropy_phases(sizes: Sequence[int], draws: int = 60) -> Picture:
    """Draw the mean entropy of a softmax over Gaussian logits over their variance.

    Lines: ln i − s²/2 up to a variance of 2 ln i.
    """
    figure, (axes,) = canvas(height=3.8)
    parts = np.linspace(0, 5, 26)[1:]
    for number, i in enumerate(sizes):
        color, variances = f"C{number}", parts * log(i)
        means = [mean_entropy(i, np.sqrt(s2), draws)[0] for s2 in variances]
        axes.plot(parts, means, "o", markersize=3, color=color, label=f"i = {i}, {draws} draws")
        estimate = log(i) - variances / 2
        axes.plot(parts[estimate > 0], estimate[estimate > 0], color=color, linewidth=1)
    axes.axvline(2, color=RED, linewidth=0.8)
    axes.set(xlabel="variance of the logits, in units of ln i", ylabel="entropy, nats")
    axes.set_ylim(0, None)
    return finish(
        figure, "Entropy falls as ln i − s²/2 at first, and freezes beyond a variance of 2 ln i."
    )
