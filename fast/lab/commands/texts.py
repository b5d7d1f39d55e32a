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
from kvlab.fast.lab.evaluate.pairs import (
    SHORT,
    TESTS_CAPTION,
    Measure,
    check_pairs,
    every_pair,
    paired_tests,
)
from kvlab.fast.lab.points import BUDGET_CAPTION, Row, check_points
from kvlab.fast.lab.tables import tabulate
from kvlab.fast.lab.terminal import print_caption, print_table, working
from kvlab.fast.models import model_location
from kvlab.reference.checks import check_at_least
from kvlab.reference.models import EMBEDDED
from kvlab.reference.tasks import english


class _Text(Methods, Budgets, Controls, ShardedModel, Json):
    text: Path | None = None
    """UTF-8 file; default: a novel; for embedded models problems, and solutions to rate."""
    batch_size: int | None = None
    """Texts that are read together; default: 1; problems of embedded models: 8."""
    pairs: str | None = None
    """Methods to test, as in 'h2o tova; h2o raas'; default: all pairs, in --json."""

    def read(self, **only: object) -> tuple[str | None, int]:
        """Return the text, None for problems, and the batch size; refuse options of texts only."""
        model_location(self.model or "reasoner")  # before libraries are loaded for it
        if self.text is None and (self.model or "reasoner") in EMBEDDED:
            for name, value in only.items():
                if value is not None:
                    raise ValueError(f"--{name} needs a --text, or a --model that reads English")
            return None, 8 if self.batch_size is None else self.batch_size
        text = english.novel() if self.text is None else read_text("text", self.text)
        return text, 1 if self.batch_size is None else self.batch_size

    def asked_pairs(self, *more: str) -> list[tuple[str, str]]:
        """Return the pairs to test, of the methods and ``more``, each checked."""
        specs = (*more, *(spec for spec in self.specs if spec not in more))
        if self.pairs is None:
            return every_pair(specs)
        asked: list[Any] = [tuple(each.split()) for each in self.pairs.split(";") if each.strip()]
        check_pairs(asked, specs)
        return asked

    def compared(
        self, rows: Sequence[Row], pairs: Sequence[tuple[str, str]], measure: Measure
    ) -> dict[str, Any]:
        """Test pairs, and methods against their controls; print it, or return it as data."""
        tests = paired_tests(rows, pairs, measure)
        gains = paired_tests(rows, matched(self.specs, [row.method for row in rows]), measure)
        if not self.json:
            self.print_gains(gains, measure)
            if self.pairs is not None:
                print_table(tabulate(tests, SHORT, words=2), f"pairs by {measure.name}")
                print_caption(TESTS_CAPTION)
        controls = [row for row in rows if row.method in self.added(self.specs)]
        found = {"controls": controls, "tests": tests, "gains": gains}
        return {name: list(map(asdict, some)) for name, some in found.items()}


class _PerplexitySettings(_Text, Feed):
    methods: str = "h2o caote:h2o fast_caote:h2o tova caote:tova fast_caote:tova"
    window: int | None = None
    """Tokens of the text that are read with one cache; default: 4096."""
    prompt: int | None = None
    """Tokens at the start of a window that are not rated; default: 1."""
    windows: int | None = None
    """Windows to read; default: all; problems of embedded models: 50."""
    block_size: int | None = None
    """Tokens of a block; default: 128, for the problems 16."""
    feed: str = "blocks"


@command
def perplexity(settings: _PerplexitySettings) -> None:
    """Measure the perplexity of a text under methods, against the full cache (CAOTE Table 4).

    A budget in percent is that share of a window.
    """
    text, batch = settings.read(window=settings.window, prompt=settings.prompt)
    specs, asked, most = settings.specs, settings.asked("50%"), settings.windows
    pairs, added = settings.asked_pairs("full"), settings.added(specs)
    with working("loading PyTorch"):
        from kvlab.fast.lab.evaluate import perplexity as measuring
        from kvlab.fast.lab.evaluate.likelihood import Reading
        from kvlab.fast.lab.generation import token_ids

    usual = 16 if text is None else 128
    block = usual if settings.block_size is None else settings.block_size
    reading = Reading((*specs, *added), asked, block, settings.feed, batch)
    window = 4096 if settings.window is None else settings.window
    prompt = 1 if settings.prompt is None else settings.prompt
    measuring.check_window(window, prompt, most)
    tokenizer = settings.tokenizer()
    if text is None:
        passages = measuring.problem_passages(tokenizer, 50 if most is None else most)
    else:
        passages = measuring.cut_windows(token_ids(tokenizer, text), window, prompt, most)
    check_points(specs, asked, measuring.mean_length(passages))
    network = settings.load(settings.dtype, settings.parallel)
    title = measuring.title(passages, reading)
    with settings.printing(measuring.COLUMNS, title, added) as told:
        found = measuring.measure_perplexity(network, passages, reading, *told)
    if not settings.json:
        print_caption(measuring.CAPTION)
    tested = settings.compared(found.rows, pairs, measuring.LOSS)
    found = _without(found, added)
    settings.end(found.rows, asdict(found) | tested)


class _NeedleSettings(_Text):
    methods: str = "streaming_llm h2o caote:h2o tova caote:tova fast_caote:tova"
    lengths: str | None = None
    """Tokens of a prompt in a text, separated by commas."""
    depths: str = "0,25,50,75,100"
    """Percent of the text before the needle, separated by commas."""
    trials: int = 10
    """Needles per cell; embedded models: problems per length."""
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

    A budget in percent is that share of each haystack.
    """
    trials, seed, chat = settings.trials, settings.seed, settings.chat
    text, batch = settings.read(lengths=settings.lengths, chat=chat or None)
    check_at_least(0, seed=seed)
    shares = [_number("depths", each) / 100 for each in words(settings.depths)]
    lengths = words(settings.lengths or "512,1024,2048,4096")
    sizes = [int(_number("lengths", each)) for each in lengths]
    specs, asked, pairs = settings.specs, settings.asked("70%"), settings.asked_pairs()
    check_output("heat_map", settings.heat_map)
    with working("loading PyTorch"):
        from kvlab.fast.lab.evaluate import needle as searching
        from kvlab.fast.lab.evaluate.likelihood import Reading

    added = settings.added(specs)
    reading = Reading((*specs, *added), asked, settings.block_size, batch_size=batch)
    searching.check_grid(shares, trials)
    tokenizer = settings.tokenizer()
    if text is None:
        grid = searching.problem_haystacks(tokenizer, shares, trials, seed)
    else:
        grid = searching.text_haystacks(tokenizer, text, sizes, shares, trials, seed, chat)
    check_points(specs, asked, min(map(len, grid.haystacks)))
    network = settings.load(settings.dtype, settings.parallel)
    with settings.printing(searching.columns(grid), searching.title(grid), added) as told:
        found = searching.search_needles(network, grid, reading, *told)
    if not settings.json:
        print_caption(BUDGET_CAPTION)
    tested = settings.compared(found.rows, pairs, searching.measure_of(found))
    found = _without(found, added)
    searching.heat_map(found).save(settings.heat_map)
    data = asdict(found) | tested
    settings.end(found.rows, data, written=f"heat map: {settings.heat_map}")


def _without(found: Any, methods: Sequence[str]) -> Any:
    return replace(found, rows=tuple(row for row in found.rows if row.method not in methods))


def _number(name: str, text: str) -> float:
    try:
        return float(text.removesuffix("%"))
    except ValueError:
        raise ValueError(f"{name}: {text!r} must be a number") from None
