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
| ``model_layers`` | integer or null | layers of the model; without it, the last recorded |
| ``softcap`` | number or null | bound into which the model squeezes its logits (Gemma 2) |
| ``kvlab`` | string | version of kvlab that wrote the file |

Other members and entries are ignored; ``kvlab trace --effects`` adds four:

| member | shape | kind | holds |
|---|---|---|---|
| ``effect_hidden`` | ``[e, 3]`` | integer | layer, KV head and position of each entry hidden |
| ``effect_losses`` | ``[e, 32]`` | float32 | nats by which the loss of the last 32 tokens rises |
| ``effect_outputs`` | ``[e, 32]`` | float32 | change of the layer's attention output, L2 norm |
| ``card`` | scalar | string | model, text, definition, versions and license, as Markdown |

Nothing in a file is ever executed: pickled members are refused.
"""

import json
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
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

DTYPES = ("float16", "float32", "float64")
"""Number formats of stored queries, keys and values."""

VECTORS = ("queries", "keys", "values")
ARRAYS: Mapping[str, tuple[str, str]] = {
    "queries": ("LGrtd", "f"),
    "keys": ("LGtd", "f"),
    "values": ("LGtd", "f"),
    "positions": ("t", "iu"),
    "tokens": ("t", "iu"),
    "prompt": ("", "iu"),
    "confidence": ("t", "f"),
}
"""Axes of each member, r for rho, and the kinds of its numbers as NumPy abbreviates them."""
MEMBERS = (*ARRAYS, "metadata")

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
    model_layers: int | None = None
    """Layers of the model, recorded or not; None: the last recorded one counts as the last."""

    def __post_init__(self) -> None:
        cap, layers = self.softcap, list(self.layers)
        whole = all(type(layer) is int and layer >= 0 for layer in layers)
        bound = isinstance(cap, int | float) and 0 < cap < float("inf")
        count = self.model_layers
        fits = count is None or (type(count) is int and whole and count > max(layers, default=0))
        allowed = {
            "version": (self.version == VERSION, str(VERSION)),
            "model": (isinstance(self.model, str), "a string"),
            "layers": (whole and layers == sorted(set(layers)), "ascending layer numbers"),
            "model_layers": (fits, "null, or more than the largest number of a recorded layer"),
            "softcap": (cap is None or bound, "null, or a number above 0 and finite"),
            "kvlab": (isinstance(self.kvlab, str), "a string"),
        }
        for name, (is_allowed, expected) in allowed.items():
            if not is_allowed:
                raise ValueError(f"{name} = {getattr(self, name)!r} must be {expected}")


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


Vectors = tuple[Float[Array, "G rho _ d"], Float[Array, "G _ d"], Float[Array, "G _ d"]]
"""Queries, keys and values of one block of tokens."""


def join_blocks(
    blocks: Mapping[int, Sequence[Vectors]],
    tokens: Sequence[int],
    prompt: int,
    confidence: Float[Array, " t"],
    model: str,
    softcap: float | None = None,
    model_layers: int | None = None,
) -> Trace:
    """Return the trace of a generation whose layers were handed these blocks, from token 0 on.

    Blocks are by the number of the layer. A token that the model never read is left out.
    """
    layers = tuple(sorted(blocks))
    queries, keys, values = (
        np.stack([np.concatenate([each[kind] for each in blocks[n]], axis=-2) for n in layers])
        for kind in range(len(VECTORS))
    )
    t = queries.shape[-2]
    return Trace(
        queries,
        keys,
        values,
        np.arange(t),
        np.array(tokens[:t]),
        prompt,
        confidence[:t],
        Metadata(model, layers, softcap, model_layers=model_layers),
    )


def record_trace(
    model: Transformer,
    prompt: Sequence[int],
    max_new_tokens: int,
    stop: int | None = None,
    name: str = "transformer",
) -> Trace:
    """Let the NumPy transformer write with the full cache; record what its layers are handed.

    For models in PyTorch, see ``kvlab trace``. The last token that is written is never read.

    Raises:
        ValueError: as `kvlab.reference.generate.generate`.
    """
    blocks: dict[int, list[Vectors]] = {}

    def watch(block: Block, result: StepResult) -> None:
        blocks.setdefault(block.layer, []).append((block.queries, block.keys, block.values))

    written = generate(model, FullCache().policy(), prompt, max_new_tokens, stop, watch=watch)
    tokens = [*prompt, *written.tokens]
    confidence, layers = written.session.confidence, model.config.layers
    return join_blocks(blocks, tokens, len(prompt), confidence, name, model_layers=layers)


# --- files ---------------------------------------------------------------------------------------


def save_trace(trace: Trace, path: str | Path, **labels: Any) -> None:
    """Write an ``.npz`` file; one of that name is replaced only once the new one is complete.

    ``labels`` are further members by name, such as those of ``kvlab trace --effects``.
    """
    path = Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    members: dict[str, Any] = {name: getattr(trace, name) for name in ARRAYS}
    members["metadata"] = json.dumps(asdict(trace.metadata))
    members.update(labels)
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
    try:
        if not zipfile.is_zipfile(path):  # NumPy takes it for objects to be loaded unsafely
            raise ValueError("it is no complete archive of arrays (.npz)")
        with np.load(path, allow_pickle=False) as archive:
            if missing := [name for name in MEMBERS if name not in archive]:
                raise ValueError(f"{', '.join(missing)} must be there")
            members: dict[str, Any] = {name: archive[name] for name in MEMBERS}
        members["metadata"] = _parse_metadata(str(members["metadata"]))
        members["prompt"] = members["prompt"].item()
        return Trace(**members)
    except BROKEN as error:
        raise ValueError(f"{path} is no trace: {error}") from None


def _parse_metadata(text: str) -> Metadata:
    names = [each.name for each in fields(Metadata) if each.name != "model_layers"]
    try:
        found = json.loads(text)
        facts = {name: found[name] for name in names}
        layers = tuple(facts["layers"])
    except (json.JSONDecodeError, KeyError, TypeError):
        expected = f"a JSON object with {', '.join(names)}, whose layers are a list"
        raise ValueError(f"metadata must be {expected}") from None
    return Metadata(**facts | {"layers": layers, "model_layers": found.get("model_layers")})


def _check_arrays(trace: Trace) -> None:
    """Raise ValueError unless types and shapes fit together and vectors are finite."""
    queries = trace.queries
    if queries.ndim != 5 or 0 in queries.shape:
        raise ValueError(f"queries of shape {queries.shape} must be [L, G, rho, t, d], none 0")
    if queries.dtype not in DTYPES:
        raise ValueError(f"queries of type {queries.dtype} must be {' or '.join(DTYPES)}")
    sizes = dict(zip("LGrtd", queries.shape, strict=True))
    for name, (axes, kinds) in ARRAYS.items():
        array, shape = np.asarray(getattr(trace, name)), tuple(sizes[axis] for axis in axes)
        if array.shape != shape:
            raise ValueError(
                f"{name} of shape {array.shape} must have the shape {shape}, since queries have "
                f"the shape {queries.shape}"
            )
        if array.dtype.kind not in kinds:
            expected = "floating point" if kinds == "f" else "whole numbers"
            raise ValueError(f"{name} of type {array.dtype} must be {expected}")
        if name in VECTORS and array.dtype != queries.dtype:
            raise ValueError(f"{name} of type {array.dtype} must be {queries.dtype}, as queries")
        if name in VECTORS and not np.isfinite(array).all():
            reach = f"{array.dtype} reaches {np.finfo(array.dtype).max:g}"
            raise ValueError(f"{name} must be finite; {reach}")


def _check_values(trace: Trace) -> None:
    L, _, _, t, _ = trace.shape
    layers, confidence = trace.metadata.layers, trace.confidence
    if len(layers) != L:
        raise ValueError(f"layers = {list(layers)} must name the {L} layers of queries")
    if min(trace.positions[0], trace.tokens.min()) < 0:
        raise ValueError("positions and tokens must be at least 0")
    if (trace.positions[1:] <= trace.positions[:-1]).any():
        raise ValueError("positions must be strictly ascending")
    if not 0 <= trace.prompt <= t:
        raise ValueError(f"prompt = {trace.prompt} must be between 0 and the {t} tokens")
    if ((confidence < 0) | (confidence > 1)).any():
        raise ValueError("confidence must be NaN or between 0 and 1")
