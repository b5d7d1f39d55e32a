"""The model's ``forward`` with a clock, which cuts long prompts into blocks."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn

import torch
from jaxtyping import Bool
from torch import Tensor

from kvlab.fast.engine.layers import Layers
from kvlab.fast.engine.step import begin, finish
from kvlab.fast.huggingface.arguments import (
    BY_TOKEN,
    PER_TOKEN,
    check_logits_to_keep,
    check_past,
    configs_of,
    inputs_of,
    not_text,
    refuse_checkpointing,
    refuse_flags,
    refuse_packed,
    refuse_unknown,
    setting,
)
from kvlab.fast.huggingface.attention import IMPLEMENTATION, UnsupportedModelError
from kvlab.fast.huggingface.cache import Attachment, CompressedCache
from kvlab.fast.huggingface.generation import how_to_go_on
from kvlab.fast.huggingface.identity import adapters_used, writes_to
from kvlab.fast.huggingface.rotary import longest_alike
from kvlab.fast.huggingface.text import State


class Forward:
    """Replaces the ``forward`` of a model inside `compress`."""

    def __init__(self, attachment: Attachment, block_size: int | None) -> None:
        self.attachment, self.block_size = attachment, block_size
        self.model = model = attachment.model
        self.forward = model.forward
        self.name, self.configs = type(model).__name__, configs_of(model)
        self.signature = inspect.signature(self.forward)
        self.taken = self.signature.parameters
        self.places_images = hasattr(model.base_model, "get_rope_index")
        """Whether the model gives the tokens of an image positions of their own (Qwen2.5-VL)."""
        self.first_position = first_position(model)
        self.longest_alike = longest_alike(model)
        self.rereads = getattr(model.config, "original_max_position_embeddings", None)
        """Length of a text beyond which `generate` drops the cache of some models (Phi-3)."""
        self.no_mask = torch.ones((1, 1, 1, 1), dtype=torch.bool, device="cpu")
        """A mask that transformers passes on unchanged, for steps that read no mask."""

    def as_method(self) -> Callable[..., Any]:
        """Return what replaces the model's ``forward``, with its signature."""

        @wraps(self.forward)
        def forward(*args: Any, **kwargs: Any) -> Any:
            cache, given = self._given(args, kwargs)
            with cache.used:
                return self._run(cache, given)

        return forward

    def _given(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[CompressedCache, dict[str, Any]]:
        """Return the cache of a call, and its arguments by name; ValueError without our cache."""
        if torch.compiler.is_compiling():
            raise ValueError(
                "a step of a compressed cache cannot be compiled as one graph (fullgraph = True): "
                "compile the model without fullgraph, or not at all"
            )
        given = dict(kwargs)
        if args:
            self.signature.bind_partial(*args, **kwargs)  # TypeError if one is given twice
            given |= self.signature.bind_partial(*args).arguments
        cache = given.get("past_key_values")
        if not isinstance(cache, CompressedCache) or cache.attachment is not self.attachment:
            self._refuse_other_cache(given)
        return cache, given

    def _run(self, cache: CompressedCache, given: dict[str, Any]) -> Any:
        """Run the model on the tokens of a call, block by block."""
        stated = {name: value for name, value in given.items() if value is not None}
        inputs, real = self._checked(cache, stated)
        self._begin(cache, inputs, real)
        outputs: Any = None
        text, m, logits = cache.text, inputs.shape[1], []
        size = self.block_size or m
        if self.places_images and not_text(given):
            text.model_counts_positions = True
        alone = not self.attachment.masks_nothing  # layers that need a mask of their own
        if alone and "attention_mask" not in stated and text.clock.padded:
            given["attention_mask"] = text.clock.mask_with(m).long()
        with text.running():
            for first in range(0, m, size):
                last = min(first + size, m)
                with torch.inference_mode():
                    outputs = self.forward(**self._block(cache, given, real, first, last, m))
                    self._check_attended(cache)
                    if text.layers.shared:
                        finish(text.layers)
                    text.end_block(outputs.logits, last - first)
                logits.append(outputs.logits)
        outputs = _ordinary(outputs)
        if len(logits) > 1:
            outputs.logits = torch.cat(logits, dim=1)[:, -(stated.get("logits_to_keep") or m) :]
        trains = self.model.training or "labels" in stated or inputs.requires_grad
        if trains and torch.is_grad_enabled():
            _refuse_gradients(outputs)
        return outputs

    def _begin(
        self, cache: CompressedCache, inputs: Tensor, real: Bool[Tensor, "N m"] | None
    ) -> None:
        """Take in a call, if it fits what came before."""
        of, text, (N, m) = self.attachment, cache.text, inputs.shape[:2]
        text.check_whole()
        text.check_open(of.closed)
        if m > 1:
            cache.check()
        if m > 1 and text.clock.columns and not of.reads_in_pieces:
            raise ValueError(
                f"a second text of {m} tokens: this model's recurrent layers were not shown to "
                "read a text in pieces as at once; call reset() on this cache, and give the model "
                "all tokens at once"
            )
        if not text.clock.rows:
            prompts = [m] * N if real is None else real.sum(dim=-1).tolist()
            policy = of.policy_for(max(prompts)) if of.policy_for else text.policy
            for prompt in prompts:
                policy.specification.check(prompt)
            if policy is not text.policy:
                text.policy, text.layers = policy, Layers(policy, len(of.compressed), of.watch)
            text.clock.begin(prompts, inputs.device)
            text.read_with = writes_to(self.model)
        used = adapters_used(of.adapted) if of.adapted else ()
        if used not in text.clock.adapters:
            text.clock.adapters += (used,)
        text.clock.note_call(inputs, real, given=text.state is State.GIVEN)

    def _checked(
        self, cache: CompressedCache, stated: dict[str, Any]
    ) -> tuple[Tensor, Bool[Tensor, "N m"] | None]:
        """Return the inputs of a call, and which are no padding; ValueError if one is wrong."""
        refuse_flags(self.configs, stated)
        refuse_unknown(self.name, self.taken, stated)
        if self.model.training:
            refuse_checkpointing(self.model)
        clock, state = cache.text.clock, cache.text.state
        if "cache_position" in stated and state is State.READY:
            raise ValueError("cache_position: the cache counts its tokens itself; leave it out")
        inputs = inputs_of(stated, clock.columns)
        N, m = inputs.shape[:2]
        clock.check(N)
        check_logits_to_keep(stated.get("logits_to_keep", 0), clock.records_confidence)
        real = self._real(cache, stated.get("attention_mask"), N, m)
        if m > 1 and "position_ids" in stated:
            refuse_packed(stated["position_ids"], real)
        if m > (self.block_size or m):
            self._refuse_in_blocks(cache, stated, m)
        if self.attachment.policy.specification.reposition:
            self._check_positions(cache, stated, real, m)
        return inputs, real

    def _block(
        self,
        cache: CompressedCache,
        given: dict[str, Any],
        real: Tensor | None,
        first: int,
        last: int,
        m: int,
    ) -> dict[str, Any]:
        """Begin a block, and return what the model is given for it; one logit at least."""
        part = None if real is None else real[:, first:last]
        text, columns, block = cache.text, cache.text.clock.columns, dict(given)
        text.block = text.clock.advance(part, last - first)
        begin(text.layers, text.block)
        if last - first < m:
            for name in BY_TOKEN:
                if block.get(name) is not None:
                    rest = (slice(None),) if name == "inputs_embeds" else ()
                    block[name] = block[name][(..., slice(first, last), *rest)]
            if block.get("attention_mask") is not None:
                block["attention_mask"] = block["attention_mask"][:, : columns + last - first]
            if "logits_to_keep" in self.taken:
                keep = given.get("logits_to_keep") or m
                block["logits_to_keep"] = min(last - first, max(1, last - (m - keep)))
        if not text.model_counts_positions:
            self._place(block, text.block.positions, first_tokens=columns == 0)
        block["use_cache"] = True
        block.pop("cache_position", None)  # until transformers 5.5: of the whole prompt
        return block

    def _place(self, block: dict[str, Any], positions: Tensor, first_tokens: bool) -> None:
        """Give a block the positions of its tokens, and no mask where none is read.

        A prompt's mask is always built, so that `attention` can refuse a mask that is not causal.
        """
        if block.get("position_ids") is None and "position_ids" in self.taken:
            block["position_ids"] = positions.clamp(min=0).long() + self.first_position
        single = positions.shape[1] == 1 and not first_tokens
        routed = setting(self.configs, block, "output_router_logits", True)  # its loss reads a mask
        alike = self.attachment.masks_nothing
        if alike and single and not routed and "attention_mask" in self.taken:
            if self.no_mask.device != positions.device:
                self.no_mask = self.no_mask.to(positions.device)
            block["attention_mask"] = self.no_mask

    def _check_attended(self, cache: CompressedCache) -> None:
        """Refuse a model that did not attend through `attention` in every layer."""
        text, layers = cache.text, [cache.layers[n] for n in self.attachment.compressed]
        text.check_open(self.attachment.closed)
        idle = [layer.number for layer in layers if layer.waiting is not None]
        if idle:
            here = self.configs[-1]._attn_implementation
            if here != IMPLEMENTATION:
                raise ValueError(
                    f"attn_implementation was set to {here!r} inside compress(): set it before, or "
                    "after the context"
                )
            raise UnsupportedModelError(
                f"layer {idle[0]} gives its keys to the cache and not, as they are, to the "
                "attention function that the model is configured with (DeepSeek's MLA expands "
                "them, JetMoE repeats them): kvlab cannot compress this model; use it without "
                "compress()"
            )
        left_out = [layer.number for layer in layers if layer.block is not text.block]
        if left_out:
            raise UnsupportedModelError(
                f"layer {left_out[0]}, of full attention, gave no keys to the cache in this call: "
                "gradient checkpointing in training drops the cache, and some models leave layers "
                "out; kvlab compresses only calls in which every such layer takes part"
            )

    def _refuse_other_cache(self, given: dict[str, Any]) -> NoReturn:
        ids, running = given.get("input_ids"), getattr(self.attachment.of_thread, "runs", None)
        held, limit = 0 if running is None else running.text.clock.columns, self.rereads
        if ids is not None and held and limit and held <= limit < held + ids.shape[1]:
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
        for name in not_text(given):
            raise ValueError(
                f"{name} cannot be used with a prompt longer than block_size: call compress() "
                "without block_size for prompts with more than text"
            )
        flags = (setting(self.configs, given, name, True) for name in PER_TOKEN)
        for found in (*filter(None, flags), *(["labels"] if "labels" in given else [])):
            raise ValueError(f"{found} cannot be used with a prompt longer than block_size")
        if not isinstance(given.get("logits_to_keep", 0), int):
            raise ValueError("logits_to_keep must be a number with a prompt longer than block_size")

    def _check_positions(
        self, cache: CompressedCache, given: dict[str, Any], real: Tensor | None, m: int
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
        counted = cache.text.clock.following(real, m).to(at.device)
        same = ((at - self.first_position == counted) | (counted < 0)).all()
        message = (
            "position_ids must count the tokens of each text, 0, 1, 2, and so on, with reposition "
            "= True, which makes a token's position its place in the cache: leave them out"
        )
        if m == 1 and at.device.type != "cpu":
            cache.text.clock.note(message, ~same)
        elif not same:
            raise ValueError(message)

    def _real(
        self, cache: CompressedCache, attention_mask: Any, N: int, m: int
    ) -> Bool[Tensor, "N m"] | None:
        """Mark the tokens that are not padding; None: no padding. Always None for single tokens."""
        if attention_mask is None:
            return None
        held = cache.text.clock.columns
        expected = (N, held + m)
        if not isinstance(attention_mask, Tensor) or tuple(attention_mask.shape) != expected:
            raise ValueError(
                f"attention_mask must be a tensor of shape {expected}{how_to_go_on(held)}"
            )
        if held:
            check_past(cache.text.clock, attention_mask, m)
        if m == 1 and held:
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


def first_position(model: Any) -> int:
    """Return the position of a text's first token where a call gives none: RoBERTa's is not 0."""
    counting = "create_position_ids_from_input_ids"
    found = [module for module in model.get_decoder().modules() if hasattr(module, counting)]
    return found[0].padding_idx + 1 if found else 0


def _refuse_gradients(outputs: Any) -> None:
    for name in ("logits", "loss"):
        if isinstance(outputs.get(name), Tensor):
            anchor = torch.zeros((), requires_grad=True)
            outputs[name] = _NoGradient.apply(outputs[name], anchor)


class _NoGradient(torch.autograd.Function):
    """Says on the way back why there are no gradients; PyTorch's own error does not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> NoReturn:
        raise RuntimeError(
            "inside compress() the model computes without gradients: leave the context before "
            "loss.backward(), and train without a compressed cache"
        )


def _ordinary(outputs: Any) -> Any:
    """Copy the tensors of inference mode, so that they can be changed in place outside of it."""
    for name in outputs:
        value = getattr(outputs, name)
        if isinstance(value, Tensor):
            setattr(outputs, name, value.clone())
        elif isinstance(value, tuple):
            copies = (x.clone() if isinstance(x, Tensor) else x for x in value)
            setattr(outputs, name, tuple(copies))
    return outputs
