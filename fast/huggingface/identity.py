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
WAYS_TO_SAVE = ("_save_to_state_dict", "get_extra_state", "state_dict")
"""Methods by which a module may say that it has more than parameters and buffers."""
BESIDE = {
    "torch": ("_packed_params", "_packed_weight", "scale", "zero_point"),
    "hqq": ("meta",),
    "bitsandbytes": (),
    "optimum": (),
    "peft": (),
}
"""Packages whose ways to save are known; and attributes beside parameters and buffers that count.

What bitsandbytes has beside them, `_of_bitsandbytes` reads.
"""
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
        _check_open(module, path)
        for name, value in _held(module):
            place = f"{path}.{name}"
            if not f"{place}.".startswith(idle):
                place = PEFT.sub("", place)
                lines.add(f"{place} {_written(value, place)}")
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _check_open(module: Any, path: str) -> None:
    """Refuse a module whose weights nobody finds but its own methods, which may change them."""
    kind = type(module).__name__
    for way in WAYS_TO_SAVE:
        if getattr(module, way).__module__.partition(".")[0] not in BESIDE:
            raise ValueError(
                f"{path or 'the whole'} of the model is a {kind}, whose {way} is its own, so that "
                f"kvlab does not know where its weights are: {GIVE_NAME}"
            )
    if "ct_decompress_hook" in vars(module):
        raise ValueError(
            f"the weights of {kind} are compressed until its first call: call it once before, "
            f"load it with CompressedTensorsConfig(dequantize=True), or {GIVE_NAME}"
        )


def _held(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a module itself computes with, as it lies there.

    The module's own methods are not called: to save its weights, bitsandbytes changes them.
    """
    for name, value in module._parameters.items():
        if value is not None:
            yield name, _of_bitsandbytes(module, value) or _fetched(module, name, value.detach())
    computed = module._non_persistent_buffers_set
    for name, value in module._buffers.items():
        if name in computed and value is not None and not _follows_length(module, name):
            yield name, value.bfloat16() if value.is_floating_point() else value
        elif name not in computed and value is not None:
            yield name, _fetched(module, name, value)
    beside = BESIDE.get(type(module).__module__.partition(".")[0], ())
    for name in [name for name in beside if name in vars(module)]:
        value = vars(module)[name]
        yield name, value.__getstate__() if isinstance(value, torch.ScriptObject) else value
    yield from _options_of_adapters(module)


def _options_of_adapters(module: Any) -> Iterator[tuple[str, Any]]:
    for adapter in _adapters_used(module):
        for name in module.other_param_names:
            options = getattr(module, name, None)
            if isinstance(options, dict) and isinstance(options.get(adapter), OPTION):
                yield f"{name}.{adapter}", options[adapter]


def _of_bitsandbytes(module: Any, weight: Any) -> dict[str, Any] | None:
    """Return codes and scales of a weight that bitsandbytes has quantised; None of another.

    In the first call on some CPUs, weights of 4 bits are put in another order, and their scales
    are rounded to bfloat16: so codes count row by row, and scales in bfloat16.
    """
    if hasattr(weight, "SCB"):  # the first call moves the scales to the module
        scales = getattr(module, "state", weight).SCB if weight.SCB is None else weight.SCB
        return {"codes": weight.detach(), "scales": scales}
    state = getattr(weight, "quant_state", None) or vars(module).get("quant_state")
    if state is None:
        return None
    codes, scales = weight.detach().contiguous().view(torch.uint8), state.absmax
    if getattr(state, "packing_format_for_cpu", False):
        # of 32 rows, byte by byte: the first 16 in the lower halves, the others in the upper ones
        packed = codes.reshape(state.shape[0] // 32, -1, 16, 2)
        first, second = torch.cat((packed & 15, packed >> 4), dim=2).transpose(1, 2).unbind(-1)
        codes, scales = first << 4 | second, scales.T
    elif state.nested:
        of = state.state2
        factors = of.absmax.repeat_interleave(of.blocksize)[: scales.numel()]
        scales = of.code[scales.int()] * factors.view_as(scales) + state.offset
    return {
        "codes": codes.reshape(-1),
        "scales": scales.reshape(-1).bfloat16(),
        "values": state.code,
        "about": (state.shape, state.blocksize, getattr(state, "original_dtype", state.dtype)),
    }


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


def _fetched(module: Module, name: str, weight: Tensor) -> Tensor:
    """Return a weight of a module, from where accelerate has it if that is elsewhere."""
    for hook in _hooks_of(module):
        if weight.is_meta and name in (held := getattr(hook, "weights_map", None) or {}):
            return held[name]
    return weight


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
        if value.is_meta:
            raise ValueError(
                f"{name} of the model is on the device meta, without numbers: {GIVE_NAME}"
            )
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
