"""``kvlab generate``: a model writes under a method, and says what that cost."""

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from kvlab.fast.lab.commands.options import (
    Device,
    MaxNewTokens,
    ModelName,
    PromptFile,
    PromptText,
    at_least,
    check_seed,
    read_prompt,
)
from kvlab.fast.lab.commands.terminal import AsJson, kibibytes, print_facts, progress, working
from kvlab.fast.lab.commands.writing import Pace, encode, plain
from kvlab.fast.models import reasoner_directory
from kvlab.reference import methods
from kvlab.reference.selection import budget_entries


@dataclass(frozen=True)
class Written:
    """What `write` found; entries and bytes are those after the last token that was read."""

    text: str
    method: str
    budget: int | None
    prompt_tokens: int
    written_tokens: int
    tokens_read: int
    """Prompt and answer without its last token, which no attention layer has read."""
    fewest_entries: int
    """Per KV head, in the compressed layer that keeps the fewest."""
    most_entries: int
    entry_bytes: int
    """Allocated for keys and values, with what it takes to dequantise them."""
    state_bytes: int
    """Allocated for positions, scores and remembered queries."""
    full_bytes: int
    """Keys and values of the full cache, without slack."""
    first_token_seconds: float
    tokens_per_second: float | None


def generate(
    model: ModelName = None,
    method: Annotated[str, typer.Option(help="Registry syntax; see kvlab methods.")] = "full",
    budget: Annotated[
        str | None,
        typer.Option(help="Entries, or percent of prompt and --max-new-tokens together."),
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(help="Read the prompt in blocks of so many tokens.")
    ] = None,
    prompt: PromptText = None,
    prompt_file: PromptFile = None,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the draws, if --temperature is above 0.")] = 0,
    device: Device = None,
    dtype: Annotated[
        str, typer.Option(help="auto, float64, float32, bfloat16 or float16.")
    ] = "auto",
    as_json: AsJson = False,
) -> None:
    """Continue a text under a method, and print what it kept and how fast it was."""
    at_least("max_new_tokens", max_new_tokens, 1)
    at_least("temperature", temperature, 0)
    check_seed(seed)
    methods.parse(method)
    if budget is not None:
        budget_entries(budget, 100)
    text = read_prompt(prompt, prompt_file, model)
    with working(f"loading {model or 'the embedded reasoner'}"):
        import torch

        from kvlab.fast.models.loading import load

        network, tokenizer = load(model or reasoner_directory(), dtype, device)
    inputs = encode(tokenizer, text, network.device)
    entries = None
    if budget is not None:
        entries = budget_entries(budget, inputs["input_ids"].shape[1] + max_new_tokens)
    torch.manual_seed(seed)
    options = plain(network, max_new_tokens, temperature)
    written = write(network, tokenizer, method, entries, block_size, {**inputs, **options})
    if as_json:
        print(json.dumps(asdict(written), indent=1))
        return
    print(written.text)
    print_facts(facts(written, budget))


def write(
    model: Any,
    tokenizer: Any,
    method: str,
    budget: int | None,
    block_size: int | None,
    inputs: dict[str, Any],
) -> Written:
    """Let a model continue one sequence under a method."""
    from kvlab.fast import compress

    prompt_tokens = inputs["input_ids"].shape[1]
    with (
        compress(model, method, budget, block_size) as cache,
        progress(transient=True) as bar,
    ):
        pace = Pace(bar, inputs["max_new_tokens"])
        tokens = model.generate(**inputs, past_key_values=cache, streamer=pace)[0]
        memory, kept = cache.memory(), [count for (count,) in cache.kept()]
        full = full_bytes(model, cache, tokens_read=len(tokens) - 1)
    return Written(
        text=tokenizer.decode(tokens[prompt_tokens:], skip_special_tokens=True),
        method=method,
        budget=budget,
        prompt_tokens=prompt_tokens,
        written_tokens=len(tokens) - prompt_tokens,
        tokens_read=len(tokens) - 1,
        fewest_entries=min(kept),
        most_entries=max(kept),
        entry_bytes=memory.entries,
        state_bytes=memory.total - memory.entries,
        full_bytes=full,
        first_token_seconds=pace.first_token_seconds,
        tokens_per_second=pace.tokens_per_second,
    )


def full_bytes(model: Any, cache: Any, tokens_read: int) -> int:
    """Return the bytes of all keys and values; layers that are left alone count as they are."""
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    per_layer = 2 * heads * size * tokens_read * model.dtype.itemsize
    compressed = {layer.number for layer in cache.compressed_layers}
    return sum(
        per_layer if number in compressed else memory.total
        for number, memory in enumerate(cache.memory().layers)
    )


def facts(written: Written, asked: str | None) -> dict[str, str]:
    """Name and format the figures."""
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
