"""A drawing of the packages, made from the imports: each stands above those that it imports.

It is as wide as a phone, so that its labels can be read there.
"""

from collections.abc import Mapping, Sequence
from html import escape

from packages import FRONT, LAB, REFERENCE_PACKAGES, Graph, package, read_graph

WIDTH, TITLE, BOX, GAP, EDGE = 340, 26, 30, 8, 12
"""Width, heights of a band's title and of a package, gaps, and a band's margin, in pixels."""
ARROW = 22
"""Height of the arrow between two bands."""
ACROSS = 2
"""Packages side by side, so that their names fit."""
STUDY, COMMANDS, ENGINE, PAPERS = (
    "docs/study: what we found",
    "fast/lab: the command line",
    "fast: the engine",
    "reference: the papers",
)
"""The bands, each of which imports only from itself and from those below it."""

Arrows = Mapping[str, set[str]]
"""The packages that each package imports."""


def draw() -> str:
    """Return the drawing as an ``svg`` element in the colour of the text around it."""
    graph = read_graph()
    parts, y = [], 0
    for band, rows in bands(graph).items():
        height = TITLE + len(rows) * (BOX + GAP) + (EDGE - GAP if rows else 0)
        parts.append(
            f'<rect class="kvlab-band" x="1" y="{y + 1}" width="{WIDTH - 2}" height="{height}" '
            f'rx="6"/><text x="{WIDTH / 2:g}" y="{y + 19}"><tspan class="kvlab-band-name">'
            f"{escape(band).replace(':', '</tspan>:', 1)}</text>"
        )
        for number, row in enumerate(rows):
            parts += boxes(row, y + TITLE + number * (BOX + GAP))
        y += height
        if band != PAPERS:
            parts.append(arrow(y))
            y += ARROW
    y += GAP
    said = "; ".join(
        f"{band}: {', '.join(name for row in rows for name in row)}"
        for band, rows in bands(graph).items()
    )
    return (
        f'<svg class="kvlab-packages" viewBox="0 0 {WIDTH} {y}" role="img" '
        f'aria-label="{escape(said)}" xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


def arrow(y: float) -> str:
    """Draw an arrow from one band down to the next, which it imports."""
    middle, end = WIDTH / 2, y + ARROW - 2
    return (
        f'<path class="kvlab-arrow" d="M{middle:g} {y + 3}V{end}m-5 -6l5 6l5 -6"/>'
        f'<text class="kvlab-imports" x="{middle + 36:g}" y="{y + 15}">imports</text>'
    )


def boxes(names: Sequence[str], y: float) -> list[str]:
    """Draw the packages of one row."""
    width = (WIDTH - 2 * EDGE - (len(names) - 1) * GAP) / len(names)
    left = [EDGE + number * (width + GAP) for number in range(len(names))]
    return [
        f'<rect class="kvlab-package" x="{x:g}" y="{y}" width="{width:g}" height="{BOX}" rx="4"/>'
        f'<text x="{x + width / 2:g}" y="{y + 20}">{escape(name)}</text>'
        for name, x in zip(names, left, strict=True)
    ]


def bands(graph: Graph) -> dict[str, list[tuple[str, ...]]]:
    """Return the rows of packages of each band, the uppermost first."""
    packages = drawn_packages(graph)
    arrows = arrows_between(graph, packages)
    found: dict[str, list[str]] = {STUDY: [], COMMANDS: [], ENGINE: [], PAPERS: []}
    for name in sorted(arrows, key=lambda name: (-depth(arrows, name), name)):
        found[band_of(name)].append(name)
    return {
        band: [
            row
            for height in dict.fromkeys(depth(arrows, name) for name in names)
            for row in cut([name for name in names if depth(arrows, name) == height])
        ]
        for band, names in found.items()
    }


def cut(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Cut the packages of one height into rows."""
    return [tuple(names[first : first + ACROSS]) for first in range(0, len(names), ACROSS)]


def band_of(name: str) -> str:
    """Return the band of a package."""
    if name.startswith("lab/"):
        return COMMANDS
    return PAPERS if name in REFERENCE_PACKAGES else ENGINE


def drawn_packages(graph: Graph) -> Mapping[str, str]:
    """Return the package of each module.

    The lab's modules that are in none of its packages serve them all, and are not drawn.
    """
    packages = {name: package(name) for name in graph}
    for name, own in packages.items():
        if own == "lab":
            inner = name.removeprefix(f"{LAB}.").partition(".")
            packages[name] = f"lab/{inner[0]}" if inner[2] else FRONT
    return packages


def arrows_between(graph: Graph, packages: Mapping[str, str]) -> Arrows:
    """Return the packages that each package imports from."""
    arrows: dict[str, set[str]] = {own: set() for own in packages.values() if own != FRONT}
    for name, targets in graph.items():
        if packages[name] != FRONT:
            arrows[packages[name]] |= {packages[t] for t in targets} - {packages[name], FRONT}
    return arrows


def depth(arrows: Arrows, name: str) -> int:
    """Return how many packages stand below a package, one on another."""
    return 1 + max((depth(arrows, below) for below in arrows[name]), default=-1)
