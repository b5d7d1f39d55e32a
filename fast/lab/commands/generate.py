"""``kvlab generate``: a model writes under a method, and says what that cost."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from kvlab.fast.lab.commands.options import (
    AsJson,
    BlockSize,
    Device,
    Dtype,
    MaxNewTokens,
    ModelName,
    PromptFile,
    PromptText,
    at_least,
    check_seed,
    read_prompt,
)
from kvlab.fast.lab.terminal import kibibytes, print_facts, print_json, reporting, working
from kvlab.reference import methods
from kvlab.reference.models import reasoner_directory
from kvlab.reference.selection import budget_entries

if TYPE_CHECKING:
    from kvlab.fast.lab.generation import Written


def generate(
    model: ModelName = None,
    method: Annotated[str, typer.Option(help="Registry syntax; see kvlab methods.")] = "full",
    budget: Annotated[
        str | None,
        typer.Option(help="Entries, or percent of prompt and --max-new-tokens together."),
    ] = None,
    block_size: BlockSize = None,
    prompt: PromptText = None,
    prompt_file: PromptFile = None,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the draws, if --temperature is above 0.")] = 0,
    device: Device = None,
    dtype: Dtype = "auto",
    as_json: AsJson = False,
) -> None:
    """Continue a text under a method, and print what it kept and how fast it was."""
    at_least("max_new_tokens", max_new_tokens, 1)
    at_least("temperature", temperature, 0)
    check_seed(seed)
    methods.parse(method)
    if budget is not None:
        budget_entries(budget, 100)
    elif methods.takes_budget(method):
        raise ValueError(f"{method} needs --budget: entries, or percent, as in 50%")
    text = read_prompt(prompt, prompt_file, model)
    with working(f"loading {model or 'the embedded reasoner'}"):
        from kvlab.fast.lab import generation
        from kvlab.fast.models.loading import load

        network, tokenizer = load(model or reasoner_directory(), dtype, device)
    with reporting(transient=True) as report:
        written = generation.generate(
            network,
            tokenizer,
            text,
            method,
            budget,
            block_size=block_size,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=seed,
            report=report,
        )
    if as_json:
        print_json(asdict(written))
        return
    print(written.text)
    print_facts(facts(written, budget))


def facts(written: "Written", asked: str | None) -> dict[str, str]:
    """Name and format the figures; ``asked`` is the budget as it was typed."""
    method = written.method
    if written.budget is not None:
        method += f", budget {asked}"
        method += f" = {written.budget} entries" if asked != str(written.budget) else " entries"
    kept = f"{written.fewest_entries}"
    if written.most_entries != written.fewest_entries:
        kept += f" to {written.most_entries}"
    share = written.entry_bytes / written.full_bytes
    rate = written.tokens_per_second
    return {
        "method": method,
        "tokens": f"{written.prompt_tokens} given, {written.written_tokens} written",
        "entries kept": f"{kept} of {written.tokens_read} per KV head",
        "keys and values": f"{kibibytes(written.entry_bytes)} allocated, {100 * share:.0f} % of "
        f"the full cache's {kibibytes(written.full_bytes)}",
        "state": f"{kibibytes(written.state_bytes)} for positions and scores",
        "first token": f"{written.first_token_seconds:.2f} s",
        "tokens/s": "–" if rate is None else f"{rate:.1f}, after the first token",
    }
