"""``kvlab perplexity`` and ``kvlab needle``: how well a model under a method still reads a text."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from kvlab.fast.lab.commands.settings import (
    Budgets,
    Controls,
    Feed,
    Json,
    Methods,
    ShardedModel,
    check_output,
    command,
    read_text,
    words,
)
from kvlab.fast.lab.evaluate.controls import matched
from kvlab.fast.lab.evaluate.pairs import SHORT, TESTS_CAPTION, Measure, check_pairs, paired_tests
from kvlab.fast.lab.points import (
    AFTER_CAPTION,
    AFTER_EVICTION,
    BUDGET_CAPTION,
    MeasuredRow,
    check_any,
    check_points,
)
from kvlab.fast.lab.sweep.compare import HELD, WHERE, run_in_memory
from kvlab.fast.lab.sweep.plan import Sweep
from kvlab.fast.lab.sweep.summary import (
    FULL,
    LOSS,
    SOLVED,
    Point,
    TaskSummary,
    joined,
    pooled,
    summarise,
)
from kvlab.fast.lab.tables import Column, tabulate
from kvlab.fast.lab.terminal import print_caption, print_table
from kvlab.fast.models import model_location
from kvlab.reference.accounting import ENTRIES
from kvlab.reference.checks import check_at_least
from kvlab.reference.models import EMBEDDED
from kvlab.reference.tasks import english, reasoning

Asked = dict[str, Any]
"""A task of a sweep, as a table."""
DEFINED = "reasoning"
"""The task whose definitions are needles."""


class _Text(Methods, Budgets, Controls, ShardedModel, Json):
    text: Path | None = None
    """UTF-8 file; default: a novel; for embedded models problems, and solutions to rate."""
    batch_size: int | None = None
    """Texts that are read together; default: 1; problems of embedded models: 32."""
    pairs: str = ""
    """Methods to test, as in 'h2o tova; h2o raas'."""

    def own_task(self, **only: object) -> str | None:
        """Return the task of an embedded model that reads no text; refuse options of texts only."""
        model_location(self.model or "reasoner")  # before libraries are loaded for it
        task = None if self.text else EMBEDDED.get(self.model or "reasoner")
        for name, value in only.items():
            if task and value:
                raise ValueError(f"--{name} needs a --text, or a --model that reads English")
        return task

    def content(self) -> str:
        """Return the text."""
        return english.novel() if self.text is None else read_text("text", self.text)

    def run(
        self, tasks: Sequence[Asked], columns: Sequence[Column], **more: Any
    ) -> tuple[Sweep, list[TaskSummary]]:
        """Run a sweep of tasks in memory, print what it finds, and return it, with its block size.

        All tasks read the text, if there is one; ``more``: the other fields of the sweep.
        """
        usual = 1 if self.own_task() is None else 32
        batch = usual if self.batch_size is None else self.batch_size
        check_at_least(1, batch_size=batch)
        self.content()  # refused by name if it cannot be read
        reads = {} if self.text is None else {"text": str(self.text)}
        pairs: Any = [tuple(each.split()) for each in self.pairs.split(";") if each.strip()]
        check_pairs(pairs, more["methods"])
        sweep = Sweep(
            models=(self.model or "reasoner",),
            tasks=tuple(task | reads for task in tasks),
            batch=batch,
            pairs=tuple(pairs),
            controls=self.controls,
            **more,
        )
        check_points(sweep.methods, sweep.budgets)
        loading = {"dtype": self.dtype, "device": self.device, "parallel": self.parallel}
        title = f"{sweep.problems} of {'; '.join(part.task for part in sweep.parts)}"
        with self.printing(columns, title) as told:
            results = run_in_memory(sweep, 0, *told, **loading)
        found = summarise(results)
        check_any([point for each in found for point in each.points])
        return replace(sweep, block_size=next(results.plan.jobs()).block_size), found

    def compared(
        self, rows: Sequence[MeasuredRow], sweep: Sweep, measure: Measure
    ) -> dict[str, Any]:
        """Test pairs, and methods against their controls; print it, or return it as data."""
        tests = paired_tests(rows, sweep.pairs, measure)
        gains = paired_tests(rows, matched(sweep.methods, sweep.runs), measure)
        if not self.json:
            self.print_gains(gains, measure)
            if tests:
                print_table(tabulate(tests, SHORT, words=2), f"pairs by {measure.name}")
                print_caption(TESTS_CAPTION)
        return {"tests": list(map(asdict, tests)), "gains": list(map(asdict, gains))}


COLUMNS = (
    *WHERE,
    Column("perplexity", format=".4f", width=12),
    Column("gap", format="+.4f", width=11),
    Column("nats (95 %)", "nats", lambda nats: nats.written("+.4f", " to "), width=30),
    AFTER_EVICTION,
    *HELD,
)
FOUND = Column("found, %", "interval", lambda share: share.percent(0), width=18)
CAPTION = (
    "gap: perplexity less the full cache's · nats: loss per token less the full cache's, paired "
    f"over the windows · {AFTER_CAPTION} · {ENTRIES} · KiB: of keys and values at the end, scales "
    f"included, an unquantised element at 16 bits · {BUDGET_CAPTION}"
)


class _PerplexitySettings(_Text, Feed):
    methods: str = "h2o caote:h2o fast_caote:h2o tova caote:tova fast_caote:tova"
    window: int | None = None
    """Tokens of the text that are read with one cache; default: 4096."""
    prompt: int | None = None
    """Tokens at the start of a window that are not rated; default: 1."""
    windows: int | None = None
    """Windows to read; default: all; problems of embedded models: 50."""
    block_size: int | None = None
    """Tokens of a block; default: at most 128, for the problems 16, so that at least 90 % of the
    tokens that can be rated after an eviction are."""
    feed: str = "blocks"


@command
def perplexity(settings: _PerplexitySettings) -> None:
    """Measure the perplexity of a text under methods, against the full cache (CAOTE Table 4).

    A budget in percent is that share of a window.
    """
    own = settings.own_task(window=settings.window, prompt=settings.prompt)
    window = 4096 if settings.window is None else settings.window
    prompt = 1 if settings.prompt is None else settings.prompt
    check_at_least(2, window=window)
    problems = settings.windows
    if problems is None and own is None:
        text, tokenizer = settings.content(), settings.tokenizer()
        from kvlab.fast.lab.generation import token_ids

        problems = max(1, len(token_ids(tokenizer, text)) // window)
    check_at_least(1, windows=50 if problems is None else problems)
    windows = f"perplexity@window={window},prompt={prompt}"
    sweep, (found,) = settings.run(
        [{"task": f"likelihood@of={own}" if own else windows, "feed": settings.feed}],
        COLUMNS,
        methods=(FULL, *(spec for spec in settings.specs if spec != FULL)),
        budgets=settings.asked("50%"),
        problems=50 if problems is None else problems,
        block_size=settings.block_size,
    )
    if not settings.json:
        size = "1 token" if settings.feed == "steps" else f"{sweep.block_size} tokens"
        print_caption(f"rated in blocks of {size} · {CAPTION}")
    tested = settings.compared([*found.points, *found.controls], sweep, LOSS)
    settings.end(found.points, {"settings": asdict(sweep)} | found.plain() | tested)


class _NeedleSettings(_Text):
    methods: str = "streaming_llm h2o caote:h2o tova caote:tova fast_caote:tova"
    lengths: str | None = None
    """Tokens of a prompt in a text, separated by commas; default: 512,1024,2048,4096."""
    depths: int = 5
    """Depths of needles, evenly spaced from the start of a text to its end."""
    trials: int = 10
    """Needles at each depth in each length."""
    seed: int = 0
    """Seed of needles and problems."""
    chat: bool = False
    """Apply the chat template."""
    block_size: int = 128
    """Read prompts in blocks of so many tokens."""
    heat_map: Path = Path("kvlab-report/needle.svg")
    """SVG to write."""


@command
def needle(settings: _NeedleSettings) -> None:
    """Search needles over depth and length, and draw what was found (CAOTE Fig. 2, Table 5).

    A budget in percent is that share of a prompt and its answer.
    """
    own = settings.own_task(lengths=settings.lengths, chat=settings.chat)
    check_at_least(1, trials=settings.trials, depths=settings.depths)
    check_output("heat_map", settings.heat_map)
    given = words(settings.lengths or "512,1024,2048,4096")
    tasks = [{"task": f"haystack@length={n}", "chat": settings.chat} for n in given]
    if own == DEFINED:
        tasks = [{"task": f"definition@variables={n}"} for n in reasoning.HELD_OUT_VARIABLES]
    elif own is not None:
        raise ValueError(f"--model {settings.model} has no needles of its own: it needs a --text")
    length = Column("length" if own is None else "variables", _first_option, width=10)
    sweep, found = settings.run(
        [each | {"depths": settings.depths} for each in tasks],
        (*WHERE, length, FOUND, AFTER_EVICTION),
        methods=settings.specs,
        budgets=settings.asked("70%"),
        problems=settings.trials * settings.depths,
        seeds=(settings.seed,),
        block_size=settings.block_size,
    )
    rows = joined(pooled(found))
    if not settings.json:
        named = [row for row in rows if row.method in sweep.methods]
        columns = (*WHERE, FOUND, AFTER_EVICTION)
        print_table(tabulate(named, columns), "all lengths, with 95 % interval")
        print_caption(f"{AFTER_CAPTION} · {BUDGET_CAPTION}")
    tested = settings.compared(rows, sweep, SOLVED)
    from kvlab.fast.lab.sweep.report import heat_map  # draws, which takes its time to load

    heat_map(found, settings.depths).save(settings.heat_map)
    data = {
        "settings": asdict(sweep),
        "rows": list(map(asdict, rows)),
        "lengths": [each.plain() for each in found],
        **tested,
    }
    points = [point for each in found for point in each.points]
    settings.end(points, data, written=f"heat map: {settings.heat_map}")


def _first_option(point: Point) -> str:
    return point.task.partition("=")[2].partition(",")[0]
