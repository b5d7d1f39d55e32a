"""``kvlab generate``: a model writes under a method, and says what that cost."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from kvlab.fast.lab.commands.options import (
    BlockSize,
    Device,
    Dtype,
    Json,
    MaxNewTokens,
    Model,
    Prompt,
    PromptFile,
    load_model,
    load_tokenizer,
    read_prompt,
)
from kvlab.fast.lab.points import check_points, reason
from kvlab.fast.lab.steps import stop_with, until_stopped
from kvlab.fast.lab.terminal import print_facts, print_json, refuse, reporting
from kvlab.reference.checks import check_at_least

if TYPE_CHECKING:
    from kvlab.fast.lab.generation import Written


def generate(
    method: Annotated[str, Option(help="Registry syntax; see kvlab methods.")] = "full",
    budget: Annotated[
        str | None, Option(help="Entries, or percent of prompt and --max-new-tokens together.")
    ] = None,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    max_new_tokens: MaxNewTokens = 128,
    block_size: BlockSize = None,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = "auto",
    json: Json = False,
) -> None:
    """Continue a text under a method, and print what it kept and how fast it was."""
    check_at_least(1, max_new_tokens=max_new_tokens, block_size=block_size)
    budgets = [] if budget is None else [budget]
    check_points([method], budgets)
    text = read_prompt(prompt, prompt_file, model)
    tokenizer = load_tokenizer(model)
    from kvlab.fast.lab import generation

    tokens = generation.encode_prompt(tokenizer, text, "cpu")["input_ids"].shape[1]
    check_points([method], budgets, tokens + max_new_tokens)
    network = load_model(model, device, dtype)
    try:
        with reporting(transient=True) as report, until_stopped("token") as stopped:
            how: Any = {"block_size": block_size, "max_new_tokens": max_new_tokens}
            how |= {"report": report, "stopped": stopped}
            written = generation.generate(network, tokenizer, text, method, budget, **how)
    except Exception as error:
        why = reason(error)
        refuse(f"{method}: {why['refusal']}", 1 if "failed" in why else 2)
    if json:
        print_json(asdict(written))
    else:
        print(written.text)
        print_facts(_facts(written, budget))
    if stopped():
        raise stop_with(f"{written.written_tokens} of {max_new_tokens} tokens written")


def _facts(written: "Written", asked: str | None) -> dict[str, str]:
    """Name and format the figures; ``asked`` is the budget as it was typed."""
    method = written.method
    if written.budget is not None:
        method += f", budget {asked}"
        method += f" = {written.budget} entries" if asked != str(written.budget) else " entries"
    kept = f"{written.fewest_entries}"
    if written.most_entries != written.fewest_entries:
        kept += f" to {written.most_entries}"
    share = written.entry_bytes / written.full_bytes
    rate, after = written.tokens_per_second, written.after_eviction
    return {
        "method": method,
        "tokens": f"{written.prompt_tokens} given, {written.written_tokens} written",
        "entries kept": f"{kept} of {written.tokens_read} per KV head",
        **({} if after is None else {"after eviction": f"{after.written} of what was written"}),
        "keys and values": f"{_kibibytes(written.entry_bytes)} allocated, {100 * share:.0f} % of "
        f"the full cache's {_kibibytes(written.full_bytes)}",
        "state": f"{_kibibytes(written.state_bytes)} for positions and scores",
        "first token": f"{written.first_token_seconds:.2f} s",
        "tokens/s": "–" if rate is None else f"{rate:.1f}, after the first token",
    }


def _kibibytes(count: int) -> str:
    return f"{count / 1024:,.1f} KiB"
