"""What a model computes keys and values with, whoever holds it, and where it computes them."""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import pad
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

VOLATILE = {"transformers_version", "architectures", "dtype", "torch_dtype"}
"""Entries of a configuration that say nothing of what the model computes."""
OPTION = bool | int | float | str | tuple | list | Tensor
"""What an option of an adapter may be; anything else is code or follows from its weights."""
PEFT = re.compile(r"\.(base_layer|original_module|token_adapter)(?=\.)")
"""Parts of names that adapters of PEFT add to those of a model's own weights."""
WORDS = 2**16
"""Numbers of eight bytes that make one sum."""


def identity_of(model: Any, name: str | None = None) -> dict[str, Any]:
    """Return class, configuration, active adapters of PEFT, and a digest of all weights.

    ``name`` is the caller's own name for the weights, which are then not read.
    """
    if name is not None and not (isinstance(name, str) and name):
        raise ValueError(f"model_name = {name!r} must be a text, or None: the weights are compared")
    text = model.config.to_json_string(use_diff=False)
    return {
        "class": type(model).__name__,
        **json.loads(text, object_hook=_lasting),
        "adapters": list(adapters_used(adapted(model))),
        "model_name": name,
        "weights": digest_of(model) if name is None else None,
    }


def _lasting(configuration: dict[str, Any]) -> dict[str, Any]:
    lasting = configuration.keys() - VOLATILE
    return {k: x for k, x in configuration.items() if k in lasting and not k.startswith("_")}


