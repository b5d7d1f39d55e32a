"""Which arguments of a model's ``forward`` `compress` computes with, and which it refuses by name.

Nothing is dropped: an argument that the model or its attention would not see, or that would mean
something else than it does with transformers' own cache, is an error before any state changes.
"""

from collections.abc import Container, Mapping
from typing import Any

import torch

from kvlab.fast.huggingface.generation import how_to_go_on
from kvlab.fast.huggingface.identity import invoked_adapters
from kvlab.fast.huggingface.padding import Blocks
from kvlab.fast.huggingface.rotary import longest_alike
from kvlab.fast.huggingface.stream_clock import StreamClock
from kvlab.fast.huggingface.text import State, Text
from kvlab.fast.kernels.notation import Real, Tensor

Given = Mapping[str, Any]
"""Arguments of a call, by name."""

BY_TOKEN = ("input_ids", "inputs_embeds", "position_ids", "token_type_ids")
"""Arguments that have something for every token of the call."""

OF_EVERY_MODEL = (
    *("attention_mask", "position_ids", "past_key_values"),
    *("use_cache", "logits_to_keep", "return_dict", "cache_position", "num_items_in_batch"),
    *("output_hidden_states", "output_attentions", "output_router_logits"),
)
"""Arguments that transformers takes in every call, whether ``forward`` names them or not."""

TEXT = (*BY_TOKEN, "labels", *OF_EVERY_MODEL)
"""Arguments of a call that only has text; all others belong to images, sounds, or the like."""

OF_OTHER_MEDIA = ("image_", "video_", "audio_", "vision_")
"""How arguments begin that the parts of a model for other media take without naming them."""

REFUSED_FLAGS = {
    "output_attentions": (True, "attention is not kept; use compress(watch=...)"),
    "return_dict": (False, "inside compress() a model returns its outputs by their names"),
    "use_cache": (False, "a compressed cache has to be used: set use_cache to True"),
}
"""Flags with the value that is refused, and why."""

PER_TOKEN = ("output_hidden_states", "output_router_logits")
"""Flags for outputs of every token, of which the last block of a prompt has only its own."""

OTHER_MASK = (
    " is not the mask of the text in the cache: a call reads all that is kept of that text; leave "
    "the mask out, or repeat the one of earlier calls"
)


