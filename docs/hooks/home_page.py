"""The first page plays a generation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from marks import replaced
from method_figures import drawn, unsearched
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from kvlab.fast.lab.viewing import (
    Source,
    ViewedRow,
    needle_source,
    problem_source,
    record_methods,
    write_viewer,
)
from kvlab.fast.models import fetched_directory, is_fetched
from study import main_result
from study.stored import REAL, plain_name

ROOT = Path(__file__).parents[2]

MARK = "<!-- played -->"
"""Where the page plays it."""
RESULT = "<!-- main result -->"
"""Where the page has the picture of the README, in its own ink."""

LARGEST = 2_000_000
"""Bytes of a page that is played."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that play a generation."""
    for page in pages_played():
        recorded(page)
        source = str(ROOT / "build" / page.name)
        files.append(File.generated(config, page.name, abs_src_path=source))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Play a generation at one mark of the page, and draw the main result at the other.

    Raises:
        PluginError: if a mark is missing.
    """
    if page.file.src_uri != "index.md":
        return markdown
    made = {MARK: played, RESULT: lambda: unsearched(main_result.draw())}
    return replaced(markdown, page, made)


# --- the generations -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Played:
    """A page that plays a generation."""

    name: str
    """Of the file."""
    text: str
    """What is played, in a sentence."""
    source: Callable[[], Source]
    methods: Sequence[str]
    budget: str
    most_values: int
    """Entries in the snapshots of a method: a page of this size has to be small."""


PROGRAM = Played(
    name="viewer.html",
    text="The embedded model runs a program and writes out its steps.",
    source=problem_source,
    methods=(
        "h2o",
        "caote:h2o",
        "lazy_eviction@threshold=0.01",
        "desirekv@interval=32,selector=8,group=32",
        "ahakv@recent=16",
        "kivi@key_bits=4,value_bits=4,residual=32",
    ),
    budget="50%",
    most_values=2**15,
)
ENGLISH = Played(
    name="english.html",
    text="SmolLM2, a language model, reads a passage of *Northanger Abbey* in which two numbers "
    "are hidden, and is asked for the first one.",
    source=lambda: needle_source(fetched_directory(REAL)),
    methods=("h2o", "tova"),
    budget="60%",
    most_values=40_000,
)


def pages_played() -> list[Played]:
    """Return the pages that can be made here, the one of the first page first."""
    return [ENGLISH, PROGRAM] if is_fetched(REAL) else [PROGRAM]


@cache
def recorded(page: Played) -> tuple[ViewedRow, ...]:
    """Write a page that plays a generation; return what became of every method.

    Raises:
        PluginError: if a method cannot be played, or the page is too large to stand on another.
    """
    path = ROOT / "build" / page.name
    path.parent.mkdir(exist_ok=True)
    found = record_methods(page.source(), page.methods, page.budget, most_values=page.most_values)
    refused = [f"{row.method}: {row.refusal}" for row in found.rows if row.refusal is not None]
    if refused:
        raise PluginError(f"the first page cannot play {'; '.join(refused)}")
    write_viewer(found.timeline, path)
    if (size := path.stat().st_size) > LARGEST:
        raise PluginError(f"{path} has {size} bytes, more than {LARGEST}")
    return found.rows


def played() -> str:
    """Show the first of the pages, say what it plays, and where the others are."""
    first, *others = pages_played()
    frame = (
        f'<iframe class="kvlab-frame" src="{first.name}?embed&amp;left=0&amp;right=1" '
        'loading="lazy"\n'
        '  title="What two methods keep of a generation, token by token"></iframe>'
    )
    parts = [f"{told(first)} [On a page of its own]({first.name}).", frame, still("h2o")]
    parts += [f"{told(page)} [Its page]({page.name})." for page in others]
    return "\n\n".join(parts)


def still(spec: str) -> str:
    """Show, without scripts, a picture in the place of the frame."""
    hidden = "<style>.md-typeset iframe.kvlab-frame { display: none }</style>"
    return (
        f"<noscript>{hidden}<p>Scripts are switched off, so nothing plays. The picture has what "
        f"<code>{spec}</code> keeps of another text: a row is a token, a column a step, and grey "
        f"is evicted.</p>{unsearched(drawn(spec))}</noscript>"
    )


def told(page: Played) -> str:
    """Say what is played, and which methods lead to the right answer."""
    rows = recorded(page)
    budget = next(row.budget for row in rows if row.budget is not None)
    right, wrong = (
        ", ".join(plain_name(row.method) for row in rows if row.solved is solved) or "none"
        for solved in (True, False)
    )
    return (
        f"{page.text} Budget: {budget} entries ({page.budget.replace('%', ' %')}). The answer is "
        f"right under {right}, and wrong under {wrong}."
    )
