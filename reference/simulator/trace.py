"""A trace: what every attention layer of a generation was handed, in one compressed ``npz`` file.

| member | shape | kind | holds |
|---|---|---|---|
| ``queries`` | ``[L, G, rho, t, d]`` | floating, see `DTYPES` | queries: logits are q·k/√d |
| ``keys`` | ``[L, G, t, d]`` | as ``queries`` | keys as the cache stores them, RoPE applied |
| ``values`` | ``[L, G, t, d]`` | as ``queries`` | values |
| ``positions`` | ``[t]`` | integer | absolute position of each token, ascending |
| ``tokens`` | ``[t]`` | integer | token ids |
| ``prompt`` | scalar | integer | how many of the tokens are the prompt |
| ``confidence`` | ``[t]`` | floating | probability of the likeliest token; NaN where given |
| ``metadata`` | scalar | string | a JSON object, below |

``L`` counts the recorded layers, ``t`` the tokens that the model read; the other axes are those of
`kvlab.reference.notation`. ``confidence`` is the largest probability of the distribution that
produced the token. The last token that a model writes is never read, so it is not there.

| entry of ``metadata`` | kind | holds |
|---|---|---|
| ``version`` | integer | version of this schema: 1 |
| ``model`` | string | name of the model |
| ``layers`` | list of L integers | number of each recorded layer in the model, ascending |
| ``softcap`` | number or null | bound into which the model squeezes its logits (Gemma 2) |
| ``kvlab`` | string | version of kvlab that wrote the file |

Other members and entries are ignored. Nothing in a file is ever executed: pickled members are
refused.
"""

import json
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Integer

from kvlab.reference.generate import generate
from kvlab.reference.methods.full import FullCache
from kvlab.reference.notation import Array
from kvlab.reference.step import Block, StepResult
from kvlab.reference.transformer import Transformer

VERSION = 1
"""Version of the schema that this module writes, and the only one that it reads."""

VECTORS = ("queries", "keys", "values")
MEMBERS = (*VECTORS, "positions", "tokens", "prompt", "confidence", "metadata")
DTYPES = ("float16", "float32", "float64")
"""Number formats of stored queries, keys and values."""

METADATA: Mapping[str, tuple[tuple[type, ...], str]] = {
    "version": ((int,), f"the whole number {VERSION}"),
    "model": ((str,), "a string"),
    "layers": ((list,), "a list of layer numbers"),
    "softcap": ((int, float, type(None)), "a number or null"),
    "kvlab": ((str,), "a string"),
}
"""Entries of the metadata, and what each may be; the version decides about the rest."""

BROKEN = (ValueError, EOFError, zipfile.BadZipFile, zlib.error)
"""Exceptions that NumPy raises on files that are cut, damaged or of another kind."""


@dataclass(frozen=True)
class Metadata:
    """Facts about the model and the file.

    Raises:
        ValueError: if a value is not allowed.
    """

    model: str
    layers: tuple[int, ...]
    """Number of each recorded layer in the model."""
    softcap: float | None = None
    kvlab: str = field(default_factory=lambda: installed_version("kvlab"))
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"version = {self.version} must be {VERSION}")
        if list(self.layers) != sorted(set(self.layers)) or min(self.layers, default=0) < 0:
            raise ValueError(f"layers = {list(self.layers)} must be ascending layer numbers")
        if self.softcap is not None and not 0 < self.softcap < float("inf"):
            raise ValueError(f"softcap = {self.softcap} must be above 0 and finite")