class Arguments:
    """What a model's ``forward`` may be given inside `compress`."""

    def __init__(self, model: Any, taken: Container[str], block_size: int | None) -> None:
        self.model, self.taken, self.block_size = model, taken, block_size
        self.configs = configs_of(model)
        self.places_images = hasattr(model.base_model, "get_rope_index")
        """Whether the model gives the tokens of an image positions of their own (Qwen2.5-VL)."""
        self.first_position = first_position(model)
        self.longest_alike = longest_alike(model)

    def checked(self, text: Text, stated: Given) -> tuple[Tensor, Blocks]:
        """Return the inputs of a call, and its blocks; ValueError if an argument is wrong."""
        clock = text.clock
        refuse_flags(self.configs, stated)
        refuse_unknown(type(self.model).__name__, self.taken, stated)
        if self.model.training:
            refuse_checkpointing(self.model)
        if "cache_position" in stated and text.state is State.READY:
            raise ValueError("cache_position: the cache counts its tokens itself; leave it out")
        inputs = inputs_of(stated, clock.columns)
        N, m = inputs.shape[:2]
        clock.check_batch_size(N)
        check_logits_to_keep(stated.get("logits_to_keep", 0), clock.records_confidence)
        real = real_tokens(clock, stated.get("attention_mask"), N, m)
        if m > 1 and "position_ids" in stated:
            refuse_packed(stated["position_ids"], real)
        blocks = Blocks(real, m, self.block_size)
        if len(blocks.parts) > 1:
            self._refuse_in_blocks(clock, stated, blocks.longest)
        if len(blocks.parts) > 1 or blocks.columns is not None:
            self._refuse_elsewhere(stated, len(blocks.parts) > 1)
        if text.policy.specification.reposition:
            self._check_positions(clock, stated, real, m)
        return inputs, blocks

    def _refuse_in_blocks(self, clock: StreamClock, given: Given, m: int) -> None:
        length = max((row.seen for row in clock.rows), default=0) + m
        if self.longest_alike is not None and given.get("position_ids") is not None:
            length = max(length, int(given["position_ids"].max()) + 1)
        if self.longest_alike is not None and length > self.longest_alike:
            raise ValueError(
                f"block_size = {self.block_size} cannot be used with a text of {length} tokens: "
                f"this model's rotary embedding takes other frequencies beyond "
                f"{self.longest_alike} tokens, and earlier blocks would keep the first ones; call "
                "compress() without block_size, or give at most so many tokens"
            )
        if invoked := invoked_adapters(self.model):
            raise ValueError(
                f"block_size = {self.block_size} cannot be used with the adapter {invoked[0]!r}: "
                "PEFT counts from the end of a call where it begins (alora_invocation_tokens); "
                "call compress() without block_size"
            )

    def _refuse_elsewhere(self, given: Given, in_blocks: bool) -> None:
        """Refuse what would have to be read, or returned, in other places than in the call's."""
        where, instead = "padding behind a token", "pad on the left"
        if in_blocks:
            where, instead = "a prompt longer than block_size", "call compress() without block_size"
        flags = (setting(self.configs, given, name, True) for name in PER_TOKEN)
        labels = ["labels"] if "labels" in given else []
        for found in (*not_text(given), *filter(None, flags), *labels):
            raise ValueError(f"{found} cannot be used with {where}: {instead}")
        if not isinstance(given.get("logits_to_keep", 0), int):
            raise ValueError(f"logits_to_keep must be a number with {where}: {instead}")

    def _check_positions(
        self, clock: StreamClock, given: Given, real: Tensor | None, m: int
    ) -> None:
        """Refuse positions that are not the tokens' numbers: ``reposition`` counts on from these.

        What is wrong with a single token on an accelerator is noted: nobody waits for it there.
        """
        if self.places_images and (names := not_text(given)):
            raise ValueError(
                f"{names[0]} cannot be used with reposition = True, because the model gives tokens "
                "of an image positions of their own"
            )
        if (at := given.get("position_ids")) is None:
            return
        counted = clock.following(real, m).to(at.device)
        same = ((at - self.first_position == counted) | (counted < 0)).all()
        message = (
            "position_ids must count the tokens of each text, 0, 1, 2, and so on, with reposition "
            "= True, which makes a token's position its place in the cache: leave them out"
        )
        if m == 1 and at.device.type != "cpu":
            clock.note(message, ~same)
        elif not same:
            raise ValueError(message)


def real_tokens(clock: StreamClock, attention_mask: Any, N: int, m: int) -> Real | None:
    """Mark the tokens that are not padding; None: no padding. Always None for single tokens."""
    if attention_mask is None:
        return None
    held = clock.columns
    expected = (N, held + m)
    if not isinstance(attention_mask, Tensor) or tuple(attention_mask.shape) != expected:
        raise ValueError(f"attention_mask must be a tensor of shape {expected}{how_to_go_on(held)}")
    if held:
        check_past(clock, attention_mask, m)
    if m == 1 and held:
        return None
    real = attention_mask[:, -m:].bool()
    if not real.any(dim=1).all():
        raise ValueError(
            "attention_mask must leave at least one token in every row: give a padded prompt at "
            "once, with compress(block_size=...), and take rows that have ended out of the cache "
            "with batch_select_indices()"
        )
    return None if real.all() else real


def first_position(model: Any) -> int:
    """Return the position of a text's first token where a call gives none: RoBERTa's is not 0."""
    counting = "create_position_ids_from_input_ids"
    found = [module for module in model.get_decoder().modules() if hasattr(module, counting)]
    return found[0].padding_idx + 1 if found else 0


def configs_of(model: Any) -> tuple[Any, ...]:
    """Return the configurations that say what a call does where it does not say so itself."""
    whole, decoder = model.config, model.config.get_text_config(decoder=True)
    return (whole,) if decoder is whole else (whole, decoder)


def setting(configs: tuple[Any, ...], given: Given, name: str, value: bool) -> str:
    """Say where a flag has a value: in a call or, if it leaves the flag out, in a configuration.

    The text is empty if the flag has the other value.
    """
    if given.get(name) is not None:
        return f"{name} = {given[name]}" if bool(given[name]) == value else ""
    for config in configs:
        found = getattr(config, name, None)
        if found is not None and bool(found) == value:
            return f"{name} = {found} in the model's configuration"
    return ""


def only_logits(model: Any) -> dict[str, bool]:
    """Return arguments that take back what the configuration asks for beside logits."""
    configs = configs_of(model)
    return {name: False for name in PER_TOKEN if setting(configs, {}, name, True)}


