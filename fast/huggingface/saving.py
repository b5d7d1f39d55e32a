"""A compressed context in a file: safetensors, and JSON in its metadata for everything else."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from kvlab.fast.engine.cache import LayerCache, State
from kvlab.fast.engine.columns import Columns
from kvlab.fast.engine.layers import Layers
from kvlab.fast.engine.policy import Policy
from kvlab.fast.engine.storage import Code, Partners, Storage
from kvlab.fast.huggingface.identity import ADDRESS, devices_of, identity_of, writes_to
from kvlab.fast.huggingface.stream_clock import StreamClock
from kvlab.fast.huggingface.text import Text
from kvlab.fast.kernels.choice import uses_triton
from kvlab.fast.kernels.codes import Coded
from kvlab.fast.kernels.quantise import Groups
from kvlab.fast.kernels.vector_tables import VectorTable
from kvlab.reference.observation import Clock

KEY = "kvlab"
"""Name of the JSON in the metadata of the file."""
STORED = LayerCache, State, Columns, Storage, Partners, VectorTable, Coded, Groups, Clock
CLASSES = {each.__name__: each for each in (*STORED, StreamClock)}
"""Objects that a file may hold; nothing else is ever made of it."""
MADE_ANEW = {("LayerCache", "columns"), ("Columns", "state")}
"""Attributes that follow from others or from the policy."""


@torch.inference_mode()
def save(cache: Any, path: Path, model_name: str | None) -> None:
    """Write a `CompressedCache` to a file; errors are those of its ``save``."""
    text, model = cache.text, cache.attachment.model
    if not text.clock.rows:
        raise ValueError("the cache is empty: there is nothing to save")
    if text.model_counts_positions:
        raise ValueError("a text with images, whose positions only the model knows, is not saved")
    identity = identity_of(model, model_name)
    if text.clock.adapters != (tuple(identity["adapters"]),):
        read = " and then ".join(map(str, text.clock.adapters))
        raise ValueError(
            f"the text was read with the adapters {read}, and {tuple(identity['adapters'])} are "
            "active now: a context is saved if one choice of adapters has read all of it and is "
            "active"
        )
    if not writes_to(model).items() <= text.weights_version.items():
        raise ValueError(
            "a weight of the model was changed or replaced since the cache read its text: save "
            "before that, or reset() the cache and read the text again"
        )
    text.layers.trim()
    write = Writer(_codes_of(text.policy))
    about = {
        "version": version("kvlab"),
        "model": identity,
        "method": _method_of(text.policy),
        "longest": text.clock.longest_prompt,
        "clock": write(text.clock, "clock"),
        "layers": [write(x, f"layers.{n}") for n, x in enumerate(text.layers.copies())],
        "others": [
            None if x in cache.compressed_layers else write(vars(x), f"others.{n}")
            for n, x in enumerate(cache.layers)
        ],
    }
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        save_file(write.tensors, unfinished, {KEY: json.dumps(about)})
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


@torch.inference_mode()
def load(cache: Any, path: Path, model_name: str | None) -> tuple[Text, Sequence[Any]]:
    """Read the text of a cache, and its layers that no policy decides about."""
    of, text = cache.attachment, cache.text
    identity, devices = identity_of(of.model, model_name), devices_of(of.model)
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})[KEY])
            policy = of.policy_for(about["longest"]) if of.policy_for else of.policy
            _check_origin(about, identity, policy)
            read = Reader(file.get_tensor, _codes_of(policy), devices[None])
            clock, caches = read(about["clock"]), []
            clock.records_confidence = text.clock.records_confidence
            for layer, held in zip(cache.compressed_layers, about["layers"], strict=True):
                read.device = devices[layer.number]
                caches.append(_completed(read(held), policy))
            layers = of.new_layers()
            for number, (layer, held) in enumerate(zip(layers, about["others"], strict=True)):
                read.device = devices[number]
                vars(layer).update(read(held) or {})
    except (SafetensorError, LookupError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no compressed context, or not a whole one: {error}") from None
    except ValueError as error:
        raise ValueError(f"{path} cannot be loaded: {error}") from None
    compressed = Layers(policy, len(caches), of.watch)
    compressed.take(caches)
    return Text(policy, clock, compressed), layers


def _completed(cache: LayerCache, policy: Policy) -> LayerCache:
    cache.take_state(cache.state)
    held, columns = cache.columns.places, policy.score.columns
    cache.columns.state = {name: column for name, column in columns.items() if name in held}
    cache.triton = uses_triton(cache.positions.new_empty(0, dtype=cache.dtype))
    return cache


# --- whose context it is ---


def _check_origin(about: Mapping[str, Any], model: Mapping[str, Any], policy: Policy) -> None:
    if (found := about["version"]) != (here := version("kvlab")):
        raise ValueError(f"kvlab {found} saved it, and this is kvlab {here}")
    if apart := _difference(about["model"], model):
        raise ValueError(f"it is of another model: {apart}")
    theirs, ours = about["method"], _method_of(policy)
    if apart := _difference(theirs["parts"], ours["parts"]):
        raise ValueError(
            f"it is of {theirs['name']}, and this cache was made for {ours['name']}: {apart}"
        )


def _method_of(policy: Policy) -> dict[str, Any]:
    """Return a method's name, and what it is made of: every part with its options."""
    of = policy.specification
    parts = {each.name: repr(getattr(of, each.name)) for each in fields(of) if each.name != "name"}
    return {
        "name": policy.name,
        "parts": {name: ADDRESS.sub("", parts[name]) for name in sorted(parts)},
    }


