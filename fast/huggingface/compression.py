"""`compress`: puts a policy into a Hugging Face model, and takes it away again."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kvlab.fast import methods
from kvlab.fast.huggingface.attention import IMPLEMENTATION
from kvlab.fast.huggingface.cache import CompressedCache, Watch
from kvlab.fast.huggingface.forward import Forward
from kvlab.fast.huggingface.sharding import check_heads, shard_of
from kvlab.fast.policy import Policy
from kvlab.reference import policy as reference


@contextmanager
def compress(
    model: Any,
    policy: str | Policy | reference.Policy,
    budget: int | None = None,
    block_size: int | None = None,
    watch: Watch | None = None,
    **options: Any,
) -> Iterator[CompressedCache]:
    """Compress the KV cache of a Hugging Face model.

    ```python
    with compress(model, "caote:snapkv", budget=2048, block_size=128) as cache:
        model.generate(**inputs, past_key_values=cache)
    ```

    Every call of the model inside has to be given the cache. The tokens of the first call are the
    prompt; whatever comes later, also a next turn of a chat, counts as generated. The model is as
    it was before when the context ends, also after an error.

    Args:
        model: a decoder of transformers whose attention goes through its attention interface.
        policy: registry syntax such as ``"h2o@every=25"``, or a policy.
        budget: entries kept per KV head and layer, where the method takes one.
        block_size: feed prompts in blocks of so many tokens, so that no layer ever holds more than
            the budget and one block; None for the whole prompt at once.
        watch: called after every step of every compressed layer.
        options: hyper-parameters of the method.

    Raises:
        ValueError: if the method, an option, a value or the model is not allowed.
        TypeError: if an argument or an option has the wrong type.
    """
    _check_block_size(block_size)
    if watch is not None and not callable(watch):
        raise TypeError(f"watch = {watch!r} must be a function, or None")
    policy = _policy_of(policy, budget, options)
    configs = _configurations(model)
    check_heads(policy, shard_of(model))
    cache = CompressedCache(model, policy, watch)
    before = [config._attn_implementation for config in configs]
    own_forward = model.__dict__.get("forward")
    try:
        model.set_attn_implementation(IMPLEMENTATION)
        if model.config.get_text_config(decoder=True)._attn_implementation != IMPLEMENTATION:
            raise ValueError(
                f"{type(model).__name__} does not use transformers' attention interface"
            )
        model.forward = Forward(model.forward, cache, block_size).as_method()
        yield cache
        cache.check()
    finally:
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation_internal = implementation
        if own_forward is not None:
            model.forward = own_forward
        else:
            model.__dict__.pop("forward", None)


def _check_block_size(block_size: int | None) -> None:
    if block_size is None:
        return
    if not isinstance(block_size, int) or isinstance(block_size, bool):
        raise TypeError(f"block_size = {block_size!r} must be a whole number, or None")
    if block_size < 1:
        raise ValueError(f"block_size = {block_size!r} must be at least 1")


def _policy_of(
    policy: str | Policy | reference.Policy, budget: int | None, options: Mapping[str, Any]
) -> Policy:
    if isinstance(policy, str):
        return methods.get(policy, budget, **options)
    if not isinstance(policy, Policy | reference.Policy):
        raise TypeError(f"policy = {policy!r} must be a method's name or a policy")
    if budget is not None or options:
        raise ValueError("budget and options belong to a method's name, not to a finished policy")
    return methods.port(policy) if isinstance(policy, reference.Policy) else policy


def _configurations(model: Any) -> list[Any]:
    """Return every configuration whose attention implementation may be changed.

    Raises:
        ValueError: if the model is no decoder of transformers, or is compressed already.
    """
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "set_attn_implementation"):
        raise ValueError(f"model of type {type(model).__name__} must be a transformers model")
    if config.is_encoder_decoder:
        raise ValueError(f"{type(model).__name__} is no decoder-only model")
    if config._attn_implementation == IMPLEMENTATION:
        raise ValueError("the model is compressed already: leave the other compress() first")
    found = {id(config): config}
    for module in model.modules():
        inner = getattr(module, "config", None)
        if hasattr(inner, "_attn_implementation_internal"):
            found[id(inner)] = inner
    return list(found.values())
