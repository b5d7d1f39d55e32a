"""A sketch for each of the KV puzzles: a small example of what goes in and what comes out."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from kvlab.fast.lab.drawing import Picture
from kvlab.reference.methods.caote import eviction_error
from kvlab.reference.proofs.definitions import output_without

BOX, LINE = 40, 24
"""Pixels of a cell: its width, and a line's height."""
FILLS = {
    "kept": 'fill="#4a8fdb" fill-opacity="0.45"',
    "protected": 'fill="#4c9f70" fill-opacity="0.5"',
    "gone": 'fill="currentColor" fill-opacity="0.08"',
    "": 'fill="none"',
}
"""How cells look by what they are."""
RED = "#d9534f"


class Sketch:
    """A drawing that grows line by line; names stand at the left, cells beside them."""

    def __init__(self, left: int = 118) -> None:
        self.left, self.y, self.parts, self.told = left, 4, list[str](), list[str]()

    def text(self, x: float, y: float, words: Any, more: str = "") -> None:
        """Write words; ``more`` are attributes."""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {more}>{words}</text>')

    def row(self, name: str, cells: Iterable[Any], kinds: Sequence[str] = ()) -> None:
        """Draw a row of cells, of the kinds that `FILLS` names."""
        self.text(0, self.y + 16, name)
        for place, cell in enumerate(cells):
            x, kind = self.left + place * BOX, kinds[place] if kinds else ""
            size = f'width="{BOX - 3}" height="{LINE - 3}" rx="3"'
            self.parts.append(
                f'<rect x="{x}" y="{self.y}" {size} {FILLS[kind]} stroke="currentColor" '
                'stroke-opacity="0.35"/>'
            )
            self.text(x + (BOX - 3) / 2, self.y + 15.5, cell, 'text-anchor="middle"')
        self.told.append(f"{name}: {', '.join(map(str, cells))}")
        self.y += LINE

    def say(self, words: str) -> None:
        """Write a line across the picture."""
        self.text(0, self.y + 16, words)
        self.told.append(words)
        self.y += LINE

    def axis(
        self, name: str, marks: Sequence[tuple[float, str]], span: tuple[float, float]
    ) -> None:
        """Draw a number line; a mark's text stands above its place, of two marks outside."""
        anchors = ("end", "start") if len(marks) == 2 else ["middle"] * len(marks)
        self.text(0, self.y + 34, name)
        width, y = 240, self.y + 30
        at = [self.left + width * (x - span[0]) / (span[1] - span[0]) for x, _ in marks]
        self.path(f"M{self.left} {y}h{width}", "currentColor")
        for x, (_, words), anchor in zip(at, marks, anchors, strict=True):
            self.path(f"M{x:.1f} {y - 5}v10", "currentColor")
            self.text(x, y - 9, words, f'text-anchor="{anchor}"')
        self.told.append(", ".join(f"{words} at {x:.2f}" for x, words in marks))
        self.y += 44

    def arrow(self, start: float, end: float, span: tuple[float, float], words: str) -> None:
        """Draw an arrow below the number line."""
        x = [self.left + 240 * (each - span[0]) / (span[1] - span[0]) for each in (start, end)]
        y, tip = self.y - 2, 5 if start > end else -5
        self.path(f"M{x[0]:.1f} {y}H{x[1]:.1f}m{tip} -4l{-tip} 4l{tip} 4", RED)
        self.text(max(x) + 8, y + 4, words, f'fill="{RED}"')
        self.told.append(words)
        self.y += 20

    def path(self, drawn: str, colour: str) -> None:
        """Draw a line."""
        self.parts.append(f'<path d="{drawn}" fill="none" stroke="{colour}" stroke-width="1.5"/>')

    @property
    def picture(self) -> Picture:
        """The sketch, finished."""
        told = "; ".join(self.told).replace("&lt;", "<").replace("<", "&lt;")
        opening = (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 380 {self.y + 4}" '
            f'aria-label="{told}" fill="currentColor" font-family="sans-serif" font-size="12.5" '
            'style="width: 100%; max-width: 30rem; height: auto">'
        )
        return Picture(f"{opening}{''.join(self.parts)}</svg>", "; ".join(self.told))


def draw(number: int) -> Picture:
    """Draw the sketch of a puzzle."""
    sketch = Sketch()
    SKETCHES[number - 1](sketch)
    return sketch.picture


def mask(s: Sketch) -> None:
    """A query sees entries up to its own position."""
    positions = [0, 2, 3, 5, 6]
    s.row("positions", positions)
    for query in (5, 6):
        kinds = ["kept" if each <= query else "gone" for each in positions]
        s.row(f"query at {query}", ["seen" if x == "kept" else "0" for x in kinds], kinds)
    s.say("The probabilities of what a query sees add up to 1.")


def summed(s: Sketch) -> None:
    """Two heads, two queries."""
    received = np.array([0.8, 0.6, 0.1])
    weights = np.array([[[0.5, 0.4, 0.1], [0.1, 0.8, 0.1]], [[0.2, 0.2, 0.6], [0.4, 0.2, 0.4]]])
    s.row("received so far", received)
    for head, rows in enumerate(weights):
        for query, row in enumerate(rows):
            s.row(f"head {head}, query {query}", row)
    s.row("received now", (received + weights.sum(1).mean(0)).round(2), ["kept"] * 3)


H, VALUES, SPAN = np.array([0.5, 0.3, 0.2]), np.array([[0.0], [4.0], [10.0]]), (-1.0, 11.0)