def _difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str | None:
    """Name the first entry that differs; None if there is none."""
    for name in dict.fromkeys((*ours, *theirs)):
        there, here = theirs.get(name), ours.get(name)
        if there != here:
            return f"{name} is {there} in the file, and {here} here"
    return None


# --- trees of objects, tensors, numbers and names ---


def _codes_of(policy: Policy) -> list[Any]:
    """Return the codes in which a precision stores keys and values on arrival."""
    return [code for code in vars(policy.precision).values() if isinstance(code, Code)]


class Writer:
    """Turns a tree into JSON, and keeps its tensors under their places in the tree."""

    def __init__(self, codes: list[Any]) -> None:
        self.codes = codes
        self.tensors: dict[str, Tensor] = {}

    def __call__(self, value: Any, name: str) -> Any:
        """Return a tree as JSON; ValueError if it has anything that cannot be saved."""
        kind = type(value).__name__
        if isinstance(value, Tensor | np.ndarray):
            tensor = value if isinstance(value, Tensor) else torch.from_numpy(value)
            self.tensors[name] = tensor.clone(memory_format=torch.contiguous_format)
            return {"tensor" if isinstance(value, Tensor) else "array": name}
        if type(value) in CLASSES.values():
            held = {k: x for k, x in vars(value).items() if (kind, k) not in MADE_ANEW}
            return {kind: self(held, name)}
        if isinstance(value, Mapping):
            return {"map": [[self(k, name), self(x, f"{name}.{k}")] for k, x in value.items()]}
        if isinstance(value, tuple | list):
            return {kind: [self(x, f"{name}.{i}") for i, x in enumerate(value)]}
        if isinstance(value, range):
            return {kind: [value.start, value.stop]}
        if isinstance(value, torch.dtype | torch.device):
            return {kind: str(value).removeprefix("torch.")}
        if value in self.codes:
            return {"code": self.codes.index(value)}
        if value is None or isinstance(value, bool | int | float | str | np.generic):
            return value.item() if isinstance(value, np.generic) else value
        raise ValueError(f"{name} of the cache is of the type {kind}, which cannot be saved")


@dataclass
class Reader:
    """Inverts a `Writer`: ``read`` gives the tensor of a name, and all devices are ``device``."""

    read: Callable[[str], Tensor]
    codes: list[Any]
    device: torch.device

    def __call__(self, tree: Any) -> Any:
        """Return the tree that JSON stands for; LookupError if it is no such tree."""
        if not isinstance(tree, dict):
            return tree
        [(kind, value)] = tree.items()
        if kind in CLASSES:
            made = object.__new__(CLASSES[kind])
            vars(made).update(self(value))
            return made
        return {
            "tensor": lambda: self.read(value).to(self.device),
            "array": lambda: self.read(value).numpy(),
            "map": lambda: {self(k): self(x) for k, x in value},
            "tuple": lambda: tuple(map(self, value)),
            "list": lambda: list(map(self, value)),
            "range": lambda: range(*value),
            "dtype": lambda: getattr(torch, value),
            "device": lambda: self.device,
            "code": lambda: self.codes[value],
        }[kind]()
