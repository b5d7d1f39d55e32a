"""``kvlab perplexity``: how much worse a model predicts a text under a method."""

from dataclasses import asdict
from pathlib import Path

from kvlab.fast.lab.commands.settings import (
    Budgets,
    Feed,
    Json,
    Methods,
    ShardedModel,
    command,
    read_book,
    refuse_without_text,
)
from kvlab.fast.lab.terminal import (
    print_caption,
    print_json,
    print_table,
    reporting,
    working,
)


class Settings(Methods, Budgets, Feed, ShardedModel, Json):
    """What to read, and how."""

    text: Path | None = None
    """UTF-8 file; default: a novel, for embedded models 50 problems and solutions."""
    methods: str = "h2o caote:h2o fast_caote:h2o tova caote:tova fast_caote:tova"
    window: int | None = None
    """Tokens of the text that are read with one cache; default: 4096."""
    prompt: int | None = None
    """Tokens at the start of a window that are not rated; default: 1."""
    windows: int | None = None
    """Windows to read; default: all."""
    block_size: int | None = None
    """Tokens of a block; default: 128, for the problems 16."""
    feed: str = "blocks"
    batch_size: int | None = None
    """Windows that are read together; default: 1, for the problems 8."""


@command
def perplexity(settings: Settings) -> None:
    """Measure the perplexity of a text under methods, against the full cache (CAOTE Table 4).

    A budget in percent is that share of a window.
    """
    text, most = read_book(settings.text, settings.model), settings.windows
    if text is None:
        refuse_without_text(window=settings.window, prompt=settings.prompt)
    specs, asked = settings.specs, settings.asked("50%")
    with working("loading PyTorch"):
        from kvlab.fast.lab.evaluate import perplexity as measuring
        from kvlab.fast.lab.evaluate.likelihood import Reading
        from kvlab.fast.lab.generation import token_ids

    block, batch = (16, 8) if text is None else (128, 1)
    block = block if settings.block_size is None else settings.block_size
    batch = batch if settings.batch_size is None else settings.batch_size
    reading = Reading(specs, asked, block, settings.feed, batch)
    window = 4096 if settings.window is None else settings.window
    prompt = 1 if settings.prompt is None else settings.prompt
    measuring.check_window(window, prompt, most)
    network, tokenizer = settings.load(settings.dtype, settings.parallel)
    if text is None:
        passages = measuring.problem_passages(tokenizer, 50 if most is None else most)
    else:
        passages = measuring.cut_windows(token_ids(tokenizer, text), window, prompt, most)
    with reporting(transient=True) as report:
        found = measuring.measure_perplexity(network, passages, reading, report)
    if settings.json:
        print_json(asdict(found))
        return
    print_table(measuring.table(found), measuring.title(found))
    print_caption(measuring.caption(found))
