"""What is special about queries, keys and positions of drawn cases, by variant."""

from collections.abc import Callable, Mapping

import numpy as np

from kvlab.reference.notation import Array


def _logits(queries: float, keys: float) -> Callable[[dict[str, Array]], None]:
    def change(x: dict[str, Array]) -> None:
        x["queries"][..., 0], x["keys"][..., 0] = queries, keys

    return change


def _beyond_the_softcap(x: dict[str, Array]) -> None:
    """Logits of 700 and −700: e^(logit/4) overflows in float32."""
    d = x["keys"].shape[-1]
    _logits(0.0, 0.0)(x)
    x["queries"] /= 16
    x["queries"][..., 0] = np.ceil(np.sqrt(d)) * 32
    x["keys"][..., 0] = 22.0 * (-1.0) ** np.arange(x["keys"].shape[1])


def below_the_mask(x: dict[str, Array], keys: str = "keys") -> None:
    """Logits at and below −2^16, of few whole numbers: of more, float32 loses the differences."""
    for name in ("queries", keys):
        np.rint(x[name], out=x[name])
    x["queries"][..., 4:] = 0
    x["queries"][..., 0] = 256 * np.ceil(np.sqrt(x["queries"].shape[-1]))
    x[keys][..., 0] = -256.0


def _rows_apart(x: dict[str, Array]) -> None:
    """Each row has to subtract its own largest logit, and that of a visible entry."""
    rho, m = x["queries"].shape[1:3]
    x["queries"][..., 0] = 64.0 * (-1.0) ** np.add.outer(np.arange(rho), np.arange(m))
    x["keys"][..., 0], x["keys"][:, -1, 0] = 64.0, 128.0


def _far_positions(x: dict[str, Array]) -> None:
    """Positions beyond 2^16 and, of older entries, around 2^15: more than 16 bits hold."""
    m = len(x["query_positions"])
    x["positions"] += 2**15 - 40
    x["positions"][:, -m:] = x["query_positions"] = 70001 + np.arange(m)


def _one_heavy(x: dict[str, Array]) -> None:
    _logits(4.0, 0.0)(x)
    x["keys"][:, x["keys"].shape[1] // 3, 0] = 12.0


def _flat(x: dict[str, Array]) -> None:
    x["queries"] /= 16
    x["values"] += 2


def _twice(x: dict[str, Array]) -> None:
    for name in ("keys", "values"):
        again = x[name][:, 1::2]
        again[:] = x[name][:, ::2][:, : again.shape[1]]


def _heads_apart(x: dict[str, Array]) -> None:
    """Even heads rate the newest entries highest, odd ones the oldest."""
    G, n, d = x["keys"].shape
    rising = np.linspace(-1, 1, n) * (-1.0) ** np.arange(G)[:, None]
    _logits(2.0, 0.0)(x)
    x["keys"][..., 0] = np.rint(16 * np.sqrt(d) * rising) / 8
    x["values"] *= 2.0 ** np.rint(3 * rising)[..., None]


def _returning(x: dict[str, Array]) -> None:
    """The third entry is attended to while it is new, and again near the end."""
    _logits(0.0, 0.0)(x)
    x["queries"] /= 16
    x["keys"][:, 2, 0] = 8 * np.sqrt(x["keys"].shape[2])
    x["queries"][:, :, [3, 4, -20, -1], 0] = 1.0


ATTENTION: Mapping[str, Callable[[dict[str, Array]], None]] = {
    "plain": lambda x: None,
    "beyond_the_softcap": _beyond_the_softcap,
    "float32_inputs": lambda x: None,
    "ties": lambda x: x["keys"].fill(0),
    "extreme_logits": _logits(64.0, 32.0),
    "low_logits": _logits(64.0, -64.0),
    "below_the_mask": below_the_mask,
    "rows_apart": _rows_apart,
    "far_positions": _far_positions,
    "alpha_near_one": _one_heavy,
    "flat": _flat,
    "heads_apart": _heads_apart,
    "returning": _returning,
    "repeated_entries": _twice,
}
"""What is changed about queries, keys, values and positions, by variant."""
