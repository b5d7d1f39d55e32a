"""``kvlab perplexity`` and ``kvlab needle``: how well a model under a method still reads a text."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path
from shlex import quote
from typing import Any

from kvlab.fast.lab.bars import Bars
from kvlab.fast.lab.commands.compare import and_next, bars_of, print_found, run_shown
from kvlab.fast.lab.commands.options import (
    USUAL,
    Loading,
    check_output,
    load_tokenizer,
    read_budgets,
    read_methods,
    read_text,
    words,
)
from kvlab.fast.lab.evaluate.controls import gains_table, matched, seen
from kvlab.fast.lab.evaluate.own import passage
from kvlab.fast.lab.evaluate.pairs import Measure, Test, check_pairs, paired_tests, table_of_tests
from kvlab.fast.lab.points import MeasuredRow
from kvlab.fast.lab.sweep.design import Sweep
from kvlab.fast.lab.sweep.summary import FULL, LOSS, SOLVED, TaskSummary, joined, pooled
from kvlab.fast.lab.tables import Table, layout
from kvlab.fast.lab.terminal import RowPrinter, finish, print_caption, print_table
from kvlab.fast.models import model_location
from kvlab.reference.checks import check_at_least
from kvlab.reference.models import EMBEDDED
from kvlab.reference.tasks import reasoning

DEFINED = "reasoning"
"""The task whose definitions are needles."""
Tested = Mapping[str, Sequence[Test]]
"""Tests of pairs, and gains over controls."""


@dataclass(frozen=True)
class Texts:
    """What is read, under what, and what is tested."""

    text: Path | None = None
    batch_size: int | None = None
    pairs: str = ""
    budgets: list[str] | None = None
    controls: bool = True
    model: str | None = None

    def own_task(self, **only: object) -> str | None:
        """Return the task of an embedded model that reads no text; refuse what is of texts only."""
        model_location(self.model or "reasoner")  # before libraries are loaded for it
        task = None if self.text else EMBEDDED.get(self.model or "reasoner")
        for name, value in only.items():
            if task and value:
                raise ValueError(f"--{name} needs a --text, or a --model that reads English")
        return task

    @property
    def words(self) -> str:
        """What is typed to read the same."""
        given = {"model": self.model, "text": self.text}
        return "".join(f" --{name} {quote(str(x))}" for name, x in given.items() if x)

    def content(self) -> str:
        """Return the novel, or what a file holds; refuse one that cannot be read."""
        if self.text is not None:
            read_text("text", self.text)
        return passage(None if self.text is None else str(self.text))

    def sweep(
        self,
        tasks: Sequence[dict[str, Any]],
        methods: Sequence[str],
        usual: str,
        batch: int,
        loading: Loading,
        **how: Any,
    ) -> Sweep:
        """Return the sweep of tasks, at the ``usual`` budget if none is named."""
        if self.text is not None:
            self.content()
            tasks = [task | {"text": str(self.text)} for task in tasks]
        batch = batch if self.batch_size is None else self.batch_size
        check_at_least(1, batch_size=batch)
        pairs: Any = tuple(tuple(each.split()) for each in self.pairs.split(";") if each.strip())
        check_pairs(pairs, methods)
        return Sweep(
            models=(self.model or "reasoner",),
            tasks=tuple(tasks),
            methods=tuple(methods),
            budgets=read_budgets(self.budgets, usual),
            batch=batch,
            pairs=pairs,
            controls=self.controls,
            **vars(loading),
            **how,
        )


NOVEL = Texts()


def perplexity(
    methods: str = "h2o caote:h2o fast_caote:h2o tova caote:tova fast_caote:tova",
    window: int | None = None,
    prompt: int | None = None,
    windows: int | None = None,
    block_size: int | None = None,
    feed: str = "blocks",
    texts: Texts = NOVEL,
    loading: Loading = USUAL,
    table: bool = False,
    json: bool = False,
) -> None:
    """Measure the perplexity of a text under methods, against the full cache (CAOTE Table 4).

    A budget in percent is that share of a window.
    """
    own = texts.own_task(window=window, prompt=prompt)
    window, prompt = 4096 if window is None else window, 1 if prompt is None else prompt
    check_at_least(2, window=window)
    if windows is None:
        windows = 50 if own else _count_windows(texts, window)
    check_at_least(1, windows=windows)
    task = f"likelihood@of={own}" if own else f"perplexity@window={window},prompt={prompt}"
    tasks = [{"task": task, "feed": feed}]
    specs = [FULL, *(spec for spec in read_methods(methods) if spec != FULL)]
    how = {"problems": windows, "block_size": block_size}
    sweep = texts.sweep(tasks, specs, "50%", 32 if own else 1, loading, **how)
    (found,), settings, shown = _run(sweep, "perplexity", json, held=not table)
    if not json:
        size = "1 token" if feed == "steps" else f"{settings['block_size']} tokens"
        print_caption(f"rated in blocks of {size}", *shown.legend)
    rows, tables = [*found.points, *found.controls], [shown.layout.table(found.points)]
    tested = _compared(rows, sweep, LOSS)
    told = "" if json else _told(tested, LOSS, bars_of(found, LOSS), tables, table)
    told = and_next(told, f"needle{texts.words}" if own != "jumps" else "compare")
    finish({"settings": settings} | found.plain() | _plain(tested), found.points, json, (), told)


def needle(
    methods: str = "streaming_llm h2o caote:h2o tova caote:tova fast_caote:tova",
    lengths: str | None = None,
    depths: int = 5,
    trials: int = 10,
    seed: int = 0,
    chat: bool = False,
    block_size: int = 128,
    heat_map: Path = Path("kvlab-report/needle.svg"),
    texts: Texts = NOVEL,
    loading: Loading = USUAL,
    table: bool = False,
    json: bool = False,
) -> None:
    """Search needles over depth and length, and draw what was found (CAOTE Fig. 2, Table 5).

    A budget in percent is that share of a prompt and its answer.
    """
    own = texts.own_task(lengths=lengths, chat=chat)
    check_at_least(1, trials=trials, depths=depths)
    check_output("heat_map", heat_map)
    given = words(lengths or "512,1024,2048,4096")
    tasks = [{"task": f"haystack@length={n}", "chat": chat} for n in given]
    if own == DEFINED:
        tasks = [{"task": f"definition@variables={n}"} for n in reasoning.HELD_OUT_VARIABLES]
    elif own is not None:
        raise ValueError(f"--model {texts.model} has no needles of its own: it needs a --text")
    tasks = [each | {"depths": depths} for each in tasks]
    how = {"problems": trials * depths, "seeds": (seed,), "block_size": block_size}
    sweep = texts.sweep(tasks, read_methods(methods), "70%", 32 if own else 1, loading, **how)
    by = "length" if own is None else "variables"
    found, settings, shown = _run(sweep, by, json, held=not table)
    rows, points = joined(pooled(found)), [point for each in found for point in each.points]
    tested, told = _compared(rows, sweep, SOLVED), ""
    if not json:
        named = [row for row in rows if row.method in sweep.methods]
        tables = [shown.layout.table(points), layout("needles").table(named, "all lengths")]
        bars = Bars(named, attrgetter("interval"), "needles found")
        told = _told(tested, SOLVED, bars, tables, table)
    from kvlab.fast.lab.sweep.curves import heat_map as draw  # which takes its time to load

    draw(found, depths).save(heat_map)
    lines, data = [each.plain() for each in found], {"settings": settings}
    data |= {"rows": list(map(asdict, rows)), "lengths": lines} | _plain(tested)
    told = and_next(told, f"perplexity{texts.words}")
    finish(data, points, json, written=f"heat map: {heat_map}\n{told}")


def _count_windows(texts: Texts, window: int) -> int:
    content = texts.content()
    tokenizer = load_tokenizer(texts.model)
    from kvlab.fast.lab.generation import token_ids

    return max(1, len(token_ids(tokenizer, content)) // window)


def _run(
    sweep: Sweep, shown: str, as_json: bool, held: bool
) -> tuple[Sequence[TaskSummary], dict[str, Any], RowPrinter]:
    """Run a sweep and print what it finds; return it, what was asked, and what printed it."""
    title = f"{sweep.problems} of {'; '.join(part.task for part in sweep.parts)}\n"
    rows = RowPrinter(layout(shown), title, not as_json, held)
    results = run_shown(sweep, rows, joined=True)
    asked = replace(sweep, block_size=next(results.plan.jobs()).block_size)
    return results.summaries, asdict(asked), rows


def _compared(rows: Sequence[MeasuredRow], sweep: Sweep, measure: Measure) -> Tested:
    """Test pairs, and methods against their controls."""
    gains = paired_tests(rows, matched(sweep.methods, sweep.runs), measure)
    return {"tests": paired_tests(rows, sweep.pairs, measure), "gains": gains}


def _plain(tested: Tested) -> dict[str, Any]:
    return {name: list(map(asdict, tests)) for name, tests in tested.items()}


def _told(
    tested: Tested, measure: Measure, bars: Bars, tables: Sequence[Table], table: bool
) -> str:
    """Print what was found; return in a sentence what it shows."""
    tests, gains = tested["tests"], tested["gains"]
    more = [gains_table(gains, measure)] if gains else []
    name = "perplexity" if measure is LOSS else "needle"
    print_found(replace(bars, gains=gains), name, [*tables, *more], table)
    if tests:
        print_table(table_of_tests(tests, "pairs", f"pairs by {measure.name}"))
    return seen(gains)
