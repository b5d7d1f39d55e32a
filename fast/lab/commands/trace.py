"""``kvlab trace``: records a generation for the simulator."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from kvlab.fast.lab.commands.settings import (
    Json,
    Model,
    Prompt,
    check_output,
    command,
    read_prompt,
)
from kvlab.fast.lab.files import folder_of, named
from kvlab.fast.lab.steps import stop_with, until_stopped
from kvlab.fast.lab.tables import MISSING
from kvlab.fast.lab.terminal import print_facts, print_json, reporting, working
from kvlab.reference.checks import check_at_least, check_choice
from kvlab.reference.simulator.trace import DTYPES, Trace, save_trace


class _Settings(Model, Prompt, Json):
    output: Annotated[Path, typer.Option("--output", "-o")] = Path("trace.npz")
    """File to write."""
    layers: str | None = None
    """Layers to record, as in '0,3'; default: all."""
    dtype: str = "float32"
    """Number format of the arrays: float16, float32 or float64."""


@command
def trace(settings: _Settings) -> None:
    """Record what every layer sees while a model writes with the full cache."""
    output = settings.output
    check_at_least(1, max_new_tokens=settings.max_new_tokens)
    check_choice(DTYPES, dtype=settings.dtype)
    check_output("output", output)
    wanted = None if settings.layers is None else _layer_numbers(settings.layers)
    text = read_prompt(settings.prompt, settings.prompt_file, settings.model)
    tokenizer = settings.tokenizer()
    from kvlab.fast.lab.generation import TokenTimer, decoding_options, encode_prompt
    from kvlab.fast.lab.recording import record_trace
    from kvlab.fast.models.loading import count_layers

    count = count_layers(settings.model or "reasoner")
    if wanted is not None and not set(wanted) <= set(range(count)):
        raise ValueError(f"layers = {wanted} must be some of the model's layers 0 to {count - 1}")
    encode_prompt(tokenizer, text, "cpu")
    network = settings.load()
    inputs = encode_prompt(tokenizer, text, network.device)
    with reporting(transient=True) as report, until_stopped("token") as stopped:
        timer = TokenTimer(settings.max_new_tokens, report)
        options = decoding_options(network, settings.max_new_tokens, stopped=stopped)
        recorded = record_trace(
            network, layers=wanted, dtype=settings.dtype, streamer=timer, **inputs, **options
        )
    with working(f"compressing into {output}"), named(output), folder_of(output):
        save_trace(recorded, output)
    summary = _summarise(recorded, output)
    if settings.json:
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
