"""``kvlab needle``: how often a model under a method still finds a fact from long ago."""

from dataclasses import asdict
from pathlib import Path

from kvlab.fast.lab.commands.settings import (
    Budgets,
    Json,
    Methods,
    ShardedModel,
    check_seed,
    command,
    prepare_output,
    read_book,
    refuse_without_text,
    words,
)
from kvlab.fast.lab.terminal import (
    print_json,
    print_line,
    print_table,
    reporting,
    working,
)


class Settings(Methods, Budgets, ShardedModel, Json):
    """What to hide, and how it is read."""

    text: Path | None = None
    """UTF-8 file that hides needles; default: a novel; embedded models: problems."""
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
    batch_size: int | None = None
    """Haystacks that are read together; default: 1; embedded models: 8."""
    heat_map: Path = Path("kvlab-report/needle.svg")
    """SVG to write."""


@command
def needle(settings: Settings) -> None:
    """Search needles over depth and length, and draw what was found (CAOTE Fig. 2, Table 5).

    A budget in percent is that share of each haystack.
    """
    text, trials, seed = read_book(settings.text, settings.model), settings.trials, settings.seed
    if text is None:
        refuse_without_text(lengths=settings.lengths, chat=settings.chat or None)
    check_seed(seed)
    shares = [_number("depths", each) / 100 for each in words(settings.depths)]
    if not all(0 <= share <= 1 for share in shares):
        raise ValueError(f"depths = {settings.depths} must be between 0 and 100 percent")
    lengths = words(settings.lengths or "512,1024,2048,4096")
    sizes = [int(_number("lengths", each)) for each in lengths]
    specs, asked = settings.specs, settings.asked("70%")
    prepare_output("heat_map", settings.heat_map)
    with working("loading PyTorch"):
        from kvlab.fast.lab.evaluate import needle as searching
        from kvlab.fast.lab.evaluate.likelihood import Reading

    batch = (8 if text is None else 1) if settings.batch_size is None else settings.batch_size
    reading = Reading(specs, asked, settings.block_size, batch_size=batch)
    searching.check_grid(shares, trials)
    network, tokenizer = settings.load(settings.dtype, settings.parallel)
    if text is None:
        grid = searching.problem_haystacks(tokenizer, shares, trials, seed)
    else:
        chat = settings.chat
        grid = searching.text_haystacks(tokenizer, text, sizes, shares, trials, seed, chat)
    with reporting(transient=True) as report:
        found = searching.search_needles(network, grid, reading, report)
    searching.heat_map(found).save(settings.heat_map)
    if settings.json:
        print_json(asdict(found))
        return
    print_table(searching.table(found), searching.title(found))
    print_line(f"heat map: {settings.heat_map}")


def _number(name: str, text: str) -> float:
    """Read a number, with or without a percent sign."""
    try:
        return float(text.removesuffix("%"))
    except ValueError:
        raise ValueError(f"{name}: {text!r} must be a number") from None
