"""``kvlab generate`` and ``kvlab trace``: a model writes under a method, or is recorded."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvlab.fast.lab.commands.options import check_output, load_model, load_tokenizer, read_prompt
from kvlab.fast.lab.files import folder_of, named
from kvlab.fast.lab.loop import stop_with, until_stopped
from kvlab.fast.lab.points import After, check_points, reason
from kvlab.fast.lab.tables import MISSING
from kvlab.fast.lab.terminal import print_facts, print_json, progress_bar, refuse, working
from kvlab.reference.checks import check_at_least, check_choice
from kvlab.reference.simulator.trace import DTYPES, Trace, save_trace

if TYPE_CHECKING:
    from kvlab.fast.lab.generation import Written


def generate(
    method: str = "full",
    budget: str | None = None,
    prompt: str | None = None,
    prompt_file: Path | None = None,
    max_new_tokens: int = 128,
    block_size: int | None = None,
    model: str | None = None,
    device: str | None = None,
    dtype: str = "auto",
    json: bool = False,
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
        with progress_bar(transient=True) as progress, until_stopped("token") as stopped:
            how: Any = {"block_size": block_size, "max_new_tokens": max_new_tokens}
            how |= {"progress": progress, "stopped": stopped}
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
        **({} if after is None else {"after eviction": _of_written(after)}),
        "keys and values": f"{_kibibytes(written.entry_bytes)} allocated, {100 * share:.0f} % of "
        f"the full cache's {_kibibytes(written.full_bytes)}",
        "state": f"{_kibibytes(written.state_bytes)} for positions and scores",
        "first token": f"{written.first_token_seconds:.2f} s",
        "tokens/s": "–" if rate is None else f"{rate:.1f}, after the first token",
    }


def _of_written(after: After) -> str:
    if after.count:
        return f"{after.written()} of what was written"
    return f"{after.written()}: nothing was evicted yet, so this is what the full cache writes"


def _kibibytes(count: int) -> str:
    return f"{count / 1024:,.1f} KiB"


def trace(
    output: Path = Path("trace.npz"),
    layers: str | None = None,
    dtype: str = "float32",
    model: str | None = None,
    device: str | None = None,
    prompt: str | None = None,
    prompt_file: Path | None = None,
    max_new_tokens: int = 128,
    statistics: bool = False,
    effects: int | None = None,
    json: bool = False,
) -> None:
    """Record what every layer sees while a model writes with the full cache."""
    check_at_least(1, max_new_tokens=max_new_tokens, effects=effects)
    check_choice(DTYPES, dtype=dtype)
    check_output("output", output)
    wanted = None if layers is None else _layer_numbers(layers)
    if statistics and wanted is not None:
        raise ValueError(f"layers = {layers!r} must be left out with --statistics: all are read")
    if statistics and effects:
        raise ValueError("--statistics and --effects cannot both be given: they are of two files")
    text = read_prompt(prompt, prompt_file, model)
    tokenizer = load_tokenizer(model)
    from kvlab.fast.lab.generation import TokenTimer, decoding_options, encode_prompt
    from kvlab.fast.lab.recording import query_statistics, record_trace
    from kvlab.fast.models.loading import count_layers

    count = count_layers(model or "reasoner")
    if wanted is not None and not set(wanted) <= set(range(count)):
        raise ValueError(f"layers = {wanted} must be some of the model's layers 0 to {count - 1}")
    encode_prompt(tokenizer, text, "cpu")
    network = load_model(model, device)
    inputs = encode_prompt(tokenizer, text, network.device)
    with progress_bar(transient=True) as progress, until_stopped("token") as stopped:
        timer = TokenTimer(max_new_tokens, progress)
        options = decoding_options(network, max_new_tokens, stopped=stopped)
        recorded = record_trace(
            network, layers=wanted, dtype=dtype, streamer=timer, **inputs, **options
        )
        labels = {}
        if effects:
            from kvlab.fast.lab.effects import effect_labels

            labels = effect_labels(network, recorded, effects, progress=progress)
    with working(f"compressing into {output}"), named(output), folder_of(output):
        if statistics:
            from safetensors.torch import save_file

            about = {"model": recorded.metadata.model}
            save_file(query_statistics(network, recorded), output, about)
        else:
            save_trace(recorded, output, **labels)
    summary = _summarise(recorded, output)
    if json:
        print_json(summary)
    else:
        print_facts({name.replace("_", " "): _shown(value) for name, value in summary.items()})
    if stopped():
        raise stop_with(f"{summary['written_tokens']} tokens recorded in {output}")


def _layer_numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ValueError(f"layers = {text!r} must be numbers, separated by commas") from None


def _summarise(recorded: Trace, output: Path) -> dict[str, Any]:
    _, G, rho, t, d = recorded.queries.shape
    known = recorded.confidence[~np.isnan(recorded.confidence)]
    return {
        "file": str(output),
        "file_bytes": output.stat().st_size,
        "array_bytes": sum(x.nbytes for x in (recorded.queries, recorded.keys, recorded.values)),
        "model": recorded.metadata.model,
        "version": recorded.metadata.version,
        "layers": list(recorded.metadata.layers),
        "kv_heads": G,
        "query_heads": G * rho,
        "head_dim": d,
        "dtype": str(recorded.queries.dtype),
        "softcap": recorded.metadata.softcap,
        "prompt_tokens": recorded.prompt,
        "written_tokens": t - recorded.prompt,
        "mean_confidence": float(known.mean()) if len(known) else None,
    }


def _shown(value: Any) -> str:
    if value is None:
        return MISSING
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