@dataclass(frozen=True, eq=False)
class Trace:
    """A recorded generation of one sequence; the module says what each field holds.

    Raises:
        ValueError: if shapes do not fit together, or a value is not allowed.
    """

    queries: Float[Array, "L G rho t d"] = field(repr=False)
    keys: Float[Array, "L G t d"] = field(repr=False)
    values: Float[Array, "L G t d"] = field(repr=False)
    positions: Integer[Array, " t"] = field(repr=False)
    tokens: Integer[Array, " t"] = field(repr=False)
    prompt: int
    confidence: Float[Array, " t"] = field(repr=False)
    metadata: Metadata

    def __post_init__(self) -> None:
        _check_arrays(self)
        _check_values(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """L, G, rho, t and d."""
        return self.queries.shape

    def vectors(
        self, index: int
    ) -> tuple[Float[Array, "G rho t d"], Float[Array, "G t d"], Float[Array, "G t d"]]:
        """Return queries, keys and values of one recorded layer."""
        return self.queries[index], self.keys[index], self.values[index]


class Recorder:
    """Collects what the layers of one sequence are handed, block by block."""

    def __init__(self) -> None:
        self.pieces: dict[int, list[tuple[Array, ...]]] = {}

    def note(
        self,
        layer: int,
        positions: Integer[Array, " m"],
        queries: Float[Array, "G rho m d"],
        keys: Float[Array, "G m d"],
        values: Float[Array, "G m d"],
    ) -> None:
        """Keep one block of one layer; the arrays must not change afterwards."""
        self.pieces.setdefault(layer, []).append((positions, queries, keys, values))

    def trace(
        self,
        tokens: Sequence[int],
        prompt: int,
        confidence: Float[Array, " t"],
        model: str,
        softcap: float | None = None,
    ) -> Trace:
        """Return the collected blocks as a trace, and forget them.

        Args:
            tokens: ids of prompt and answer; a token that the model never read is left out.
            prompt: how many of them are the prompt.
            confidence: confidence of the tokens that the model read.
            model: name of the model.
            softcap: bound of the model's logits.

        Raises:
            ValueError: if the layers read different tokens, or a vector is not finite.
        """
        layers = tuple(sorted(self.pieces))
        positions = [np.concatenate([each[0] for each in self.pieces[n]]) for n in layers]
        if any(not np.array_equal(positions[0], others) for others in positions[1:]):
            raise ValueError(f"layers {list(layers)} did not read the same tokens")
        t = len(positions[0])
        return Trace(
            **self._join(layers, t),
            positions=positions[0],
            tokens=np.array(tokens[:t]),
            prompt=prompt,
            confidence=confidence[:t],
            metadata=Metadata(model, layers, softcap),
        )

    def _join(self, layers: Sequence[int], t: int) -> dict[str, Array]:
        """Join the pieces layer by layer, so that memory holds only one layer twice."""
        first = self.pieces[layers[0]][0][1:]
        joined = [np.empty((len(layers), *x.shape[:-2], t, x.shape[-1]), x.dtype) for x in first]
        for number, layer in enumerate(layers):
            _, *parts = zip(*self.pieces.pop(layer), strict=True)
            for array, pieces in zip(joined, parts, strict=True):
                np.concatenate(pieces, axis=-2, out=array[number])
        return dict(zip(VECTORS, joined, strict=True))


def record_trace(
    model: Transformer,
    prompt: Sequence[int],
    max_new_tokens: int,
    stop: int | None = None,
    name: str = "transformer",
) -> Trace:
    """Let the NumPy transformer write with the full cache; record what its layers are handed.

    Args:
        model: the transformer; for models in PyTorch, see ``kvlab trace``.
        prompt: token ids.
        max_new_tokens: tokens to write at most; the last one that it writes is never read.
        stop: token id after which to end.
        name: name of the model, in the trace.

    Raises:
        ValueError: as `kvlab.reference.generate.generate`.
    """
    recorder = Recorder()

    def watch(block: Block, result: StepResult) -> None:
        recorder.note(block.layer, block.clock.positions, block.queries, block.keys, block.values)

    written = generate(model, FullCache().policy(), prompt, max_new_tokens, stop, watch=watch)
    tokens = [*prompt, *written.tokens]
    return recorder.trace(tokens, len(prompt), written.session.confidence, name)


def save_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace; a file of that name is replaced, and only once the new one is complete.

    Args:
        trace: what to write.
        path: the file, ending in ``.npz``.
    """
    path = Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    members: dict[str, Any] = {name: getattr(trace, name) for name in MEMBERS}
    members["metadata"] = json.dumps(asdict(trace.metadata))
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        with open(unfinished, "wb") as file:
            np.savez_compressed(file, **members)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def load_trace(path: str | Path) -> Trace:
    """Read a trace.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if it is no trace of this version; the message names the member.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"trace = {path} does not exist")
    if not path.is_file():
        raise ValueError(f"trace = {path} must be a file")
    try:
        if not zipfile.is_zipfile(path):  # NumPy takes it for objects to be loaded unsafely
            raise ValueError("it is no complete archive of arrays (.npz)")
        with np.load(path, allow_pickle=False) as archive:
            members: dict[str, Any] = {"metadata": _parse_metadata(_member(archive, "metadata"))}
            for name in MEMBERS[:-1]:
                members[name] = _member(archive, name)
        members["prompt"] = _scalar(members["prompt"], "prompt", "iu", "a whole number")
        return Trace(**members)
    except BROKEN as error:
        raise ValueError(f"{path} is no trace: {error}") from None


