"""``kvlab perplexity``: how much worse a model predicts a text under a method."""

from pathlib import Path
from typing import Annotated

import typer

from kvlab.fast.lab.commands.options import (
    AsJson,
    Budgets,
    Device,
    Dtype,
    Feed,
    Methods,
    ModelName,
    Parallel,
    read_book,
    read_budgets,
    read_methods,
    refuse_without_text,
)
from kvlab.fast.lab.terminal import (
    is_first_process,
    print_caption,
    print_json,
    print_table,
    reporting,
    working,
)
from kvlab.reference.models import reasoner_directory

DEFAULT_METHODS = "h2o caote:h2o fast_caote:h2o tova caote:tova fast_caote:tova"


TextFile = Annotated[
    Path | None,
    typer.Option(
        help="UTF-8 file; default: a novel, for embedded models 50 problems and solutions."
    ),
]
Window = Annotated[
    int | None,
    typer.Option(help="Tokens of the text that are read with one cache; default: 4096."),
]
Prompt = Annotated[
    int | None,
    typer.Option(help="Tokens at the start of a window that are not rated; default: 1."),
]
Windows = Annotated[int | None, typer.Option(help="Windows to read; default: all.")]
BlockSize = Annotated[
    int | None, typer.Option(help="Tokens of a block; default: 128, for the problems 16.")
]
BatchSize = Annotated[
    int | None,
    typer.Option(help="Windows that are read together; default: 1, for the problems 8."),
]


def perplexity(
    text: TextFile = None,
    methods: Methods = DEFAULT_METHODS,
    budgets: Budgets = None,
    window: Window = None,
    prompt: Prompt = None,
    windows: Windows = None,
    block_size: BlockSize = None,
    feed: Feed = "blocks",
    batch_size: BatchSize = None,
    model: ModelName = None,
    device: Device = None,
    dtype: Dtype = "auto",
    parallel: Parallel = None,
    as_json: AsJson = False,
) -> None:
    """Measure the perplexity of a text under methods, against the full cache (CAOTE Table 4).

    A budget in percent is that share of a window.
    """
    written = read_book(text, model)
    if written is None:
        refuse_without_text(window=window, prompt=prompt)
    specs, asked = read_methods(methods), read_budgets(budgets) or ("50%",)
    with working(f"loading {model or 'the embedded reasoner'}"):
        from kvlab.fast.lab.evaluate import perplexity as measuring
        from kvlab.fast.lab.evaluate.likelihood import Reading
        from kvlab.fast.lab.generation import token_ids
        from kvlab.fast.models.loading import load

        block, batch = (16, 8) if written is None else (128, 1)
        block = block if block_size is None else block_size
        batch = batch if batch_size is None else batch_size
        reading = Reading(specs, asked, block, feed, batch)
        cut = (4096 if window is None else window, 1 if prompt is None else prompt, windows)
        measuring.check_window(*cut)
        network, tokenizer = load(model or reasoner_directory(), dtype, device, parallel)
    if written is None:
        passages = measuring.problem_passages(tokenizer, 50 if windows is None else windows)
    else:
        passages = measuring.cut_windows(token_ids(tokenizer, written), *cut)
    with reporting(transient=True) as report:
        found = measuring.measure_perplexity(network, passages, reading, report)
    if not is_first_process():
        return
    if as_json:
        print_json(found.to_json())
        return
    print_table(measuring.table(found), measuring.title(found))
    print_caption(measuring.caption(found))
