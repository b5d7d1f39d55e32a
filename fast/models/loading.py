"""Loads a model and its tokenizer from a directory or from the Hugging Face hub."""

import logging
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from kvlab.fast.models import check_loading, hub_answers, model_location, stored_directory


def load(
    model: str | Path, dtype: str = "auto", device: str | None = None, parallel: str | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a decoder for inference, from safetensors alone and without running its own code.

    ``model`` is a short name, a Hugging Face directory, or an id on the hub; ``device`` None is the
    first GPU, if there is one, else the CPU. With accelerate, weights are read to the device
    without a copy in main memory. FileNotFoundError if the model or a file of it is not there,
    ValueError if the checkpoint is broken or cannot be loaded as asked.
    """
    check_loading(dtype, device, parallel)
    place = find_device(device)
    at = {"": place} if parallel is None else "auto"
    model, local = _find(model)
    with quietly(local):
        network = _load_network(model, dtype, local, at if find_spec("accelerate") else None)
        tokenizer = _attempt(model, local, AutoTokenizer)
    network.eval()
    return network if parallel else network.to(place), tokenizer


def load_gguf(file: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a GGUF file, whose weights become 16-bit numbers, and its tokenizer."""
    if not file.is_file():
        raise FileNotFoundError(f"model = {file} does not exist")
    import_module("gguf")
    inside: dict[str, Any] = {"gguf_file": file.name}
    with quietly(local=True):
        tokenizer = _attempt(str(file.parent), True, AutoTokenizer, **inside)
        network = _attempt(
            str(file.parent), True, AutoModelForCausalLM, dtype=torch.bfloat16, **inside
        )
    network.hf_quantizer = None  # the weights are plain numbers now
    del network.config.quantization_config
    end = tokenizer.convert_ids_to_tokens(network.config.eos_token_id)
    tokenizer.eos_token = end  # transformers takes the token that begins a message
    tokenizer.clean_up_tokenization_spaces = False
    return network, tokenizer


def load_tokenizer_of(model: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer alone; models and errors are those of `load`."""
    return _load_light(model, AutoTokenizer)


def count_layers(model: str | Path) -> int:
    """Return how many layers a model's configuration names; errors are those of `load`."""
    return load_configuration(model).get_text_config(decoder=True).num_hidden_layers


def load_configuration(model: str | Path) -> Any:
    """Load the configuration alone; models and errors are those of `load`."""
    return _load_light(model, AutoConfig)


def _load_light(model: str | Path, loader: Any) -> Any:
    model, local = _find(model)
    with quietly(local):
        return _attempt(model, local, loader)


def find_device(name: str | None) -> torch.device:
    """Return a device, or the first GPU, if there is one, else the CPU; ValueError if it is not."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"device = {name!r} cannot be used: {_one_line(error)}") from None
    if device.type == "meta":
        raise ValueError(f"device = {name!r} cannot be used: it holds no numbers")
    return device


def _find(model: str | Path) -> tuple[str, bool]:
    """Return a directory and True, or an id on the hub, which answers, and False."""
    place = model_location(model)
    directory = Path(place)
    if not directory.is_dir():
        stored = None if hub_answers() else stored_directory(place)
        return stored or place, stored is not None
    if not (directory / "config.json").is_file():
        raise FileNotFoundError(f"{directory / 'config.json'} does not exist")
    if not any(directory.glob("*.safetensors")):
        raise FileNotFoundError(
            f"{directory} holds no safetensors file, the only kind that is read"
        )
    return place, True


def _load_network(model: str, dtype: str, local: bool, device_map: Any) -> Any:
    """Load the weights; missing or unfitting ones are errors, while transformers draws new ones."""
    network, report = _attempt(
        model,
        local,
        AutoModelForCausalLM,
        dtype=dtype,
        use_safetensors=True,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
        device_map=device_map,
    )
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"tensor {missing[0]!r} is missing in {model}")
    if mismatched := sorted(report["mismatched_keys"]):
        name, found, expected = mismatched[0]
        raise ValueError(
            f"tensor {name!r} of {model} has the shape {tuple(found)}, not {tuple(expected)}"
        )
    return network


def _attempt(model: str, local: bool, loader: Any, **options: Any) -> Any:
    """Call ``loader.from_pretrained`` and turn what it raises into one line."""
    name, _, revision = (model, "", "") if local else model.partition("@")
    try:
        at = {"revision": revision} if revision else {}
        options |= {"local_files_only": local, "trust_remote_code": False}
        return loader.from_pretrained(name, **at, **options)
    except (OSError, ValueError, TypeError, RuntimeError, KeyError, SafetensorError) as error:
        if "trust_remote_code" in str(error):
            raise ValueError(f"{model} needs code of its own, which is never run") from None
        reason = _one_line(error)
        if local:
            raise ValueError(f"{_broken_file(model)} cannot be loaded: {reason}") from None
        raise FileNotFoundError(
            f"{model} is no directory here, and cannot be had from the hub: {reason}"
        ) from None


def _broken_file(model: str) -> Path:
    """Return the first weights of a directory that cannot be read, or the directory."""
    for file in sorted(Path(model).glob("*.safetensors")):
        try:
            safe_open(file, "pt").__exit__(None, None, None)
        except SafetensorError:
            return file
    return Path(model)


def _one_line(error: Exception) -> str:
    return textwrap.shorten(str(error), 300, placeholder="…")


@contextmanager
def quietly(local: bool) -> Iterator[None]:
    """Mute reports that `load` turns into errors; downloads alone show their progress."""
    bar = transformers_logging.is_progress_bar_enabled()
    with muted("transformers"), muted("huggingface_hub"):
        if local:
            transformers_logging.disable_progress_bar()
        try:
            yield
        finally:
            if bar:
                transformers_logging.enable_progress_bar()


@contextmanager
def muted(name: str, level: int = logging.CRITICAL) -> Iterator[None]:
    """Let a logger report nothing below a level."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
