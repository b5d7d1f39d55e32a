"""Puts a cache into a model, and takes it away again."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from kvlab.fast.huggingface.arguments import configs_of, refuse_checkpointing, refuse_flags
from kvlab.fast.huggingface.attachment import Attachment
from kvlab.fast.huggingface.attention import IMPLEMENTATION, UnsupportedModelError
from kvlab.fast.huggingface.forward import Forward
from kvlab.fast.huggingface.generation import WITH_OWN_CACHES, checked_generate, refused

KNOWN_ATTENTION = ("sdpa", "flex_attention", *(f"flash_attention_{n}" for n in (2, 3, 4)))
"""Implementations of transformers, beside the model's own ``eager`` one, that compute the same."""


def check_model(model: Any) -> None:
    """Refuse what is no decoder of transformers that a cache can be put into."""
    name = type(model).__name__
    if hasattr(model, "_orig_mod"):
        raise ValueError(
            "model is compiled: give compress() the model that torch.compile() was given"
        )
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "set_attn_implementation"):
        raise ValueError(f"model of type {name} must be a transformers model")
    if config.is_encoder_decoder:
        raise ValueError(f"{name} is no decoder-only model: kvlab compresses decoders only")
    if getattr(config, "add_cross_attention", False):
        raise ValueError(
            f"{name} has cross-attention (add_cross_attention = True), whose entries kvlab does "
            "not know: use it without compress()"
        )
    if not hasattr(config.get_text_config(decoder=True), "num_hidden_layers"):
        raise UnsupportedModelError(
            f"the configuration of {name} has no num_hidden_layers: without the number of a "
            "decoder's layers kvlab cannot compress it; use it without compress()"
        )
    if not model.can_generate():
        raise ValueError(
            f"{name} has no head that gives logits: give compress() the whole model, as "
            "AutoModelForCausalLM loads it"
        )
    if (getattr(model, "_tp_size", None) or 1) > 1:
        raise ValueError(
            f"the KV heads of {name} are in several processes (tensor parallelism), where no "
            "method can compare them: load the model in one process, or its layers on several "
            'devices (device_map="auto")'
        )
    refuse_flags(configs_of(model), {})
    if config._attn_implementation == IMPLEMENTATION:
        raise ValueError(
            "the model is compressed already: leave the other compress() first, or call close() "
            "on the cache that it gave"
        )
    _check_attention(config._attn_implementation)
    refuse_checkpointing(model)


def _check_attention(name: str | None) -> None:
    """Refuse an attention function of the user's own, in whose place kvlab would attend."""
    known = name in (None, "eager", *KNOWN_ATTENTION) or "/" in name  # "/": kernels from the hub
    if not known or (name == "sdpa" and AttentionInterface()[name] is not sdpa_attention_forward):
        raise ValueError(
            f"attn_implementation = {name!r}: kvlab attends in place of that function, and does "
            "not know what it computes; call model.set_attn_implementation with one of "
            f"{', '.join(('eager', *KNOWN_ATTENTION))} before compress()"
        )


@contextmanager
def attached(
    attachment: Attachment, block_size: int | None, graphs: bool = False
) -> Iterator[None]:
    """Let every call of the model use a cache, and restore the model at the end.

    A model that does not use transformers' attention interface is refused.
    """
    model = attachment.model
    if block_size is not None and not attachment.reads_in_pieces:
        raise ValueError(
            f"block_size = {block_size}: the recurrent layers of {type(model).__name__} were not "
            "shown to read a text in blocks as at once (a model that does needs verify=True): "
            "call compress() without block_size"
        )
    with as_before(model, IMAGES), implementation(model, IMPLEMENTATION), _inputs_noted(attachment):
        if model.config.get_text_config(decoder=True)._attn_implementation != IMPLEMENTATION:
            raise UnsupportedModelError(
                f"{type(model).__name__} does not use transformers' attention interface: kvlab "
                "cannot compress it; use it without compress()"
            )
        replaced = {"_kvlab": NotCopied(), "generate": checked_generate(attachment)}
        replaced["forward"] = Forward(attachment, block_size, graphs).as_method()
        replaced |= {name: refused(name) for name in WITH_OWN_CACHES if hasattr(model, name)}
        with ExitStack() as stack:
            for name, function in replaced.items():
                stack.enter_context(_replaced(model, name, function))
            try:
                yield
            finally:
                attachment.closed = True


IMAGES = ("rope_deltas",)
FREQUENCIES = ("inv_freq", "max_seq_len_cached", "attention_scaling")
"""Ends of the names under which a model remembers images and length of the last text it read."""


@contextmanager
def as_before(model: Any, names: tuple[str, ...] = IMAGES + FREQUENCIES) -> Iterator[None]:
    """Let a model read texts, and then remember what it did before; unless it was moved."""
    before = []
    for module in model.modules():
        every = {**vars(module), **module._buffers}
        if known := {name: x for name, x in every.items() if name.endswith(names)}:
            before.append((module, known))
    try:
        yield
    finally:
        for module, known in before:
            pairs = [(x, getattr(module, name)) for name, x in known.items()]
            both = [(x, y) for x, y in pairs if isinstance(x, Tensor) and isinstance(y, Tensor)]
            if all(x.device == y.device for x, y in both):
                for name, value in known.items():
                    setattr(module, name, value)


class NotCopied:
    """An attribute that keeps a model from being copied while its methods are replaced.

    A copy would have the methods of the original, which call the original's weights.
    """

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise ValueError(
            "a model cannot be copied inside compress(): copy it before, or after the context"
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ValueError("a model cannot be pickled inside compress(): do it after the context")


@contextmanager
def _replaced(model: Any, name: str, function: Any) -> Iterator[None]:
    own = model.__dict__.get(name)
    setattr(model, name, function)
    try:
        yield
    finally:
        if own is not None:
            setattr(model, name, own)
        else:
            model.__dict__.pop(name, None)


@contextmanager
def implementation(model: Any, name: str) -> Iterator[None]:
    """Let a model attend by the functions that are registered under a name, and restore it."""
    configs = _configurations(model)
    before = [config._attn_implementation for config in configs]
    try:
        model.set_attn_implementation(name)
        yield
    finally:
        for config, attention in zip(configs, before, strict=True):
            config._attn_implementation_internal = attention


@contextmanager
def _inputs_noted(attachment: Attachment) -> Iterator[None]:
    """Note what every attention module is given, if the policy's score reads it."""

    def note(module: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        inputs = given.get("hidden_states", args[0] if args else None)
        attachment.of_thread.inputs = module, inputs

    modules = attachment.model.modules() if attachment.policy.needs.hidden_states else ()
    found = [module for module in modules if hasattr(module, "layer_idx")]
    hooks = [module.register_forward_pre_hook(note, with_kwargs=True) for module in found]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _configurations(model: Any) -> list[Any]:
    """Return every configuration whose attention implementation may be changed."""
    found = {id(model.config): model.config}
    for module in model.modules():
        inner = getattr(module, "config", None)
        if hasattr(inner, "_attn_implementation_internal"):
            found[id(inner)] = inner
    return list(found.values())
