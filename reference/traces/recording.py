"""Records a trace of what the NumPy transformer writes (PyTorch: ``kvlab.fast.lab.recording``)."""

from collections.abc import Sequence

import numpy as np

from kvlab.reference.generate import generate
from kvlab.reference.methods.full import FullCache
from kvlab.reference.notation import Array
from kvlab.reference.policy import Block, StepResult
from kvlab.reference.traces.trace import Metadata, Trace
from kvlab.reference.transformer import Transformer


def record(
    model: Transformer,
    prompt: Sequence[int],
    max_new_tokens: int,
    stop: int | None = None,
    name: str = "transformer",
) -> Trace:
    """Let a model write with the full cache, and record what its layers are handed.

    Args:
        model: the transformer.
        prompt: token ids.
        max_new_tokens: tokens to write at most; the last one that it writes is never read.
        stop: token id after which to end.
        name: of the model, in the trace.

    Raises:
        ValueError: as `kvlab.reference.generate.generate`.
    """
    pieces: dict[int, list[tuple[Array, Array, Array]]] = {}

    def watch(block: Block, result: StepResult) -> None:
        pieces.setdefault(block.layer, []).append((block.queries, block.keys, block.values))

    written = generate(model, FullCache().policy(), prompt, max_new_tokens, stop, watch=watch)
    layers = sorted(pieces)
    queries, keys, values = (
        np.stack([np.concatenate([piece[kind] for piece in pieces[n]], axis=-2) for n in layers])
        for kind in range(3)
    )
    t = written.session.seen
    return Trace(
        queries=queries,
        keys=keys,
        values=values,
        positions=np.arange(t),
        tokens=np.array([*prompt, *written.tokens][:t]),
        prompt=len(prompt),
        confidence=written.session.confidence,
        metadata=Metadata(name, tuple(layers)),
    )
