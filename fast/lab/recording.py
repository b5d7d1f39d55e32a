"""Records a `Trace` of a generation in PyTorch: what layers are handed, with nothing evicted."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvlab.fast import compress
from kvlab.fast.engine.step import Block, StepResult
from kvlab.fast.huggingface.repositioning import rotations_of
from kvlab.reference.checks import check_choice
from kvlab.reference.simulator.trace import DTYPES, Trace, Vectors, join_blocks


def record_trace(
    model: Any,
    *,
    layers: Iterable[int] | None = None,
    dtype: str = "float32",
    name: str | None = None,
    **inputs: Any,
) -> Trace:
    """Let a model write with the full cache, and record what its layers are handed.

    ```python
    trace = record_trace(model, **tokenizer(text, return_tensors="pt"), max_new_tokens=90)
    ```

    ``layers`` None records all full-attention layers; ``name`` is by default that by which the
    model was loaded. ``inputs`` are those of ``model.generate``; ``input_ids`` holds one sequence.
    """
    check_choice(DTYPES, dtype=dtype)
    if (batch := len(inputs["input_ids"])) != 1:
        raise ValueError(f"input_ids of {batch} sequences must hold one")
    blocks: dict[int, list[Vectors]] = {}
    kind, seen = getattr(torch, dtype), {}

    def watch(block: Block, result: StepResult) -> None:
        if block.layer not in wanted:
            return
        (clock,) = block.clock.rows
        seen.update(prompt=clock.prompt, softcap=block.softcap, model_layers=block.layers)
        queries, keys, values = (  # without the padding on the left
            vectors[0, ..., -clock.block :, :].to("cpu", kind, copy=True).numpy()
            for vectors in (block.queries, block.keys, block.values)
        )
        blocks.setdefault(block.layer, []).append((queries, keys, values))

    with compress(model, "full", watch=watch) as cache:
        wanted = _chosen(layers, [layer.number for layer in cache.compressed_layers])
        written = model.generate(
            **{**inputs, "past_key_values": cache, "return_dict_in_generate": False}
        )
        confidence = cache.confidence[0].float().cpu().numpy()
    padding = inputs["input_ids"].shape[1] - seen["prompt"]
    tokens = written[0, padding:].tolist()
    name = name or _name(model)
    return join_blocks(blocks, tokens, confidence=confidence, model=name, **seen)


def query_statistics(model: Any, trace: Trace) -> dict[str, Tensor]:
    """Return what `kvlab.reference.files.query_statistics` reads, of a trace of all layers.

    Numbers of layers that are not compressed are NaN.
    """
    _, G, rho, _, d = trace.shape
    positions, layers = torch.from_numpy(trace.positions), trace.metadata.model_layers
    unknown = torch.full((layers or len(trace.queries), G * rho, d, d), torch.nan)
    found = {"mean": unknown[..., 0].clone(), "length": unknown[..., 0].clone()}
    found["covariance"] = unknown
    rotations = rotations_of(model, "--statistics")
    for layer, turned, rotate in zip(trace.metadata.layers, trace.queries, rotations, strict=True):
        queries = rotate(torch.from_numpy(turned).double(), -positions).flatten(0, 1)
        together = rotate(torch.eye(d), torch.ones(d)) != 0
        found["mean"][layer] = queries.mean(dim=1)
        found["length"][layer] = (queries.square() @ together.double()).sqrt().mean(dim=1)
        found["covariance"][layer] = torch.stack([each.T.cov(correction=0) for each in queries])
    return found


def _chosen(layers: Iterable[int] | None, available: list[int]) -> list[int]:
    wanted = available if layers is None else sorted(set(layers))
    if not wanted or not set(wanted) <= set(available):
        raise ValueError(
            f"layers = {wanted} must be some of the full-attention layers "
            f"{', '.join(map(str, available))}"
        )
    return wanted


def _name(model: Any) -> str:
    """Return the hub id, or the name of the directory, that a model was loaded from."""
    loaded_as = model.name_or_path
    return (Path(loaded_as).name if Path(loaded_as).is_dir() else loaded_as) or type(model).__name__
