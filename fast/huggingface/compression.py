"""`compress`: puts a policy into a Hugging Face model, and takes it away again."""

from collections.abc import Callable, Mapping
from typing import Any

from kvlab.fast import methods
from kvlab.fast.engine.policy import Policy
from kvlab.fast.engine.step import Watch
from kvlab.fast.huggingface.agreement import check_agreement, reads_in_pieces
from kvlab.fast.huggingface.attaching import attached, check_model
from kvlab.fast.huggingface.attachment import Attachment
from kvlab.fast.huggingface.cache import CompressedCache
from kvlab.fast.huggingface.graphs import refuse_graphs
from kvlab.fast.huggingface.identity import without_wrapper
from kvlab.fast.huggingface.repositioning import rotations_of
from kvlab.reference import policy as reference
from kvlab.reference.methods import parse
from kvlab.reference.selection import budget_entries

LONG = 10**6
"""Tokens of the text for which a budget in percent is checked before there is one."""


def compress(
    model: Any,
    policy: str | Policy | reference.Policy,
    budget: int | str | None = None,
    block_size: int | None = None,
    watch: Watch | None = None,
    verify: bool = True,
    graphs: bool = False,
    **options: Any,
) -> CompressedCache:
    """Compress the KV cache of a Hugging Face model.

    ```python
    with compress(model, "caote:snapkv", budget=2048, block_size=128) as cache:
        model.generate(**inputs, past_key_values=cache)
    ```

    Every call of the model inside has to be given the cache, or a copy of it. The tokens of the
    first call are the prompt; whatever comes later, also if it is given, counts as generated. The
    model is as it was before when the context ends, also after an error; without ``with``, when the
    cache's ``close()`` is called.

    Args:
        model: a decoder of transformers whose attention goes through its attention interface,
            also one that PEFT has wrapped with adapters in its layers, such as LoRA.
        policy: registry syntax such as ``"h2o@every=25"``, or a policy.
        budget: entries kept per KV head and layer, where the method takes one; ``"25%"`` is that
            share of the tokens of the first call, of its longest sequence, rounded up.
        block_size: feed prompts in blocks of so many tokens, so that no layer ever holds more than
            the budget and one block; None for the whole prompt at once.
        watch: called after every step of every compressed layer.
        verify: compare a few tokens with the stock model's first, once per class, configuration,
            number format and device of a model in this process, and once more for methods that
            change positions or masks.
        graphs: replay tokens as a CUDA graph; the model's hooks run for the first ones only.
        options: hyper-parameters of the method.

    Raises:
        ValueError: if the method, an option, a value or the model is not allowed.
        TypeError: if an argument or an option has the wrong type.
    """
    _check_block_size(block_size)
    if watch is not None and not callable(watch):
        raise TypeError(f"watch = {watch!r} must be a function, or None")
    policy_for = None
    if isinstance(policy, str) and isinstance(budget, str):
        policy_for = _sized(policy, budget, options)
    policy = policy_for(LONG) if policy_for else _policy_of(policy, budget, options)
    model = without_wrapper(model)
    check_model(model)
    attachment = Attachment(model, policy, watch, policy_for)
    if graphs:
        refuse_graphs(attachment)
    if asking := _asks_for_rotations(policy):
        attachment.rotations = rotations_of(model, asking)
    if verify:
        attachment.not_compared = check_agreement(attachment)
        attachment.reads_in_pieces = attachment.reads_in_pieces or reads_in_pieces(model)
    attachment.enter_context(attached(attachment, block_size, graphs))
    return CompressedCache(attachment)


def _asks_for_rotations(policy: Policy) -> str | None:
    """Name what has to know how the model rotates queries and keys; None if nothing has."""
    if policy.specification.reposition:
        return "reposition = True"
    return policy.name if policy.needs.rotary else None


def _check_block_size(block_size: int | None) -> None:
    if block_size is None:
        return
    if not isinstance(block_size, int) or isinstance(block_size, bool):
        raise TypeError(f"block_size = {block_size!r} must be a whole number, or None")
    if block_size < 1:
        raise ValueError(f"block_size = {block_size!r} must be at least 1")


def _sized(spec: str, budget: str, options: Mapping[str, Any]) -> Callable[[int], Policy]:
    """Return the method as a function of the tokens of which the budget is a share."""
    method = parse(spec, **options)  # what is wrong without a budget is said without one
    if not method.parts[-1].needs_budget:
        raise ValueError(f"{spec} evicts nothing and takes no budget, got budget = {budget!r}")

    def policy_for(tokens: int) -> Policy:
        entries = budget_entries(budget, tokens)
        try:
            return methods.get(spec, entries, **options)
        except ValueError as error:
            of = (
                f", even of a text of {tokens:,} tokens"
                if tokens == LONG
                else f" of {tokens} tokens"
            )
            raise ValueError(f"budget = {budget}{of}, which is {entries}: {error}") from None

    return policy_for


def _policy_of(
    policy: str | Policy | reference.Policy, budget: Any, options: Mapping[str, Any]
) -> Policy:
    if isinstance(policy, str):
        return methods.get(policy, budget, **options)
    if not isinstance(policy, Policy | reference.Policy):
        raise TypeError(f"policy = {policy!r} must be a method's name or a policy")
    if budget is not None or options:
        raise ValueError("budget and options belong to a method's name, not to a finished policy")
    return methods.port(policy) if isinstance(policy, reference.Policy) else policy
