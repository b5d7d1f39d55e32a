"""How smooth the page of ``kvlab view`` is in headless Chromium.

    python -m kvlab.fast.lab.benchmarks.viewer --out result.json

Needs Playwright and a Chromium (Debian: ``apt-get install chromium``); draws in software, so no
GPU takes part. The page shows a timeline of random decisions, as large as asked for.

Every round opens the page anew. First come the paints, then, in an order drawn anew, movements
(`MOVEMENTS`) and changes of a selector (`CHANGES`). The browser draws at most 60 frames a second.
"""

import json
import os
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress

from kvlab.fast.lab.benchmarks.machine import machine, versions
from kvlab.fast.lab.commands.terminal import console, progress
from kvlab.fast.lab.viewer import write_viewer
from kvlab.reference.timeline.synthetic import synthetic

SCHEMA = 1
VIEWPORT = {"width": 1280, "height": 900}
PROMPT, EVERY = 0.25, 128
"""Share of the tokens that is the prompt; steps between two snapshots."""
PLAYED = 60
"""Steps per second, the fastest that the page offers."""
ALL, ONE = ("all", "all"), ("0", "0")
"""What the selectors of layer and KV head say."""

MOVEMENTS = {
    "drag": ALL,
    "drag, one head": ONE,
    "jump": ALL,
    "jump, one head": ONE,
    "play": ALL,
    "play, one head": ONE,
}
"""Each with what the selectors say: ``drag`` moves the slider evenly from first step to last,
``jump`` puts it anywhere at every frame, ``play`` plays at `PLAYED` from the middle."""

CHANGES = {
    "layer": ("#layer", "0"),
    "KV head": ("#head", "0"),
    "method": ("#left-method", "1"),
}
"""Each with the selector that is changed and the value that it gets."""

DONE = ("paint", *MOVEMENTS, *CHANGES)
"""What a round does."""

WHEN_DRAWN = """
addEventListener("DOMContentLoaded", () => requestAnimationFrame(() => requestAnimationFrame(
  () => { window.kvlabDrawn = performance.now(); })));
"""
"""The page's script has built the texts when the document is loaded; the next frame draws them, and
a frame starts only when the one before it has been handed on."""

PAINTS = """async () => {
  const painted = () => performance.getEntriesByName("first-contentful-paint")[0];
  while (!window.kvlabDrawn || !painted()) await new Promise((done) => setTimeout(done, 20));
  return [painted().startTime, window.kvlabDrawn];
}"""

MOVE = """async ([movement, milliseconds, speed]) => {
  const frame = () => new Promise(requestAnimationFrame);
  const slider = document.getElementById("step"), steps = Number(slider.max);
  const put = (step) => { slider.value = step; slider.dispatchEvent(new Event("input")); };
  put(movement === "play" ? steps >> 1 : 0);
  if (movement === "play") {
    const select = document.getElementById("speed");
    select.value = speed;
    select.dispatchEvent(new Event("change"));
  }
  for (let settled = 0; settled < 5; settled++) await frame();
  if (movement === "play") document.getElementById("play").click();
  const times = [await frame()];
  while (times.at(-1) - times[0] < milliseconds) {
    const share = (times.at(-1) - times[0]) / milliseconds;
    if (movement === "drag") put(Math.round(share * steps));
    if (movement === "jump") put(times.length * 1789 % (steps + 1));
    times.push(await frame());
  }
  const play = document.getElementById("play");
  if (play.getAttribute("aria-pressed") === "true") play.click();
  return times.slice(1).map((time, index) => time - times[index]);
}"""
"""Times from one frame's start to the next: the slider moves in a frame, whose drawing delays the
next one."""

CHANGE = """async ([id, value]) => {
  const frame = () => new Promise(requestAnimationFrame);
  const select = document.querySelector(id);
  for (let settled = 0; settled < 5; settled++) await frame();
  const before = performance.now();
  select.value = value;
  select.dispatchEvent(new Event("change"));
  await frame();
  await frame();
  return performance.now() - before;
}"""


@dataclass(frozen=True)
class Size:
    """What the page holds."""

    tokens: int
    layers: int
    kv_heads: int
    budget: int
    methods: int = 2


@dataclass(frozen=True)
class Round:
    """What one opened page did; all times in milliseconds."""

    first_paint: float
    """Of anything, from the start of the navigation."""
    texts_drawn: float
    """From the start of the navigation."""
    intervals: dict[str, list[float]]
    """By movement: from each frame to the next."""
    changes: dict[str, float]
    """By selector: until its change was drawn."""


def write_synthetic_viewer(size: Size, path: Path) -> None:
    """Write the page to be measured."""
    prompt = max(1, int(PROMPT * size.tokens))
    write_viewer(
        synthetic(
            size.methods,
            size.tokens,
            prompt,
            size.layers,
            size.kv_heads,
            size.budget,
            min(EVERY, size.tokens),
        ),
        path,
    )


@contextmanager
def chromium(executable: Path | None) -> Iterator[Any]:
    """Start a headless browser, Debian's by default.

    Raises:
        typer.BadParameter: if there is no browser, or no Playwright.
    """
    found = executable or shutil.which("chromium")
    if found is None or not Path(found).exists():
        asked = "no chromium on the PATH" if executable is None else f"{executable} does not exist"
        raise typer.BadParameter(f"{asked}; Debian: apt-get install chromium", param_hint="browser")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        raise typer.BadParameter("needs Playwright: pip install playwright") from None
    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=str(found), args=["--no-sandbox"])
        try:
            yield running
        finally:
            running.close()


