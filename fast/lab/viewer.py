"""The page of ``kvlab view``: a timeline and the script that plays it, in one HTML file."""

from importlib.resources import files
from pathlib import Path

from markupsafe import Markup

from kvlab.fast.lab.reports import write_page
from kvlab.reference.simulator.timeline import Timeline, write

TITLE = "What every method kept"


def write_viewer(timeline: Timeline, path: Path, title: str = TITLE) -> None:
    """Write a page that needs no other file; a file of that name is replaced.

    Raises:
        ValueError: if the timeline holds no run.
    """
    if not timeline.runs:
        raise ValueError("a timeline must hold at least one run to be shown")
    write_page(
        path,
        "viewer.html.jinja",
        title=title,
        style=Markup(template("viewer.css")),
        script=Markup(template("viewer.js")),
        timeline=Markup(write(timeline).replace("<", "\\u003c")),  # it must not end the script
    )


def template(name: str) -> str:
    """Return a file that belongs to the page."""
    return (files("kvlab.fast.lab") / "templates" / name).read_text(encoding="utf-8")