def _member(archive: np.lib.npyio.NpzFile, name: str) -> Array:
    if name not in archive.files:
        raise ValueError(f"{name!r} is missing; a trace holds {', '.join(MEMBERS)}")
    try:
        return archive[name]
    except BROKEN as error:
        raise ValueError(f"{name!r} cannot be read: {error}") from None


def _scalar(member: Array, name: str, kinds: str, expected: str) -> Any:
    if member.shape != () or member.dtype.kind not in kinds:
        raise ValueError(
            f"{name} of type {member.dtype} and shape {member.shape} must be {expected}"
        )
    return member.item()


def _parse_metadata(member: Array) -> Metadata:
    text = _scalar(member, "metadata", "U", "a string")
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"metadata is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"metadata = {found!r} must be a JSON object")
    facts = {}
    for name, (kinds, expected) in METADATA.items():
        if name not in found:
            raise ValueError(f"metadata lacks {name!r}; it holds {', '.join(METADATA)}")
        value = facts[name] = found[name]
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ValueError(f"{name} = {value!r} must be {expected}")
        if name == "version" and value != VERSION:  # which may lack the entries that follow
            raise ValueError(f"version = {value} must be {VERSION}")
    if not all(type(layer) is int for layer in facts["layers"]):
        raise ValueError(f"layers = {facts['layers']} must be ascending layer numbers")
    return Metadata(**{**facts, "layers": tuple(facts["layers"])})


def _check_arrays(trace: Trace) -> None:
    """Raise ValueError unless types and shapes fit together."""
    queries = trace.queries
    if queries.ndim != 5 or 0 in queries.shape:
        raise ValueError(f"queries of shape {queries.shape} must be [L, G, rho, t, d], none 0")
    if queries.dtype not in DTYPES:
        raise ValueError(f"queries of type {queries.dtype} must be {' or '.join(DTYPES)}")
    L, G, _, t, d = queries.shape
    expected: dict[str, tuple[tuple[int, ...], str, str]] = {
        "keys": ((L, G, t, d), "f", "floating point"),
        "values": ((L, G, t, d), "f", "floating point"),
        "positions": ((t,), "iu", "whole numbers"),
        "tokens": ((t,), "iu", "whole numbers"),
        "confidence": ((t,), "f", "floating point"),
    }
    for name, (shape, kinds, what) in expected.items():
        array: Array = getattr(trace, name)
        if array.shape != shape:
            raise ValueError(
                f"{name} of shape {array.shape} must have the shape {shape}, since queries have "
                f"the shape {queries.shape}"
            )
        if array.dtype.kind not in kinds:
            raise ValueError(f"{name} of type {array.dtype} must be {what}")
        if name in VECTORS and array.dtype != queries.dtype:
            raise ValueError(f"{name} of type {array.dtype} must be {queries.dtype}, as queries")


def _check_values(trace: Trace) -> None:
    """Raise ValueError if a value is not allowed."""
    L, _, _, t, _ = trace.shape
    layers = trace.metadata.layers
    if len(layers) != L:
        raise ValueError(f"layers = {list(layers)} must name the {L} layers of queries")
    for name in ("positions", "tokens"):
        if (lowest := getattr(trace, name).min()) < 0:
            raise ValueError(f"{name} must be at least 0, the lowest is {lowest}")
    if (trace.positions[1:] <= trace.positions[:-1]).any():
        raise ValueError("positions must be strictly ascending")
    if not 0 <= trace.prompt <= t:
        raise ValueError(f"prompt = {trace.prompt} must be between 0 and the {t} tokens")
    known = trace.confidence[~np.isnan(trace.confidence)]
    outside = known[(known < 0) | (known > 1)]
    if outside.size:
        raise ValueError(f"confidence must be NaN or between 0 and 1, one is {outside[0]}")
    for name in VECTORS:
        for layer, vectors in zip(layers, getattr(trace, name), strict=True):
            if not np.isfinite(vectors).all():
                reach = f"{vectors.dtype} reaches {np.finfo(vectors.dtype).max:g}"
                raise ValueError(f"{name} of layer {layer} must be finite; {reach}")