def refuse_flags(configs: tuple[Any, ...], given: Given) -> None:
    """Raise ValueError if a call or a configuration asks for what `compress` cannot do."""
    for name, (value, reason) in REFUSED_FLAGS.items():
        if found := setting(configs, given, name, value):
            raise ValueError(f"{found}: {reason}")


def refuse_checkpointing(model: Any) -> None:
    """Raise ValueError if a part of the model trains with gradient checkpointing."""
    for module in model.modules():
        if module.training and getattr(module, "gradient_checkpointing", False):
            raise ValueError(
                f"{type(model).__name__} trains with gradient checkpointing, which drops the "
                "cache: call model.eval(), or use it without compress()"
            )


def refuse_unknown(model: str, taken: Container[str], given: Given) -> None:
    """Raise ValueError for an argument that the model does not take, or only for an encoder."""
    for name in given if "input_ids" in taken else ():
        if name not in taken and not name.startswith(OF_OTHER_MEDIA) and name not in OF_EVERY_MODEL:
            raise ValueError(f"{name} is no argument of {model}: leave it out")
        if name.startswith(("encoder_", "cross_attention")):
            raise ValueError(f"{name} belongs to cross-attention, which kvlab does not know")


def inputs_of(given: Given, held: int) -> Tensor:
    """Return the ids or embeddings of a call, after ``held`` columns; ValueError if there are none.

    Whatever has something for every token must fit them.
    """
    names = [name for name in BY_TOKEN[:2] if name in given]
    if len(names) != 1:
        raise ValueError(f"one of input_ids and inputs_embeds must be given, not {len(names)}")
    inputs, axes = given[names[0]], 2 if names[0] == "input_ids" else 3
    if inputs.dim() != axes or inputs.shape[1] == 0:
        raise ValueError(
            f"{names[0]} of shape {tuple(inputs.shape)} must have {axes} axes, and must hold at "
            f"least one token{how_to_go_on(held)}"
        )
    N, m = inputs.shape[:2]
    for name in BY_TOKEN[2:]:
        shape = tuple(given[name].shape) if name in given else (N, m)
        if shape[-2:] not in ((1, m), (N, m)):
            raise ValueError(f"{name} of shape {shape} must have the shape {(N, m)} of the tokens")
    return inputs


def check_logits_to_keep(keep: Any, confident: bool) -> None:
    """Raise ValueError for what names no last tokens; ``confident``: if these are always read."""
    if isinstance(keep, int) and keep < 0:
        raise ValueError(f"logits_to_keep = {keep} must be at least 0")
    if confident and not isinstance(keep, int):
        raise ValueError(
            "logits_to_keep must be a number for a policy that uses confidence, and with watch: "
            "the confidence is read from the logits of the last token"
        )


def refuse_packed(positions: Tensor, real: Real | None) -> None:
    """Raise ValueError if the positions of a text start again: several texts would be one."""
    if positions.dim() != 2:
        return  # those of images rise and fall
    real = torch.ones_like(positions).bool() if real is None else real.to(positions.device)
    seen = positions.masked_fill(~real, -1)
    if (real & (seen < seen.cummax(dim=-1).values)).any():
        raise ValueError(
            "position_ids start again within a row: several texts in one row would read each "
            "other; give every text a row of its own"
        )


def check_past(clock: StreamClock, mask: Tensor, m: int) -> None:
    """Raise ValueError if the mask of a call, [N, t], is not that of the text in the cache.

    That a single token on an accelerator has another mask, or is padding, is noted: nobody waits
    for it there.
    """
    single = m == 1
    given = mask if single else mask[:, : clock.columns]
    if clock.padded:
        known = clock.mask_with(1 if single else 0)
        right = given.bool().to(known.device) == known
    else:
        right = given
    if single and right.device.type != "cpu":
        clock.note(f"attention_mask of a single token{OTHER_MASK}", ~right.all())
    elif not right.all():
        column = int((~right.bool()).any(dim=0).nonzero()[0])
        if column == clock.columns:
            raise ValueError("attention_mask: a single token must not be padding")
        raise ValueError(f"attention_mask in column {column}{OTHER_MASK}")


def not_text(given: Given) -> list[str]:
    """Name the arguments of a call that are not about text."""
    return [name for name, value in given.items() if value is not None and name not in TEXT]
