"""DesireKV: importance and sensitivity of tokens, and at how many bits entries are stored."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.patches import Patch

from kvlab.fast.lab.drawing import RED, Picture, canvas, finish
from kvlab.reference.cache import LayerCache
from kvlab.reference.methods.desirekv import outlier_score
from kvlab.reference.notation import Array
from kvlab.reference.proofs.definitions import spearman
from kvlab.reference.quantization import quantize
from kvlab.reference.simulator.observed import QUADRANTS, Quadrants

COLORS = {16: "C0", 8: "C2", 4: "C1", 2: "C3"}
"""Colour of entries by their bits."""
CORNERS = ((0.02, 0.02), (0.02, 0.93), (0.86, 0.93), (0.86, 0.02))
"""Where the names of the quadrants stand."""


def importance_over_sensitivity(judged: Mapping[str, Quadrants]) -> Picture:
    """Draw importance over sensitivity, both in ranks, with the medians that make quadrants."""
    figure, panels = canvas(len(judged), width=2.6 * len(judged), height=3, sharey=True)
    for axes, (name, found) in zip(panels, judged.items(), strict=True):
        n = len(found.importance)
        across, up = (np.argsort(np.argsort(x)) / n for x in (found.sensitivity, found.importance))
        axes.plot(across, up, "o", markersize=2.2, alpha=0.7)
        axes.axhline(0.5, color=RED, linewidth=0.8)
        axes.axvline(0.5, color=RED, linewidth=0.8)
        for quadrant, place in zip(QUADRANTS, CORNERS, strict=True):
            axes.text(*place, quadrant, fontsize=8, color=RED)
        axes.set(title=f"{name}: R² = {found.r_squared:.3f}", xlabel="sensitivity, rank")
        axes.set(xlim=(0, 1), ylim=(0, 1))
    panels[0].set_ylabel("importance, rank")
    return finish(figure, "Importance against sensitivity of tokens: no visible relation.")


def stored_key(key: Float[Array, " d"], widths: Sequence[int]) -> Picture:
    """Draw one key's channels, and what they are after storage at different widths."""
    figure, panels = canvas(len(widths), width=2.6 * len(widths), height=2.6, sharey=True)
    channels = np.arange(len(key))
    for axes, bits in zip(panels, widths, strict=True):
        stored = quantize(key[None], bits, len(key)).dequantize()[0]
        axes.vlines(channels, key, stored, color=RED, linewidth=1.5)
        axes.plot(channels, key, ".", markersize=4, color="C0", label="key")
        axes.plot(channels, stored, "_", markersize=6, color="C1", label=f"{bits} bits")
        axes.set(xlabel="channel")
    return finish(figure, f"A key stored at {', '.join(map(str, widths))} bits.")


def outliers_against_errors(keys: Float[Array, "L G n d"], bits: int = 4) -> Picture:
    """Draw the error of storing keys over their outlier score, one panel per layer."""
    figure, panels = canvas(len(keys), width=2.6 * len(keys), height=3)
    for number, (axes, layer) in enumerate(zip(panels, keys, strict=True)):
        for head, (x, y) in enumerate(zip(*outliers_and_errors(layer, bits), strict=True)):
            label = f"KV head {head}: ρ = {spearman(x, y):.2f}"
            axes.plot(x, y, "o", markersize=2, alpha=0.6, label=label)
        axes.set(title=f"layer {number}", xlabel="outlier score", xlim=(-0.1, None))
    panels[0].set_ylabel(f"error at {bits} bits, RMS")
    return finish(figure, "Keys with larger outliers are stored less precisely.")


def bits_by_position(caches: Mapping[str, LayerCache], tokens: int, prompt: int) -> Picture:
    """Draw at how many bits the keys of one KV head are stored, by position; gaps are evicted."""
    figure, (axes,) = canvas(height=0.9 + 0.42 * len(caches))
    for row, cache in enumerate(caches.values()):
        bits, positions = cache.keys.bits[0], cache.positions[0]
        for width, color in COLORS.items():
            axes.bar(positions[bits == width], 0.8, width=1.0, bottom=row - 0.4, color=color)
    axes.axvline(prompt - 0.5, color=RED, linewidth=0.8)
    axes.set_yticks(range(len(caches)), list(caches))
    axes.set(xlabel="position", xlim=(0, tokens))
    axes.invert_yaxis()
    handles = [Patch(color=color, label=f"{width} bits") for width, color in COLORS.items()]
    place = "outside upper center"
    figure.legend(handles=handles, loc=place, ncols=4, fontsize=7.5, frameon=False)
    return finish(figure, "Bits of the stored keys by position.", legend="none")


def outliers_and_errors(
    keys: Float[Array, "G n d"], bits: int
) -> tuple[Float[Array, "G n"], Float[Array, "G n"]]:
    """Return every key's outlier score, and the root mean square error of storing it (Fig. 2).

    Args:
        keys: each is one block.
        bits: per element of the stored key.
    """
    stored = quantize(keys.reshape(-1, keys.shape[-1]), bits, keys.shape[-1]).dequantize()
    error = np.sqrt(((stored.reshape(keys.shape) - keys) ** 2).mean(axis=-1))
    return outlier_score(keys), error
