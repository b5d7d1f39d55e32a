"""How smooth the page of ``kvlab view`` is in headless Chromium.

    python -m kvlab.fast.lab.benchmarks.viewer --out result.json

Needs Playwright and a Chromium (Debian: ``apt-get install chromium``); draws in software, so no
GPU takes part. The page shows a timeline of random decisions, as large as asked for.

Every round opens the page anew. First come the paints, then, in an order drawn anew, movements
(`MOVEMENTS`) and changes of a selector (`CHANGES`). The browser draws at most 60 frames a second.
"""

import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from kvlab.fast.lab.benchmarks.machine import versions
from kvlab.fast.lab.benchmarks.results import Out, result_of, shuffled, spread, write
from kvlab.fast.lab.terminal import progress
from kvlab.fast.lab.viewer import template, write_viewer
from kvlab.reference.simulator.synthetic import synthetic

SCHEMA = 1
VIEWPORT = {"width": 1280, "height": 900}
PROMPT, EVERY = 0.25, 128
"""Share of the tokens that is the prompt; steps between two snapshots."""
METHODS = 2
"""Methods on the page."""
PLAYED = 60
"""Steps per second, the fastest that the page offers."""
ALL, ONE = ("all", "all"), ("0", "0")
"""Values of the selectors of layer and KV head."""

PAINTS = ("first paint", "texts drawn")
"""The first paint of anything, and of the texts of the page."""

MOVEMENTS = {
    "drag": ALL,
    "drag, one head": ONE,
    "jump": ALL,
    "jump, one head": ONE,
    "play": ALL,
    "play, one head": ONE,
}
"""Each with the values of the selectors: ``drag`` moves the slider evenly from first step to last,
``jump`` puts it anywhere at every frame, ``play`` plays at `PLAYED` from the middle."""

CHANGES = {
    "layer": ("#layer", "0"),
    "KV head": ("#head", "0"),
    "method": ("#left-method", "1"),
}
"""Each with the selector that is changed and the value that it gets."""


def write_synthetic_viewer(path: Path, tokens: int, **size: Any) -> None:
    """Write the page to be measured."""
    prompt, every = max(1, int(PROMPT * tokens)), min(EVERY, tokens)
    write_viewer(synthetic(tokens=tokens, prompt=prompt, every=every, **size), path)


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


class OpenedPage:
    """The page in a browser, opened anew."""

    def __init__(self, browser: Any, address: str) -> None:
        self.page = browser.new_page(viewport=VIEWPORT)
        self.problems: list[str] = []
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.add_init_script(template("viewer.benchmark.js"))
        self.page.goto(address)

    def ask(self, function: str, *arguments: Any) -> Any:
        """Call a function of ``viewer.benchmark.js``."""
        return self.page.evaluate(
            f"(given) => viewerBenchmark.{function}(...given)", list(arguments)
        )

    def choose(self, layer: str, head: str) -> None:
        """Set the selectors of layer and KV head."""
        self.page.select_option("#layer", layer)
        self.page.select_option("#head", head)

    def move(self, name: str, seconds: float) -> list[float]:
        """Make one of `MOVEMENTS`; return the times between its frames."""
        self.choose(*MOVEMENTS[name])
        return self.ask("move", name.partition(",")[0], 1000 * seconds, str(PLAYED))

    def change(self, name: str) -> float:
        """Make one of `CHANGES`; return the time until it was drawn."""
        self.choose(*ALL)
        self.page.select_option("#left-method", "0")
        return self.ask("change", *CHANGES[name])

    def close(self) -> None:
        """Close the page.

        Raises:
            RuntimeError: if the page reported an error.
        """
        self.page.close()
        if self.problems:
            raise RuntimeError(f"the page reports: {self.problems[0]}")


def measure_round(
    browser: Any, address: str, seconds: float, turn: int, advance: Callable[[], Any]
) -> dict[str, Any]:
    """Open the page anew and do everything once; call ``advance`` after each part.

    Returns:
        Milliseconds: of `PAINTS` from the start of the navigation; of `MOVEMENTS` from each frame
        to the next; of `CHANGES` until they were drawn.

    Raises:
        RuntimeError: if the page reported an error.
    """
    page = OpenedPage(browser, address)
    found: dict[str, Any] = dict(zip(PAINTS, page.ask("paints"), strict=True))
    advance()
    for name in shuffled([*MOVEMENTS, *CHANGES], turn):
        found[name] = page.move(name, seconds) if name in MOVEMENTS else page.change(name)
        advance()
    page.close()
    return found


def over_rounds(values: Sequence[float]) -> dict[str, Any]:
    """Return every round's value, their median, lowest and highest."""
    return {"rounds": values, **spread(values)}


def frame_times(rounds: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Sum up one movement, from the times between its frames in milliseconds."""
    together = sorted(interval for intervals in rounds for interval in intervals)
    most, longest = together[int(0.95 * (len(together) - 1))], together[-1]
    middle = statistics.median(together)
    return {
        "frames": len(together),
        "frames_per_second": over_rounds([1000 / statistics.fmean(each) for each in rounds]),
        "interval_ms": {"median": middle, "percentile_95": most, "longest": longest},
    }


def summary(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the rounds as the result has them, times in milliseconds."""
    parts = (
        ("paint_ms", PAINTS, over_rounds),
        ("frames", MOVEMENTS, frame_times),
        ("change_ms", CHANGES, over_rounds),
    )
    return {
        part: {name: joined([each[name] for each in rounds]) for name in names}
        for part, names, joined in parts
    }


def main(
    out: Out = None,
    rounds: Annotated[int, typer.Option(min=1, help="Times to open the page.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.05, help="Length of each movement.")] = 3.0,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens that are read.")] = 4000,
    layers: Annotated[int, typer.Option(min=1, help="Layers.")] = 8,
    kv_heads: Annotated[int, typer.Option(min=1, help="KV heads of each layer.")] = 4,
    budget: Annotated[int, typer.Option(min=1, help="Entries per KV head.")] = 1200,
    browser: Annotated[Path | None, typer.Option(help="A Chromium; Debian's by default.")] = None,
) -> None:
    """Measure first paint, frames per second and selectors of the viewer."""
    size = {"tokens": tokens, "layers": layers, "kv_heads": kv_heads, "budget": budget}
    size, load = {**size, "methods": METHODS}, os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as directory, chromium(browser) as running:
        path = Path(directory) / "view.html"
        write_synthetic_viewer(path, **size)
        with progress() as bar:
            task = bar.add_task("viewer", total=rounds * (1 + len(MOVEMENTS) + len(CHANGES)))
            measured = [
                measure_round(running, path.as_uri(), seconds, turn, lambda: bar.advance(task))
                for turn in range(rounds)
            ]
        page_bytes, chromium_version = path.stat().st_size, running.version
    found = {
        "parameters": {"rounds": rounds, "seconds": seconds, **size},
        "page_bytes": page_bytes,
        **summary(measured),
    }
    result = result_of(SCHEMA, None, found)
    result["machine"] |= {"load_before": load, "load_after": os.getloadavg()[0]}
    result["versions"] = {**versions("kvlab", "playwright"), "chromium": chromium_version}
    write(result, out)


if __name__ == "__main__":
    sys.exit(typer.run(main))