def measure_round(
    browser: Any, address: str, seconds: float, turn: int, advance: Any = lambda: None
) -> Round:
    """Open the page anew and do everything once; call ``advance`` after each of `DONE`.

    Raises:
        RuntimeError: if the page reported an error.
    """
    page = browser.new_page(viewport=VIEWPORT)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text))
    page.add_init_script(WHEN_DRAWN)
    page.goto(address)
    first, drawn = page.evaluate(PAINTS)
    advance()
    intervals, changes = {}, {}
    for name in random.Random(turn).sample(DONE[1:], len(DONE) - 1):
        if name in MOVEMENTS:
            choose(page, *MOVEMENTS[name])
            movement = name.partition(",")[0]
            intervals[name] = page.evaluate(MOVE, [movement, 1000 * seconds, str(PLAYED)])
        else:
            choose(page, *ALL)
            page.select_option("#left-method", "0")
            changes[name] = page.evaluate(CHANGE, CHANGES[name])
        advance()
    page.close()
    if problems:
        raise RuntimeError(f"the page reports: {problems[0]}")
    return Round(
        first,
        drawn,
        {name: intervals[name] for name in MOVEMENTS},
        {name: changes[name] for name in CHANGES},
    )


def choose(page: Any, layer: str, head: str) -> None:
    """Set the selectors of layer and KV head."""
    page.select_option("#layer", layer)
    page.select_option("#head", head)


def spread(values: list[float]) -> dict[str, Any]:
    """Return every round's value, their median, lowest and highest."""
    return {
        "rounds": values,
        "median": statistics.median(values),
        "lowest": min(values),
        "highest": max(values),
    }


def frames_per_second(intervals: list[float]) -> float:
    """Return the mean over one movement, from the times between its frames in milliseconds."""
    return 1000 / statistics.fmean(intervals)


def summary(rounds: list[Round]) -> dict[str, Any]:
    """Join the rounds: what the result says of them, times in milliseconds."""
    frames = {}
    for name in rounds[0].intervals:
        each = [one.intervals[name] for one in rounds]
        together = sorted(interval for intervals in each for interval in intervals)
        frames[name] = {
            "frames": len(together),
            "frames_per_second": spread([frames_per_second(one) for one in each]),
            "interval_ms": {
                "median": statistics.median(together),
                "percentile_95": together[int(0.95 * (len(together) - 1))],
                "longest": together[-1],
            },
        }
    return {
        "paint_ms": {
            "first paint": spread([one.first_paint for one in rounds]),
            "texts drawn": spread([one.texts_drawn for one in rounds]),
        },
        "frames": frames,
        "change_ms": {
            name: spread([one.changes[name] for one in rounds]) for name in rounds[0].changes
        },
    }


def print_summary(found: dict[str, Any]) -> None:
    """Print the result for people."""
    for name, each in {**found["paint_ms"], **found["change_ms"]}.items():
        says = f"{each['median']:.0f} ms ({each['lowest']:.0f} to {each['highest']:.0f})"
        console.print(f"  {name:16s} {says}", highlight=False)
    for name, each in found["frames"].items():
        rate, interval = each["frames_per_second"], each["interval_ms"]
        console.print(
            f"  {name:16s} {rate['median']:.0f} frames/s ({rate['lowest']:.0f} to "
            f"{rate['highest']:.0f}), interval {interval['median']:.0f} ms, 95 % within "
            f"{interval['percentile_95']:.0f} ms",
            highlight=False,
        )


def measure(size: Size, browser: Path | None, rounds: int, seconds: float) -> dict[str, Any]:
    """Write the page, open it ``rounds`` times; return size of the page, browser and summary."""
    with tempfile.TemporaryDirectory() as directory, chromium(browser) as running:
        path = Path(directory) / "view.html"
        write_synthetic_viewer(size, path)
        with progress() as bar:
            found = measure_rounds(bar, running, path.as_uri(), rounds, seconds)
        return {
            "page_bytes": path.stat().st_size,
            "chromium": running.version,
            **summary(found),
        }


def measure_rounds(
    bar: Progress, browser: Any, address: str, rounds: int, seconds: float
) -> list[Round]:
    """Measure the page as often as asked."""
    task = bar.add_task("viewer", total=rounds * len(DONE))
    return [
        measure_round(browser, address, seconds, turn, lambda: bar.advance(task))
        for turn in range(rounds)
    ]


def main(
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Times to open the page.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.05, help="Length of each movement.")] = 3.0,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens that are read.")] = 4000,
    layers: Annotated[int, typer.Option(min=1, help="Layers.")] = 8,
    kv_heads: Annotated[int, typer.Option(min=1, help="KV heads of each layer.")] = 4,
    budget: Annotated[int, typer.Option(min=1, help="Entries per KV head.")] = 1200,
    browser: Annotated[Path | None, typer.Option(help="A Chromium; Debian's by default.")] = None,
) -> None:
    """Measure first paint, frames per second and selectors of the viewer."""
    size = Size(tokens, layers, kv_heads, budget)
    load = os.getloadavg()[0]
    found = measure(size, browser, rounds, seconds)
    result = {
        "schema": SCHEMA,
        "machine": {**machine(None), "load_before": load, "load_after": os.getloadavg()[0]},
        "versions": {**versions("kvlab", "playwright"), "chromium": found.pop("chromium")},
        "parameters": {"rounds": rounds, "seconds": seconds, **asdict(size)},
        **found,
    }
    print_summary(found)
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(typer.run(main))