@torch.inference_mode(False)  # in which tensors of torchao cannot be read
@torch.no_grad()
def digest_of(model: Module) -> str:
    """Hash all parameters and buffers, and the numbers of active adapters, wherever they are.

    Every bit counts, except those of buffers that are computed when a model is made: there bfloat16
    counts, because devices round differently. A model with adapters that are switched off has the
    digest of the model without them. ValueError for what cannot be read.
    """
    lines, idle = set(), tuple(_idle(model))
    for path, module in model.named_modules(remove_duplicate=False):
        for name, value in _held(module):
            place = f"{path}.{name}"
            if isinstance(value, Tensor) and value.is_meta:
                value = _fetched(module, name, place)
            if not f"{place}.".startswith(idle):
                place = PEFT.sub("", place)
                lines.add(f"{place} {_written(value, place)}")
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _held(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a module itself computes with: its state as it would be saved, and the rest."""
    held: dict[str, Any] = {}
    module._save_to_state_dict(held, "", keep_vars=False)  # quantised layers have their own
    yield from held.items()
    for name, value in module.named_buffers(recurse=False, remove_duplicate=False):
        if name not in held and not _follows_length(module, name):
            yield name, value.bfloat16() if value.is_floating_point() else value
    for adapter in _adapters_used(module):
        for name in module.other_param_names:
            options = getattr(module, name, None)
            if isinstance(options, dict) and isinstance(options.get(adapter), OPTION):
                yield f"{name}.{adapter}", options[adapter]


def _follows_length(module: Module, name: str) -> bool:
    """Say whether a buffer may depend on the longest text so far."""
    kinds = getattr(module, "rope_type", None)
    kinds = kinds.values() if isinstance(kinds, dict) else (kinds,)
    grows = any(kind and ("dynamic" in kind or kind == "longrope") for kind in kinds)
    return "cache" in name or (grows and name.endswith("inv_freq") and "original" not in name)


def writes_to(model: Module) -> dict[int, int]:
    """Return how often each parameter of a model was written to, as PyTorch counts it.

    Offloaded ones are made anew at every call, and do not count.
    """
    counted = (x for x in model.parameters() if not (x.is_meta or x.is_inference()))
    return {id(x): x._version for x in counted}


# --- adapters of PEFT ---


def without_wrapper(model: Any) -> Any:
    """Return the model inside PEFT's wrapper, whose layers have the adapters; or the model itself.

    ValueError for learned prompts and prefixes, which are entries of no token.
    """
    if not (hasattr(model, "peft_config") and hasattr(model, "get_base_model")):
        return model
    for name, adapter in model.peft_config.items():
        if adapter.is_prompt_learning:
            raise ValueError(
                f"the adapter {name!r} of {type(model).__name__} ({adapter.peft_type.value}) puts "
                "learned entries before the text, which kvlab does not know: use it without "
                "compress()"
            )
    return model.get_base_model()


def adapted(model: Any) -> list[Any]:
    """Return the layers that have adapters of PEFT."""
    return [module for module in model.modules() if hasattr(module, "adapter_layer_names")]


def adapters_used(layers: Iterable[Any]) -> tuple[str, ...]:
    """Return the adapters that these layers use now; a call may name others for its rows."""
    used = {name for each in layers for name in _adapters_used(each)}
    hooks = [hook for each in layers for hook in each._forward_pre_hooks.values()]
    named = [getattr(hook, "keywords", {}).get("adapter_names") or () for hook in hooks]
    return tuple(sorted({*used, *(f"{x} by adapter_names" for names in named for x in names)}))


def invoked_adapters(model: Any) -> list[str]:
    """Name active adapters that begin at certain tokens of a call (aLoRA)."""
    configs = getattr(model, "peft_config", {}).items()
    invoked = {name for name, x in configs if getattr(x, "alora_invocation_tokens", None)}
    return [x for x in adapters_used(adapted(model)) if x in invoked] if invoked else []


def _adapters_used(module: Any) -> list[str]:
    """Return the adapters that a layer of PEFT adds to its own weights."""
    if not hasattr(module, "adapter_layer_names") or module.disable_adapters:
        return []
    return [] if module.merged_adapters else list(module.active_adapters)


def _idle(model: Any) -> Iterator[str]:
    """Yield beginnings of the names of weights that belong to other adapters."""
    for path, module in model.named_modules(remove_duplicate=False):
        if hasattr(module, "adapter_layer_names"):
            for name in (*module.adapter_layer_names, *module.other_param_names):
                weights: Any = getattr(module, name, None)
                if hasattr(weights, "keys"):
                    others = set(weights.keys()) - set(_adapters_used(module))
                    yield from (f"{path}.{name}.{each}." for each in others)


# --- where weights are ---


def _hooks_of(module: Module) -> tuple[Any, ...]:
    """Return the hooks by which accelerate moves a module's weights."""
    hook = getattr(module, "_hf_hook", None)
    return tuple(getattr(hook, "hooks", () if hook is None else (hook,)))


def _fetched(module: Module, name: str, place: str) -> Tensor:
    """Return a weight of a module from where accelerate has it."""
    for hook in _hooks_of(module):
        if name in (held := getattr(hook, "weights_map", None) or {}):
            return held[name]
    raise ValueError(f"{place} of the model is on the device meta, without numbers: {GIVE_NAME}")


def devices_of(model: Any) -> Mapping[int | None, torch.device]:
    """Return where each layer computes, by its number, and None: where the embeddings do."""
    main = _device_of(model.get_input_embeddings()) or model.device
    found: dict[int | None, torch.device] = defaultdict(lambda: main)
    for module in model.modules():
        number = getattr(module, "layer_idx", None)
        if number is not None and (device := _device_of(module)) is not None:
            found[number] = device
    return found


def _device_of(module: Module) -> torch.device | None:
    """Return where a module computes, which is not where accelerate may keep its weights."""
    for each in module.modules():
        for hook in _hooks_of(each):
            if getattr(hook, "execution_device", None) is not None:
                return torch.device(hook.execution_device)
        for weight in (*each.parameters(recurse=False), *each.buffers(recurse=False)):
            if not weight.is_meta:
                return weight.device
    return None


# --- digests ---

ADDRESS = re.compile(" at 0x[0-9a-f]+")
GIVE_NAME = "give model_name, a name of your own for the model, to save and to load"


def _written(value: Any, name: str) -> str:
    """Return a text that is another one if any bit of a tensor, or of a tree of them, is."""
    if isinstance(value, Tensor):
        kind = f"{type(value).__name__} {tuple(value.shape)} {value.dtype}"
        if is_traceable_wrapper_subclass(value):
            names, about = value.__tensor_flatten__()
            parts = {each: getattr(value, each) for each in names}
            return f"{kind} {ADDRESS.sub('', repr(about))} {_written(parts, name)}"
        return f"{kind} {_sums(value.dequantize() if value.is_quantized else value)}"
    if isinstance(value, Mapping):
        return str([(str(key), _written(x, name)) for key, x in value.items()])
    if isinstance(value, tuple | list):
        return str([_written(x, name) for x in value])
    if value is None or isinstance(value, bool | int | float | str | torch.dtype):
        return repr(value)
    raise ValueError(f"{name} of the model is of the type {type(value).__name__}: {GIVE_NAME}")


def _sums(tensor: Tensor) -> str:
    """Hash a tensor on its own device.

    The hash is of sums modulo 2**64 of all its words, each times an odd number of its own: a change
    of one word changes a sum, a change of several leaves it with probability 2**-63.
    """
    octets = tensor.contiguous().reshape(-1).view(torch.uint8)
    if octets.storage_offset() % 8 or len(octets) % 8:
        octets = pad(octets, (0, -len(octets) % 8))
    factors = _factors(octets.device)
    pieces = octets.view(torch.int64).split(WORDS)
    sums = [(piece * factors[: len(piece)]).sum() for piece in pieces]
    return hashlib.sha256(str(torch.stack(sums).tolist()).encode()).hexdigest()


@cache
def _factors(device: torch.device) -> Tensor:
    octets = bytearray(hashlib.shake_256(b"kvlab").digest(8 * WORDS))
    return (torch.frombuffer(octets, dtype=torch.int64) | 1).to(device)
