"""Pictures behind a slider, drawn in advance: they move in Jupyter and on a page, without a kernel.

Where scripts are off, or a notebook is not trusted, the first picture stands there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from jaxtyping import Float

from kvlab.fast.lab.drawing import Picture
from kvlab.reference.methods.caote import eviction_error
from kvlab.reference.notation import Array
from kvlab.reference.proofs.definitions import output_without

MOVED = (
    "for (const [at, each] of this.closest('.kvlab-dragged').querySelectorAll('figure').entries()) "
    "each.style.display = at == this.value ? '' : 'none'"
)
"""What the slider does."""


@dataclass(frozen=True)
class Dragged:
    """A picture for every place of a slider, and a line below it."""

    label: str
    pictures: Sequence[Picture]
    lines: Sequence[str]

    def _repr_html_(self) -> str:
        label, last = escape(self.label), len(self.pictures) - 1
        style = "display: block; width: 100%; max-width: 30rem; min-height: 2rem"
        slider = (
            f'<label>{label}<input type="range" min="0" max="{last}" value="0" style="{style}" '
            f'oninput="{escape(MOVED)}"></label>'
        )
        shown = "".join(
            f'<figure class="kvlab-picture" style="margin: 0{"; display: none" * (place > 0)}">'
            f"{picture.svg}<figcaption>{line}</figcaption></figure>"
            for place, (picture, line) in enumerate(zip(self.pictures, self.lines, strict=True))
        )
        return f'<div class="kvlab-dragged">{slider}{shown}</div>'

    def __repr__(self) -> str:
        return f"Dragged({self.label!r}, {len(self.pictures)} pictures)"


# --- the value of an entry ------------------------------------------------------------------------

WIDTH, PLANE = 380, 150
"""Pixels of the picture, and of the plane above the bars."""
RED, BLUE = "#d9534f", "#4a8fdb"


def dragged_value(
    h: Float[Array, " n"], values: Float[Array, "n 2"], entry: int, steps: int = 25
) -> Dragged:
    """Draw values, output and scores while one value moves to the others' output and past it.

    Args:
        h: weights of the entries, which stay.
        values: where the values are at first.
        entry: whose value moves.
        steps: places of the slider.
    """
    pictures, lines = [], []
    far, middle = values[entry], output_without(np.log(h), values, [entry])
    ends = np.vstack([values, far + 1.6 * (middle - far)])
    for share in np.linspace(0, 1.6, steps):
        moved = values.copy()
        moved[entry] = far + share * (middle - far)
        errors = eviction_error(h, moved)
        described = f"Attention evicts entry {h.argmin()}, CAOTE entry {errors.argmin()}."
        drawn = "".join([*_plane(h, moved, ends), *_bars(h, errors)])
        height = PLANE + 34 + 19 * len(h)
        opening = (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {WIDTH} {height}" '
            f'aria-label="{described}" fill="currentColor" font-family="sans-serif" '
            'font-size="12.5" style="width: 100%; max-width: 30rem; height: auto">'
        )
        pictures.append(Picture(f"{opening}{drawn}</svg>", described))
        lines.append(described)
    return Dragged(f"Drag the value of entry {entry}:", pictures, lines)


def _plane(
    h: Float[Array, " n"], values: Float[Array, "n 2"], ends: Float[Array, "m 2"]
) -> Iterator[str]:
    """Draw values as large as their weights, and the output X, where ``ends`` have room."""
    least, most = ends.min(axis=0), ends.max(axis=0)
    scale = min((WIDTH - 70) / (most - least)[0], (PLANE - 70) / (most - least)[1])
    places = [(35 + scale * (x - least[0]), PLANE - 25 - scale * (y - least[1])) for x, y in values]
    for j, (x, y) in enumerate(places):
        radius = 26 * np.sqrt(h[j])
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{BLUE}" opacity="0.35"/>'
        yield f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle">v{j}</text>'
    x, y = h @ np.array(places)
    cross = f"M{x - 6:.1f} {y:.1f}h12M{x:.1f} {y - 6:.1f}v12"
    yield f'<path d="{cross}" stroke="{RED}" stroke-width="2"/>'
    yield f'<text x="{x + 8:.1f}" y="{y - 5:.1f}" fill="{RED}" font-weight="bold">X</text>'


def _bars(h: Float[Array, " n"], errors: Float[Array, " n"]) -> Iterator[str]:
    """Draw both scores of every entry; what each evicts is red."""
    sides = (62, "attention", h, h.max()), (232, "CAOTE: X moves by", errors, 3.0)
    for left, name, scores, largest in sides:
        yield f'<text x="{left}" y="{PLANE + 14}" font-weight="bold">{name}</text>'
        for j, score in enumerate(scores):
            y, evicted = PLANE + 34 + 19 * j, j == scores.argmin()
            colour, length = RED if evicted else BLUE, max(1, 60 * min(1, score / largest))
            told = f"{score:.2f}{', evicted' * bool(evicted)}"
            if scores is h:
                yield f'<text x="0" y="{y}">entry {j}</text>'
            size = f'width="{length:.1f}" height="11"'
            yield f'<rect x="{left}" y="{y - 10}" {size} fill="{colour}"/>'
            yield f'<text x="{left + length + 4:.1f}" y="{y}">{told}</text>'
