"""`generate` of a compressed model: makes sure that its text continues the one in the cache.

As with transformers' own cache, a text is given as a whole, or only what is new with an attention
mask of everything. Where transformers goes on with a wrong text, an error says what is wrong.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn

import torch

from kvlab.fast.huggingface.attachment import Attachment
from kvlab.fast.huggingface.cache import CompressedCache
from kvlab.fast.huggingface.identity import without_wrapper
from kvlab.fast.huggingface.stream_clock import PADDING, fingerprints
from kvlab.fast.kernels.notation import Int, Tensor

WITH_OWN_CACHES = (
    *("generate_batch", "init_continuous_batching", "continuous_batching_context_manager"),
)
"""Ways of transformers to generate that make caches of their own."""

WHOLE = (
    ": generate takes inputs_embeds of the whole text that the cache holds, and of more; give new "
    "ones alone to the model itself, or call reset() on the cache before another text"
)
"""How to go on with embeddings."""


def checked_generate(attachment: Attachment) -> Callable[..., Any]:
    """Return what replaces the model's ``generate`` inside `compress`."""
    model = attachment.model
    original = model.generate
    signature = inspect.signature(original)

    @wraps(original)
    def generate(*args: Any, **kwargs: Any) -> Any:
        given = {**signature.bind_partial(*args).arguments, **kwargs}
        _check_options(model, given)
        without_wrapper(getattr(model.prepare_inputs_for_generation, "__self__", None))
        cache = given.get("past_key_values")
        if not isinstance(cache, CompressedCache) or cache.attachment is not attachment:
            refuse_cache(cache, "generate")
        with cache.used:
            cache.text.check_open(attachment.closed)
            held = cache.text.clock.columns
            if held and (wrong := _wrong_text(cache, given)) is not None:
                embeds = given.get("inputs_embeds") is not None
                raise ValueError(f"{wrong}{WHOLE if embeds else how_to_go_on(held)}")
            attachment.of_thread.runs = cache
            try:
                with cache.text.lent_to(attachment.model), cache.text.generated():
                    result = original(*args, **kwargs)
            finally:
                attachment.of_thread.runs = None
            tokens = result if isinstance(result, Tensor) else result.sequences
            if len(tokens) == len(cache.clocks):
                cache.text.clock.written = tokens[:, -1]
            return result

    return generate


def refused(name: str) -> Callable[..., NoReturn]:
    """Return what replaces a way to generate that makes caches of its own."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise ValueError(
            f"{name} makes a cache of transformers' own, which no method compresses: inside "
            "compress(), call generate with past_key_values=cache on a padded batch, or leave the "
            "context"
        )

    return refuse


def refuse_cache(given: Any, caller: str) -> NoReturn:
    """Raise ValueError for what was given to ``caller`` in place of this context's cache."""
    if isinstance(given, CompressedCache):
        raise ValueError(
            "past_key_values is a cache of another compress(): give the model the cache that "
            "compress() returned for it now, or a copy of that cache"
        )
    found = "without past_key_values" if given is None else f"with a {type(given).__name__}"
    raise ValueError(
        f"{caller} was called {found} inside compress(): give it past_key_values=cache, the cache "
        "that compress() returned; what calls the model without it (Trainer, a pipeline) runs "
        "outside of the context"
    )


def _check_options(model: Any, given: dict[str, Any]) -> None:
    def chosen(name: str) -> Any:
        of_call = getattr(given.get("generation_config"), name, None)
        return given.get(name, of_call or getattr(model.generation_config, name, None))

    kind = chosen("cache_implementation")
    if kind not in (None, "hybrid"):  # which Gemma 2 and 3 come with, and transformers ignores
        raise ValueError(
            f"cache_implementation = {kind!r} makes a cache of transformers' own: inside "
            "compress(), give past_key_values=cache and cache_implementation=None"
        )
    if (scale := chosen("guidance_scale")) not in (None, 1):
        raise ValueError(
            f"guidance_scale = {scale} makes generate call the model with a second cache, of its "
            "own: leave it out inside compress()"
        )
    if (size := chosen("prefill_chunk_size")) is not None:
        raise ValueError(
            f"prefill_chunk_size = {size} would make the first piece the prompt: use "
            "compress(block_size=...) instead of prefill_chunk_size"
        )