def moved(s: Sketch) -> None:
    """The output without one entry."""
    x, without = (H @ VALUES).item(), output_without(np.log(H), VALUES, [2]).item()
    values = [(v.item(), f"v{j} · {w}") for j, (v, w) in enumerate(zip(VALUES, H, strict=True))]
    s.axis("values · weights", values, SPAN)
    s.axis("outputs", [(without, "without v2"), (x, "X")], SPAN)
    s.arrow(x, without, SPAN, f"{eviction_error(H, VALUES)[2]:.2f}")


def plain_mean(s: Sketch) -> None:
    """The mean in the place of the output."""
    s.axis("values", [(v.item(), f"v{j}") for j, v in enumerate(VALUES)], SPAN)
    mean = float(VALUES.mean())
    s.axis("middle", [((H @ VALUES).item(), "X"), (mean, "mean of v")], SPAN)
    s.say("The distance of a value is measured from the mean, not from X.")


def intervals(s: Sketch) -> None:
    """One entry over ten steps."""
    active = [1, 3, 8]
    width = 31
    s.text(0, 20, "step")
    s.text(0, 46, "active")
    for step in range(10):
        x = 60 + step * width
        s.text(x + 12, 20, step, 'text-anchor="middle"')
        kind = FILLS["kept" if step in active else "gone"]
        s.parts.append(f'<rect x="{x}" y="30" width="{width - 3}" height="21" rx="3" {kind}/>')
    s.y = 62
    s.told.append(f"activated at the steps {active}")
    longest = max(np.diff(active))
    s.say(f"After step 8: stamp {active[-1]}; intervals 2 and 5, the longest {longest}.")


def keeping(s: Sketch) -> None:
    """Protected first, then the highest; the later of two equal ones."""
    s.row("scores", [0.2, 0.9, 0.5, 0.1, 0.5], ["protected", "kept", "gone", "gone", "kept"])
    s.row("index", range(5))
    s.say("Green: protected. Room for 2 more: blue. The later 0.5 stays.")
    s.row("keep set", [0, 1, 4])


def gathered(s: Sketch) -> None:
    """Each head its own."""
    for head, keep in enumerate(([0, 2, 3], [1, 2, 4])):
        entries = [f"{'ab'[head]}{j}" for j in range(5)]
        s.row(f"head {head}", entries, ["kept" if j in keep else "gone" for j in range(5)])
        s.row("becomes", [entries[j] for j in keep])


def rotated(s: Sketch) -> None:
    """Positions in the text, not places in the cache."""
    kept, seen = [0, 1, 4, 5], 7
    s.row("in the text", range(6), ["kept" if j in kept else "gone" for j in range(6)])
    s.row("in the cache", kept, ["kept"] * 4)
    s.row("distance", [seen - j for j in kept])
    s.say(f"{seen} tokens were seen; distances are those in the text.")


def paged(s: Sketch) -> None:
    """Pages in any order."""
    page, table = 2, [1, -1, 0]
    s.row("table", table, ["kept" if each >= 0 else "gone" for each in table])
    s.row("memory, page 0", ["p4", "p5"], ["kept"] * 2)
    s.row("memory, page 1", ["p0", "p1"], ["kept"] * 2)
    kept = [p * page + j for p, each in enumerate(table) if each >= 0 for j in range(page)]
    s.row("positions", kept)
    s.row("vectors", [f"p{j}" for j in kept])


def coded(s: Sketch) -> None:
    """Two bits: four levels."""
    x = np.array([1.0, 1.7, 2.4, 4.0])
    scale = (x.max() - x.min()) / 3
    codes = np.round((x - x.min()) / scale).astype(int)
    s.row("x", x)
    s.row("codes, 2 bits", codes, ["kept"] * 4)
    s.row("read back", (scale * codes + x.min()).round(2))
    s.say(f"Scale {scale:.0f}, zero {x.min():.0f}: off by at most {scale / 2:.1f}.")


def gain(s: Sketch) -> None:
    """Flat up to the budget."""
    budget, counts = 8, np.linspace(1, 40, 79)
    with np.errstate(invalid="ignore", divide="ignore"):
        grown = np.sqrt(2 * np.log(counts / budget))
    factors = np.where(counts > budget, grown, 1.0)
    pairs = zip(40 + 8 * counts, 100 - 45 * factors, strict=True)
    points = " ".join(f"{x:.0f},{y:.1f}" for x, y in pairs)
    s.parts.append(f'<polyline points="{points}" fill="none" stroke="#4a8fdb" stroke-width="2"/>')
    s.path("M40 10V102H365", "currentColor")
    s.text(8, 59, "1")
    s.path("M36 55h4", "currentColor")
    s.text(40 + 8 * budget, 117, "k", 'text-anchor="middle"')
    s.text(365, 117, "tokens that compete, i", 'text-anchor="end"')
    s.text(46, 18, "factor")
    s.told.append("the factor is 1 up to k tokens, 0 just above, and grows slowly")
    s.y = 120


def protecting(s: Sketch) -> None:
    """Two heads; one has lost a first token."""
    for head, positions in enumerate(([0, 1, 4, 6, 7], [0, 3, 4, 5, 7])):
        newest = positions[-2:]
        marks = ["protected" if each < 2 or each in newest else "" for each in positions]
        s.row(f"head {head}", positions, marks)
    s.say("sinks = 2, recent = 2. Head 1 has evicted position 1 already.")


SKETCHES: Sequence[Callable[[Sketch], None]] = (
    *(mask, summed, moved, plain_mean, intervals, keeping, gathered, rotated, paged, coded, gain),
    protecting,
)
"""In the order of the puzzles."""
