"""Records a `Trace` of a generation: what every layer is handed, with nothing evicted."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvlab.fast import compress
from kvlab.fast.engine.step import Block, StepResult
from kvlab.reference.simulator.trace import DTYPES, VECTORS, Metadata, Trace


def record_generation(
    model: Any,
    *,
    layers: Iterable[int] | None = None,
    dtype: str = "float32",
    name: str | None = None,
    **inputs: Any,
) -> Trace:
    """Let a model write with the full cache, and record what its layers are handed.

    ```python
    trace = record_generation(model, **tokenizer(text, return_tensors="pt"), max_new_tokens=90)
    ```

    Args:
        model: a decoder of transformers.
        layers: numbers of the layers to record; None records all full-attention layers.
        dtype: number format of the stored queries, keys and values, one of `DTYPES`.
        name: name of the model, in the trace; by default the name that the model was loaded by.
        inputs: what ``model.generate`` is given; ``input_ids`` holds one sequence.

    Raises:
        ValueError: if there is more than one sequence, or the model, a layer or the type is not
            allowed.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype = {dtype!r} must be {' or '.join(DTYPES)}")
    batch = len(inputs["input_ids"])
    if batch != 1:
        raise ValueError(f"input_ids of {batch} sequences must hold one")
    recorder = Recorder(dtype)
    with compress(model, "full", watch=recorder) as cache:
        recorder.layers = chosen_layers(layers, [layer.number for layer in cache.compressed_layers])
        written = model.generate(
            **{**inputs, "past_key_values": cache, "return_dict_in_generate": False}
        )
        confidence = cache.confidence[0].float().cpu().numpy()
    padding = inputs["input_ids"].shape[1] - recorder.prompt
    return recorder.trace(
        written[0, padding:].cpu().numpy(), confidence, name or loaded_name(model)
    )


def chosen_layers(layers: Iterable[int] | None, available: list[int]) -> list[int]:
    """Return the layers to record, ascending.

    Raises:
        ValueError: if a layer is no full-attention layer of the model.
    """
    wanted = available if layers is None else sorted(set(layers))
    unknown = [layer for layer in wanted if layer not in available]
    if unknown or not wanted:
        raise ValueError(
            f"layers = {wanted} must be some of the full-attention layers "
            f"{', '.join(map(str, available))}"
        )
    return wanted


def loaded_name(model: Any) -> str:
    """Return the hub id, or the name of the directory, that a model was loaded from."""
    loaded_as = model.name_or_path
    return (Path(loaded_as).name if Path(loaded_as).is_dir() else loaded_as) or type(model).__name__


class Recorder:
    """Collects the blocks of one sequence; `compress` takes it as ``watch``."""

    def __init__(self, dtype: str = "float32") -> None:
        """Start empty; ``dtype`` is the number format of the stored vectors."""
        self.layers: list[int] = []
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.pieces: dict[int, list[tuple[np.ndarray, ...]]] = {}
        self.positions: dict[int, list[np.ndarray]] = {}
        self.softcap: float | None = None
        self.prompt = 0

    def __call__(self, block: Block, result: StepResult) -> None:
        """Copy what a layer is handed.

        Raises:
            ValueError: if the layer is handed more than one sequence.
        """
        if block.layer not in self.layers:
            return
        if len(block.clock.rows) != 1:
            raise ValueError(f"a trace holds one sequence, not {len(block.clock.rows)}")
        (clock,) = block.clock.rows
        self.softcap, self.prompt = block.softcap, clock.prompt
        self.positions.setdefault(block.layer, []).append(clock.positions)
        self.pieces.setdefault(block.layer, []).append(
            tuple(
                vectors[0, ..., -clock.block :, :].to("cpu", self.dtype, copy=True).numpy()
                for vectors in (block.queries, block.keys, block.values)
            )
        )

    def trace(self, tokens: np.ndarray, confidence: np.ndarray, model: str) -> Trace:
        """Return the collected blocks as a trace, and forget them.

        Args:
            tokens: ids of prompt and answer; a token that the model never read is left out.
            confidence: confidence of the tokens that the model read.
            model: name of the model.

        Raises:
            ValueError: if nothing was collected, or the layers read different tokens.
        """
        if self.layers != sorted(self.pieces) or not self.layers:
            raise ValueError(f"layers = {self.layers} were asked for, got {sorted(self.pieces)}")
        positions = [np.concatenate(self.positions[layer]) for layer in self.layers]
        if any(not np.array_equal(positions[0], others) for others in positions[1:]):
            raise ValueError(f"layers {self.layers} did not read the same tokens")
        t = len(positions[0])
        return Trace(
            **dict(zip(VECTORS, self._join(t), strict=True)),
            positions=positions[0],
            tokens=tokens[:t],
            prompt=self.prompt,
            confidence=confidence[:t],
            metadata=Metadata(model, tuple(self.layers), self.softcap),
        )

    def _join(self, t: int) -> list[np.ndarray]:
        """Join the pieces layer by layer, so that memory holds only one layer twice."""
        L, shapes = len(self.layers), [piece.shape for piece in self.pieces[self.layers[0]][0]]
        kind = np.dtype(str(self.dtype).removeprefix("torch."))
        joined = [np.empty((L, *shape[:-2], t, shape[-1]), kind) for shape in shapes]
        for number, layer in enumerate(self.layers):
            for array, pieces in zip(
                joined, zip(*self.pieces.pop(layer), strict=True), strict=True
            ):
                np.concatenate(pieces, axis=-2, out=array[number])
        return joined