def _wrong_text(cache: CompressedCache, given: dict[str, Any]) -> str | None:
    """Say what is wrong with a text that does not continue the one in the cache."""
    ids, mask = given.get("inputs", given.get("input_ids")), given.get("attention_mask")
    clock, embeds = cache.text.clock, given.get("inputs_embeds")
    held, text, model = clock.columns, clock.fed, cache.attachment.model
    if embeds is not None:
        return _wrong_embeddings(cache, embeds, mask)
    if ids is None or len(text) % len(ids):
        return None  # what is left to refuse, the model's forward refuses
    new, width = ids.shape[1], ids.shape[1] if mask is None else mask.shape[1]
    if width == held + new:
        column = _first_difference(text, text, mask)
        return None if column is None else f"attention_mask pads otherwise in column {column}"
    if width != new:
        return f"attention_mask has {width} columns for {new} tokens"
    if (column := _first_difference(*_alike(model, text, ids), mask)) is not None:
        return f"the text given, or its padding, is another one from column {column} on"
    return None if new > held else f"the text given has {new} tokens, of which none is new"


def _wrong_embeddings(cache: CompressedCache, embeds: Tensor, mask: Tensor | None) -> str | None:
    """Say what is wrong with embeddings: `generate` drops as many as the cache has columns."""
    new, held, text = embeds.shape[1], cache.text.clock.columns, cache.text.clock.fed
    if new <= held:
        return f"inputs_embeds gives {new} tokens, of which none is new, without the text before"
    if mask is not None and mask.shape[1] != new:
        return f"attention_mask has {mask.shape[1]} columns for the {new} tokens of inputs_embeds"
    if len(text) % len(embeds):
        return None  # the model's forward refuses it
    column = _first_difference(*_alike(cache.attachment.model, text, fingerprints(embeds)), mask)
    return None if column is None else f"the text of inputs_embeds is another one from {column} on"


def _alike(model: Any, text: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return two texts, both as fingerprints of embeddings if a part of one is given so."""
    if (text >= PADDING).all() and (ids >= PADDING).all():
        return text, ids
    embed = model.get_input_embeddings()

    def embedded(x: Tensor) -> Tensor:
        return torch.where(x < 0, x, fingerprints(embed(x.clamp(min=0).long())).to(x))

    return embedded(text), embedded(ids)


def _first_difference(
    text: Int[Tensor, "N t"], ids: Int[Tensor, "n k"], mask: Tensor | None
) -> int | None:
    """Return the first column in which a text differs from the one of a call, which may be shorter.

    Without a mask, columns of padding are not compared. Waits for the device.
    """
    length = min(text.shape[1], ids.shape[1])

    def alike(x: Tensor) -> Tensor:
        return x[:, :length].to(text.device).repeat_interleave(len(text) // len(x), dim=0)

    text, real = text[:, :length], text[:, :length] != PADDING
    same = (text == alike(ids)) | ~real
    if mask is not None:
        same &= real == alike(mask).bool()
    apart = (~same).any(dim=0).nonzero()
    return int(apart[0]) if len(apart) else None


def how_to_go_on(held: int) -> str:
    """Say what a cache that holds so many columns can be given; nothing if it is empty."""
    if not held:
        return ""
    return (
        f": this cache holds a text of {held} tokens; call reset() on it before another text, or "
        "continue this one: give all of it and more, or only new tokens with an attention_mask of "
        f"{held} columns more; what was read cannot become padding: batch_select_indices() takes "
        "out rows that have ended"
    )
