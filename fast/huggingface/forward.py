"""The model's ``forward`` with a clock, which cuts long prompts into blocks."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn

import torch
from jaxtyping import Bool
from torch import Tensor

from kvlab.fast.huggingface.cache import Attachment, CompressedCache
from kvlab.fast.huggingface.generation import how_to_go_on
from kvlab.fast.huggingface.rotary import longest_alike

BY_TOKEN = ("input_ids", "inputs_embeds", "position_ids", "token_type_ids")
"""Arguments that have something for every token of the call."""

TEXT = (
    *BY_TOKEN,
    *("attention_mask", "past_key_values", "use_cache", "logits_to_keep", "return_dict"),
    *("cache_position", "labels", "output_hidden_states", "output_attentions"),
)
"""Arguments of a call that only has text; all others belong to images, sounds, or the like."""


class Forward:
    """Replaces the ``forward`` of a model inside `compress`."""

    def __init__(self, model: Any, attachment: Attachment, block_size: int | None) -> None:
        self.forward, self.attachment, self.block_size = model.forward, attachment, block_size
        self.signature = inspect.signature(self.forward)
        self.places_images = hasattr(model.base_model, "get_rope_index")
        """Whether the model gives the tokens of an image positions of their own (Qwen2.5-VL)."""
        self.first_position = first_position(model)
        self.longest_alike = longest_alike(model)
        self.rereads = getattr(model.config, "original_max_position_embeddings", None)
        """Length of a text beyond which `generate` drops the cache of some models (Phi-3)."""

    def as_method(self) -> Callable[..., Any]:
        """Return what replaces the model's ``forward``, with its signature."""

        @wraps(self.forward)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return self(*args, **kwargs)

        return forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = dict(kwargs)
        if args:
            given |= self.signature.bind_partial(*args).arguments
        cache = given.get("past_key_values")
        if not isinstance(cache, CompressedCache) or cache.attachment is not self.attachment:
            self._refuse_other_cache(given)
        with cache.used():
            return self._run(cache, given)

    def _run(self, cache: CompressedCache, given: dict[str, Any]) -> Any:
        inputs = self._inputs(cache, given)
        N, m = inputs.shape[:2]
        real = self._real(cache, given.get("attention_mask"), N, m)
        size = self.block_size or m
        if m > size:
            self._refuse_in_blocks(cache, given, m)
        if cache.policy.specification.reposition:
            self._check_positions(cache, given, real, m)
        cache.begin(inputs, real)
        if self.places_images and _not_text(given):
            cache.model_counts_positions = True
        outputs, logits = None, []
        try:
            for first in range(0, m, size):
                last = min(first + size, m)
                outputs = self._run_block(cache, given, real, first, last, m)
                logits.append(outputs.logits)
        except BaseException:
            cache.broken = True
            raise
        assert outputs is not None
        if len(logits) > 1:
            outputs.logits = torch.cat([part for part in logits if part is not None], dim=1)
        return outputs

    def _run_block(
        self,
        cache: CompressedCache,
        given: dict[str, Any],
        real: Tensor | None,
        first: int,
        last: int,
        m: int,
    ) -> Any:
        part = None if real is None else real[:, first:last]
        columns = cache.clock.columns
        with torch.inference_mode():
            positions = cache.begin_block(part, last - first)
        block = dict(given)
        if last - first < m:
            for name in BY_TOKEN:
                if block.get(name) is not None:
                    block[name] = _columns(block[name], first, last, m)
            if block.get("attention_mask") is not None:
                block["attention_mask"] = block["attention_mask"][:, : columns + last - first]
        self._place(cache, block, positions, first_tokens=columns == 0)
        wanted = self._logits_wanted(given, first, last, m)
        if wanted is not None:
            block["logits_to_keep"] = max(1, wanted)
        block["use_cache"] = True
        block.pop("cache_position", None)  # until transformers 5.5: of the whole prompt
        with torch.inference_mode():
            outputs = self.forward(**block)
            cache.end_block(outputs.logits, last - first)
        if wanted == 0 and last < m:
            outputs.logits = None
        return _ordinary(outputs)

    def _place(
        self, cache: CompressedCache, block: dict[str, Any], positions: Tensor, first_tokens: bool
    ) -> None:
        """Give a block the positions of its tokens, and no mask where none is read.

        A prompt's mask is always built, so that `attention` can refuse a mask that is not causal.
        """
        if cache.model_counts_positions:
            return
        if block.get("position_ids") is None and "position_ids" in self.signature.parameters:
            block["position_ids"] = positions.clamp(min=0).long() + self.first_position
        single = positions.shape[1] == 1 and not first_tokens
        if cache.masks_nothing and single and "attention_mask" in self.signature.parameters:
            block["attention_mask"] = cache.no_mask(positions.device)

    def _logits_wanted(self, given: dict[str, Any], first: int, last: int, m: int) -> int | None:
        """Say how many logits at the end of a block the call asks for; None to change nothing."""
        if last - first == m or "logits_to_keep" not in self.signature.parameters:
            return None
        keep = given.get("logits_to_keep", 0) or m
        return min(last - first, max(0, last - (m - keep)))

    def _refuse_other_cache(self, given: dict[str, Any]) -> NoReturn:
        inputs, running = _inputs_of(given), getattr(self.attachment.of_thread, "runs", None)
        held, limit = 0 if running is None else running.clock.columns, self.rereads
        if inputs is not None and held and limit and held <= limit < held + inputs.shape[1]:
            raise ValueError(
                f"a text of {held} tokens in the cache grows beyond "
                f"original_max_position_embeddings = {limit}, where this model reads the whole "
                f"text again without a cache: end at {limit} tokens (max_new_tokens), or begin "
                "with a longer prompt"
            )
        if isinstance(given.get("past_key_values"), CompressedCache):
            raise ValueError(
                "past_key_values is a cache of another compress(): give the model the cache that "
                "compress() returned for it now, or a copy of that cache"
            )
        raise ValueError(
            "inside compress(), call the model with past_key_values=cache, and without options "
            "that call it with a cache of their own (guidance_scale)"
        )

    def _inputs(self, cache: CompressedCache, given: dict[str, Any]) -> Tensor:
        inputs = _inputs_of(given)
        if given.get("output_attentions"):
            raise ValueError("output_attentions: attention is not kept; use compress(watch=...)")
        if given.get("return_dict") is False:
            raise ValueError("return_dict = False is not supported inside compress()")
        if given.get("use_cache") is False:
            raise ValueError("use_cache = False: a compressed cache has to be used")
        if inputs is None:
            raise ValueError("input_ids or inputs_embeds must be given")
        if inputs.shape[1] == 0:
            raise ValueError(
                f"inputs of shape {tuple(inputs.shape)} must hold at least one token"
                f"{how_to_go_on(cache.clock.columns)}"
            )
        return inputs

    def _refuse_in_blocks(self, cache: CompressedCache, given: dict[str, Any], m: int) -> None:
        length = max((row.seen for row in cache.clocks), default=0) + m
        if self.longest_alike is not None and given.get("position_ids") is not None:
            length = max(length, int(given["position_ids"].max()) + 1)
        if self.longest_alike is not None and length > self.longest_alike:
            raise ValueError(
                f"block_size = {self.block_size} cannot be used with a text of {length} tokens: "
                f"this model's rotary embedding takes other frequencies beyond "
                f"{self.longest_alike} tokens, and earlier blocks would keep the first ones; call "
                "compress() without block_size, or give at most so many tokens"
            )
        for name in _not_text(given):
            raise ValueError(
                f"{name} cannot be used with a prompt longer than block_size: call compress() "
                "without block_size for prompts with more than text"
            )
        for name in ("labels", "output_hidden_states"):
            if given.get(name) is not None and given[name] is not False:
                raise ValueError(f"{name} cannot be used with a prompt longer than block_size")
        if isinstance(given.get("logits_to_keep"), Tensor):
            raise ValueError("logits_to_keep must be a number with a prompt longer than block_size")

    def _check_positions(
        self, cache: CompressedCache, given: dict[str, Any], real: Tensor | None, m: int
    ) -> None:
        """Refuse positions that are not the tokens' numbers: ``reposition`` counts on from these.

        A single token on an accelerator is checked there, because nobody waits for it.
        """
        if self.places_images and (names := _not_text(given)):
            raise ValueError(
                f"{names[0]} cannot be used with reposition = True, because the model gives tokens "
                "of an image positions of their own"
            )
        if (at := given.get("position_ids")) is None:
            return
        counted = cache.clock.following(real, m).to(at.device)
        same = at.shape[-1] == m and ((at - self.first_position == counted) | (counted < 0)).all()
        message = (
            "position_ids must count the tokens of each text, 0, 1, 2, and so on, with reposition "
            "= True, which makes a token's position its place in the cache: leave them out"
        )
        if isinstance(same, Tensor) and m == 1 and at.device.type != "cpu":
            torch._assert_async(same, message)  # type: ignore[attr-defined]
        elif not same:
            raise ValueError(message)

    def _real(
        self, cache: CompressedCache, attention_mask: Any, N: int, m: int
    ) -> Bool[Tensor, "N m"] | None:
        """Mark the tokens that are not padding; None: no padding. Always None for single tokens."""
        if attention_mask is None:
            return None
        held = cache.clock.columns
        expected = (N, held + m)
        if not isinstance(attention_mask, Tensor) or tuple(attention_mask.shape) != expected:
            raise ValueError(
                f"attention_mask must be a tensor of shape {expected}{how_to_go_on(held)}"
            )
        if m == 1 and held:
            last = attention_mask.select(1, -1).all()
            torch._assert_async(last, "a single token must not be padding")  # type: ignore[attr-defined]
            return None
        real = attention_mask[:, -m:].bool()
        if not real.any(dim=1).all():
            raise ValueError(
                "attention_mask must leave at least one token in every row: for a padded prompt in "
                "pieces, give it at once and use compress(block_size=...)"
            )
        if not real[:, -1].all():
            raise ValueError("attention_mask must pad on the left: the last token is real")
        return None if real.all() else real


def _inputs_of(given: dict[str, Any]) -> Tensor | None:
    inputs = given.get("input_ids")
    return given.get("inputs_embeds") if inputs is None else inputs


def first_position(model: Any) -> int:
    """Return the position of a text's first token where a call gives none: RoBERTa's is not 0."""
    counting = "create_position_ids_from_input_ids"
    found = [module for module in model.get_decoder().modules() if hasattr(module, counting)]
    return found[0].padding_idx + 1 if found else 0


def _not_text(given: dict[str, Any]) -> list[str]:
    """Name the arguments of a call that are not about text."""
    return [name for name, value in given.items() if value is not None and name not in TEXT]


def _ordinary(outputs: Any) -> Any:
    """Copy the tensors of inference mode, so that they can be changed in place outside of it."""
    for name in outputs:
        value = getattr(outputs, name)
        if isinstance(value, Tensor):
            setattr(outputs, name, value.clone())
        elif isinstance(value, tuple):
            setattr(outputs, name, tuple(x.clone() for x in value))
    return outputs


def _columns(x: Tensor, first: int, last: int, m: int) -> Tensor:
    """Return the tokens of a block, whatever axis counts them."""
    return x[:, first:last] if x.shape[1] == m else x[..., first:last]
