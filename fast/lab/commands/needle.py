"""``kvlab needle``: how often a model under a method still finds a fact from long ago."""

from pathlib import Path
from typing import Annotated

import typer

from kvlab.fast.lab.commands.options import (
    AsJson,
    Budgets,
    Chat,
    Device,
    Dtype,
    Methods,
    ModelName,
    Parallel,
    check_seed,
    prepare_output,
    read_book,
    read_budgets,
    read_methods,
    refuse_without_text,
    words,
)
from kvlab.fast.lab.terminal import (
    is_first_process,
    print_json,
    print_line,
    print_table,
    reporting,
    working,
)
from kvlab.reference.models import reasoner_directory

DEFAULT_METHODS = "streaming_llm h2o caote:h2o tova caote:tova fast_caote:tova"


TextFile = Annotated[
    Path | None,
    typer.Option(
        help="UTF-8 file that hides needles; default: a novel; embedded models: problems."
    ),
]
Lengths = Annotated[
    str | None, typer.Option(help="Tokens of a prompt in a text, separated by commas.")
]
Depths = Annotated[
    str, typer.Option(help="Percent of the text before the needle, separated by commas.")
]
Trials = Annotated[
    int, typer.Option(help="Needles per cell; embedded models: problems per length.")
]
BatchSize = Annotated[
    int | None,
    typer.Option(help="Haystacks that are read together; default: 1; embedded models: 8."),
]


def needle(
    text: TextFile = None,
    methods: Methods = DEFAULT_METHODS,
    budgets: Budgets = None,
    lengths: Lengths = None,
    depths: Depths = "0,25,50,75,100",
    trials: Trials = 10,
    seed: Annotated[int, typer.Option(help="Seed of needles and problems.")] = 0,
    chat: Chat = False,
    block_size: Annotated[
        int, typer.Option(help="Read prompts in blocks of so many tokens.")
    ] = 128,
    batch_size: BatchSize = None,
    heat_map: Annotated[Path, typer.Option(help="SVG to write.")] = Path("kvlab-report/needle.svg"),
    model: ModelName = None,
    device: Device = None,
    dtype: Dtype = "auto",
    parallel: Parallel = None,
    as_json: AsJson = False,
) -> None:
    """Search needles over depth and length, and draw what was found (CAOTE Fig. 2, Table 5).

    A budget in percent is that share of each haystack.
    """
    hay = read_book(text, model)
    if hay is None:
        refuse_without_text(lengths=lengths, chat=chat or None)
    check_seed(seed)
    shares = [number("depths", each) / 100 for each in words(depths)]
    if not all(0 <= share <= 1 for share in shares):
        raise ValueError(f"depths = {depths} must be between 0 and 100 percent")
    sizes = [int(number("lengths", each)) for each in words(lengths or "512,1024,2048,4096")]
    specs, asked = read_methods(methods), read_budgets(budgets) or ("70%",)
    prepare_output("heat_map", heat_map)
    with working(f"loading {model or 'the embedded reasoner'}"):
        from kvlab.fast.lab.evaluate import needle as searching
        from kvlab.fast.lab.evaluate.likelihood import Reading
        from kvlab.fast.models.loading import load

        together = (8 if hay is None else 1) if batch_size is None else batch_size
        reading = Reading(specs, asked, block_size, batch_size=together)
        searching.check_grid(shares, trials)
        network, tokenizer = load(model or reasoner_directory(), dtype, device, parallel)
        if hay is None:
            grid = searching.problem_haystacks(tokenizer, shares, trials, seed)
        else:
            grid = searching.text_haystacks(tokenizer, hay, sizes, shares, trials, seed, chat)
    with reporting(transient=True) as report:
        found = searching.search_needles(network, grid, reading, report)
    if not is_first_process():
        return
    searching.heat_map(found).save(heat_map)
    if as_json:
        print_json(found.to_json())
        return
    print_table(searching.table(found), searching.title(found))
    print_line(f"heat map: {heat_map}")


def number(name: str, text: str) -> float:
    """Read a number, with or without a percent sign.

    Raises:
        ValueError: if the text is no number; the error names the option.
    """
    try:
        return float(text.removesuffix("%"))
    except ValueError:
        raise ValueError(f"{name}: {text!r} must be a number") from None
