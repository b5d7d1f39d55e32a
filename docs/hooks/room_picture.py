"""A drawing of the rooms and of the arrows between them, made from the imports."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from rooms import FRONT, REFERENCE_ROOMS, Graph, reachable, read_graph, room

WIDTH, BOX, HEIGHT, GAP = 900, 128, 46, 40
"""Width of the drawing; width and height of a room; gap between two rows; in pixels."""
BORDER = 620
"""Where the fast side begins."""

Arrows = Mapping[str, set[str]]
"""The rooms on which each room rests."""


@dataclass(frozen=True)
class Box:
    """One room as it is drawn."""

    name: str
    modules: int
    x: float
    y: float


def draw() -> str:
    """Return the drawing as an ``svg`` element in the colour of the text around it."""
    graph = read_graph()
    rooms = drawn_rooms(graph)
    arrows = direct(arrows_between_rooms(graph, rooms))
    boxes = place(arrows, Counter(rooms.values()))
    height = max(box.y for box in boxes.values()) + HEIGHT + 10
    lines = [
        arrow(boxes[above], boxes[below])
        for above, others in sorted(arrows.items())
        for below in sorted(others)
    ]
    description = "; ".join(
        f"{above} rests on {', '.join(sorted(others))}"
        for above, others in arrows.items()
        if others
    )
    return (
        f'<svg class="kvlab-rooms" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(description)}" xmlns="http://www.w3.org/2000/svg">'
        '<defs><marker id="kvlab-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="currentColor"/></marker>'
        f"</defs>{''.join(lines)}{''.join(map(rectangle, boxes.values()))}</svg>"
    )


def drawn_rooms(graph: Graph) -> Mapping[str, str]:
    """Return the room of each module; what the kernels may use is a room of its own."""
    rooms = {name: room(name) for name in graph}
    for name, own in rooms.items():
        if own == "engine" and not any(room(each) == "kernels" for each in reachable(graph, name)):
            rooms[name] = "engine's base"
    return rooms


def arrows_between_rooms(graph: Graph, rooms: Mapping[str, str]) -> Arrows:
    """Return the rooms that each room imports from.

    Args:
        rooms: the room of each module.
    """
    arrows: dict[str, set[str]] = {own: set() for own in rooms.values() if own != FRONT}
    for name, targets in graph.items():
        if rooms[name] != FRONT:
            below = {rooms[each] for each in targets}
            arrows[rooms[name]] |= below - {rooms[name], FRONT}
    return arrows


def direct(arrows: Arrows) -> Arrows:
    """Leave out an arrow that a path of others replaces."""
    return {
        above: {
            below
            for below in others
            if not any(below in reachable(arrows, other) for other in others - {below})
        }
        for above, others in arrows.items()
    }


def depth(arrows: Arrows, name: str) -> int:
    """Return how many rooms lie below a room, one on another."""
    return 1 + max((depth(arrows, below) for below in arrows[name]), default=-1)


def place(arrows: Arrows, sizes: Mapping[str, int]) -> Mapping[str, Box]:
    """Place every room above those on which it rests: the reference left, the fast side right.

    Args:
        sizes: the modules of each room.
    """
    depths = {name: depth(arrows, name) for name in arrows}
    boxes = {}
    for reference, left, right in ((True, 0, BORDER), (False, BORDER, WIDTH)):
        for row in set(depths.values()):
            names = [n for n in depths if depths[n] == row and (n in REFERENCE_ROOMS) == reference]
            for number, name in enumerate(sorted(names)):
                x = left + (right - left) * (number + 0.5) / len(names) - BOX / 2
                y = 10 + (max(depths.values()) - row) * (HEIGHT + GAP)
                boxes[name] = Box(name, sizes[name], x, y)
    return boxes


def rectangle(box: Box) -> str:
    """Draw a room: its name, and how many modules it has."""
    side = "reference" if box.name in REFERENCE_ROOMS else "fast"
    middle = box.x + BOX / 2
    plural = "" if box.modules == 1 else "s"
    return (
        f'<g class="kvlab-room kvlab-room-{side}">'
        f'<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{BOX}" height="{HEIGHT}" rx="6"/>'
        f'<text x="{middle:.0f}" y="{box.y + 20:.0f}">{escape(box.name)}</text>'
        f'<text class="kvlab-room-size" x="{middle:.0f}" y="{box.y + 36:.0f}">'
        f"{box.modules} module{plural}</text></g>"
    )


def arrow(above: Box, below: Box) -> str:
    """Draw an arrow from a room to one on which it rests."""
    x, y = above.x + BOX / 2, above.y + HEIGHT
    to_x, to_y = below.x + BOX / 2, below.y
    bend = (to_y - y) / 2
    return (
        f'<path class="kvlab-arrow" d="M{x:.0f} {y:.0f}C{x:.0f} {y + bend:.0f} '
        f'{to_x:.0f} {to_y - bend:.0f} {to_x:.0f} {to_y - 2:.0f}" marker-end="url(#kvlab-tip)"/>'
    )
