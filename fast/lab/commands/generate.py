"""``kvlab generate``: a model writes under a method, and says what that cost."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from kvlab.fast.lab.commands.settings import (
    BlockSize,
    Json,
    Prompt,
    TypedModel,
    command,
    read_prompt,
)
from kvlab.fast.lab.points import check_points, reason
from kvlab.fast.lab.steps import stop_with, until_stopped
from kvlab.fast.lab.terminal import print_facts, print_json, refuse, reporting
from kvlab.reference.checks import check_at_least

if TYPE_CHECKING:
    from kvlab.fast.lab.generation import Written


class _Settings(Prompt, BlockSize, TypedModel, Json):
    method: str = "full"
    """Registry syntax; see kvlab methods."""
    budget: str | None = None
    """Entries, or percent of prompt and --max-new-tokens together."""


@command
def generate(settings: _Settings) -> None:
    """Continue a text under a method, and print what it kept and how fast it was."""
    check_at_least(1, max_new_tokens=settings.max_new_tokens)
    check_at_least(1, block_size=1 if settings.block_size is None else settings.block_size)
    budgets = [] if settings.budget is None else [settings.budget]
    check_points([settings.method], budgets)
    text = read_prompt(settings.prompt, settings.prompt_file, settings.model)
    tokenizer = settings.tokenizer()
    from kvlab.fast.lab import generation

    tokens = generation.encode_prompt(tokenizer, text, "cpu")["input_ids"].shape[1]
    check_points([settings.method], budgets, tokens + settings.max_new_tokens)
    network = settings.load(settings.dtype)
    try:
        with reporting(transient=True) as report, until_stopped("token") as stopped:
            written = generation.generate(
                network,
                tokenizer,
                text,
                settings.method,
                settings.budget,
                block_size=settings.block_size,
                max_new_tokens=settings.max_new_tokens,
                report=report,
                stopped=stopped,
            )
    except Exception as error:
        why = reason(error)
        refuse(f"{settings.method}: {why['refusal']}", 1 if "failed" in why else 2)
    if settings.json:
        print_json(asdict(written))
    else:
        print(written.text)
        print_facts(_facts(written, settings.budget))
    if stopped():
        raise stop_with(f"{written.written_tokens} of {settings.max_new_tokens} tokens written")


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
