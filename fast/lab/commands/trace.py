"""``kvlab trace``: records a generation for the simulator."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from typer import Option

from kvlab.fast.lab.commands.options import (
    Device,
    Json,
    MaxNewTokens,
    Model,
    Prompt,
    PromptFile,
    check_output,
    load_model,
    load_tokenizer,
    read_prompt,
)
from kvlab.fast.lab.files import folder_of, named
from kvlab.fast.lab.steps import stop_with, until_stopped
from kvlab.fast.lab.tables import MISSING
from kvlab.fast.lab.terminal import print_facts, print_json, reporting, working
from kvlab.reference.checks import check_at_least, check_choice
from kvlab.reference.simulator.trace import DTYPES, Trace, save_trace


def trace(
    output: Annotated[Path, Option("--output", "-o", help="File to write.")] = Path("trace.npz"),
    layers: Annotated[
        str | None, Option(help="Layers to record, as in '0,3'; default: all.")
    ] = None,
    dtype: Annotated[
        str, Option(help="Number format of the arrays: float16, float32 or float64.")
    ] = "float32",
    model: Model = None,
    device: Device = None,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    max_new_tokens: MaxNewTokens = 128,
    json: Json = False,
) -> None:
    """Record what every layer sees while a model writes with the full cache."""
    check_at_least(1, max_new_tokens=max_new_tokens)
    check_choice(DTYPES, dtype=dtype)
    check_output("output", output)
    wanted = None if layers is None else _layer_numbers(layers)
    text = read_prompt(prompt, prompt_file, model)
    tokenizer = load_tokenizer(model)
    from kvlab.fast.lab.generation import TokenTimer, decoding_options, encode_prompt
    from kvlab.fast.lab.recording import record_trace
    from kvlab.fast.models.loading import count_layers

    count = count_layers(model or "reasoner")
    if wanted is not None and not set(wanted) <= set(range(count)):
        raise ValueError(f"layers = {wanted} must be some of the model's layers 0 to {count - 1}")
    encode_prompt(tokenizer, text, "cpu")
    network = load_model(model, device)
    inputs = encode_prompt(tokenizer, text, network.device)
    with reporting(transient=True) as report, until_stopped("token") as stopped:
        timer = TokenTimer(max_new_tokens, report)
        options = decoding_options(network, max_new_tokens, stopped=stopped)
        recorded = record_trace(
            network, layers=wanted, dtype=dtype, streamer=timer, **inputs, **options
        )
    with working(f"compressing into {output}"), named(output), folder_of(output):
        save_trace(recorded, output)
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
