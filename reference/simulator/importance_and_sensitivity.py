"""Two axes on which a token is judged: how important, and how sensitive (DesireKV §3.2, Fig. 3)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from kvlab.reference.checks import check_at_least
from kvlab.reference.methods.desirekv import outlier_score, sensitivity
from kvlab.reference.notation import Array
from kvlab.reference.quantization import quantize
from kvlab.reference.simulator.replay import Layer
from kvlab.reference.windows import mean_pool

QUADRANTS = ("Q1", "Q2", "Q3", "Q4")
"""Neither; important; important and sensitive; sensitive."""


@dataclass(frozen=True)
class Quadrants:
    """The tokens of one layer before its last ``recent`` ones."""

    importance: Float[Array, " n"]
    """Mean attention of the last queries, all heads, smoothed (Eq. 3, 4)."""
    sensitivity: Float[Array, " n"]
    """Outlier score of the keys, relative to the largest (Eq. 5-8)."""

    @property
    def important(self) -> Bool[Array, " n"]:
        """Marks of the tokens above the median of importance."""
        return self.importance > np.median(self.importance)

    @property
    def sensitive(self) -> Bool[Array, " n"]:
        """Marks of the tokens above the median of sensitivity."""
        return self.sensitivity > np.median(self.sensitivity)

    @property
    def counts(self) -> Mapping[str, int]:
        """Tokens in every quadrant."""
        place = np.where(self.important, 1 + self.sensitive, 3 * self.sensitive)
        return {name: int((place == number).sum()) for number, name in enumerate(QUADRANTS)}

    @property
    def r_squared(self) -> float:
        """Share of the variance of one axis that a line through the other explains."""
        return float(np.corrcoef(self.importance, self.sensitivity)[0, 1] ** 2)


def quadrants(layer: Layer, recent: int = 32, radius: int = 3, group: int = 64) -> Quadrants:
    """Judge the tokens of a layer of a trace as DesireKV does.

    Args:
        layer: layer of a trace.
        recent: newest tokens, whose queries judge and which are not judged themselves.
        radius: radius of the smoothing.
        group: channels per block of a key.

    Raises:
        ValueError: unless 1 ≤ recent and at least two tokens are left.
    """
    check_at_least(1, recent=recent)
    t = layer.keys.shape[1]
    if t - recent < 2:
        raise ValueError(f"recent = {recent} must leave two of the {t} tokens")
    attention = layer.full_attention(t - recent, t).attention[..., : t - recent]
    raw = attention.mean(axis=(0, 1, 2))
    keys = layer.keys[:, : t - recent]
    everywhere = np.ones(keys.shape[:2], dtype=bool)
    return Quadrants(
        mean_pool(raw, 2 * radius + 1, "zero"),
        sensitivity(keys, everywhere, group),
    )


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
