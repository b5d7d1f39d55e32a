"""The model's ``forward`` with a clock, which cuts long prompts into blocks."""

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial, update_wrapper
from typing import Any, NoReturn

import torch

from kvlab.fast.engine.layers import Layers
from kvlab.fast.engine.step import begin, finish
from kvlab.fast.huggingface.arguments import BY_TOKEN, Arguments, Given, not_text, setting
from kvlab.fast.huggingface.attachment import Attachment
from kvlab.fast.huggingface.attention import IMPLEMENTATION, UnsupportedModelError
from kvlab.fast.huggingface.cache import CompressedCache
from kvlab.fast.huggingface.generation import refuse_cache
from kvlab.fast.huggingface.graphs import Graphs
from kvlab.fast.huggingface.identity import adapters_used, writes_to
from kvlab.fast.huggingface.padding import Blocks
from kvlab.fast.huggingface.text import State, Text
from kvlab.fast.kernels.notation import Real, Tensor


class Forward:
    """Replaces the ``forward`` of a model inside `compress`."""

    def __init__(self, attachment: Attachment, block_size: int | None, graphs: bool) -> None:
        self.attachment, self.block_size = attachment, block_size
        self.graphs = Graphs(attachment) if graphs else None
        self.model = model = attachment.model
        self.forward = model.forward
        self.signature = inspect.signature(self.forward)
        self.arguments = Arguments(model, self.signature.parameters, block_size)
        self.rereads = getattr(model.config, "original_max_position_embeddings", None)
        """Length of a text beyond which `generate` drops the cache of some models (Phi-3)."""
        self.no_mask = torch.ones((1, 1, 1, 1), dtype=torch.bool, device="cpu")
        """A mask that transformers passes on unchanged, for steps that read no mask."""

    def as_method(self) -> Callable[..., Any]:
        """Return what replaces the model's ``forward``, with its signature."""

        return update_wrapper(partial(self._run), self.forward)

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
        running = getattr(self.attachment.of_thread, "runs", None)
        if cache is None and running is not None and not running.text.clock.columns:
            # Phi-3 gives no cache to the first call of a long prompt, which begins an empty one
            cache = given["past_key_values"] = running
        if not isinstance(cache, CompressedCache) or cache.attachment is not self.attachment:
            self._refuse_other_cache(given, running)
        return cache, given

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model on the tokens of a call, block by block."""
        cache, given = self._given(args, kwargs)
        with cache.used:
            if cache.text.state is State.WRITING and cache.text.ends_padded:
                given.pop("position_ids", None)
            stated = {name: value for name, value in given.items() if value is not None}
            inputs, blocks = self.arguments.checked(cache.text, stated)
            padded = self._begin(cache, inputs, blocks)
            outputs: Any = None
            text, m, logits = cache.text, inputs.shape[1], []
            columns = text.clock.columns + m
            if self.arguments.places_images and not_text(given):
                text.model_counts_positions = True
            with text.lent_to(self.model), text.running():
                for part in blocks.parts:
                    run = partial(self._attended, cache, blocks=blocks, part=part, padded=padded)
                    with torch.inference_mode():
                        outputs = None
                        if self.graphs is not None and m == 1:
                            outputs = self.graphs.token(cache, stated, run)
                        outputs = outputs or run(given)
                    logits.append(outputs.logits)
                if text.clock.columns != columns:
                    cache.fit(columns)
            outputs = _ordinary(outputs)
            if len(logits) > 1 or blocks.columns is not None:
                outputs.logits = blocks.joined(logits, stated.get("logits_to_keep") or m)
            trains = self.model.training or "labels" in stated or inputs.requires_grad
            if trains and torch.is_grad_enabled():
                _refuse_gradients(outputs)
            return outputs

    def _attended(
        self, cache: CompressedCache, given: Given, blocks: Blocks, part: slice, padded: bool
    ) -> Any:
        """Run the model on one block of a call, and end its step."""
        text, real = cache.text, blocks.tokens(part)
        block = self._block(text, given, blocks, part, real, padded)
        alone = nullcontext()
        if not self.attachment.masks_nothing:
            alone = cache.padded(None if real is None else (~real).sum(dim=1))
        with alone:
            outputs = self.forward(**block)
        self._check_attended(cache)
        finish(text.layers)
        text.end_block(outputs.logits, part.stop - part.start)
        return outputs

    def _begin(self, cache: CompressedCache, inputs: Tensor, blocks: Blocks) -> bool:
        """Take in a call, if it fits what came before; say whether there is padding so far."""
        of, text, (N, m), real = self.attachment, cache.text, inputs.shape[:2], blocks.real
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
        if of.recurs and blocks.padded_after(text.clock.columns > 0):
            raise ValueError(
                "attention_mask: this model's recurrent layers would read padding that stands "
                "before a second text, or before a row's last block; give texts of equal length, "
                "or each row a cache of its own, or call compress() without block_size"
            )
        if not text.clock.rows:
            prompts = [m] * N if real is None else real.sum(dim=-1).tolist()
            policy = of.policy_for(max(prompts)) if of.policy_for else text.policy
            for prompt in prompts:
                policy.specification.check(prompt)
            if policy is not text.policy:
                text.policy, text.layers = policy, Layers(policy, len(of.compressed), of.watch)
            text.clock.begin(prompts, inputs.device)
            text.weights_version = writes_to(self.model)
        used = adapters_used(of.adapted) if of.adapted else ()
        if used not in text.clock.adapters:
            text.clock.adapters += (used,)
        padded = text.clock.padded or real is not None
        if text.state is State.GIVEN:
            text.ends_padded = real is not None and not bool(real[:, -1].all())
        text.clock.note_call(inputs, real, from_user=text.state is State.GIVEN)
        return padded

    def _block(
        self, text: Text, given: Given, blocks: Blocks, part: slice, real: Real | None, padded: bool
    ) -> dict[str, Any]:
        """Begin a block, and return what the model is given for it; one logit at least."""
        columns, block = text.clock.columns, dict(given)
        width = part.stop - part.start
        text.block_clock = text.clock.advance(real, width)
        begin(text.layers, text.block_clock)
        if len(blocks.parts) > 1 or blocks.columns is not None:
            for name in BY_TOKEN:
                if block.get(name) is not None:
                    block[name] = blocks.cut(block[name], part, name == "inputs_embeds")
            if block.get("attention_mask") is not None:
                block["attention_mask"] = block["attention_mask"][:, : columns + width]
            if "logits_to_keep" in self.arguments.taken:
                keep = given.get("logits_to_keep") or blocks.m
                block["logits_to_keep"] = blocks.logits_in(part, keep)
        single = width == 1 and columns > 0
        self._mask(block, text, width, padded, single and not text.model_counts_positions)
        placed = block.get("position_ids") is not None or text.model_counts_positions
        if not placed and "position_ids" in self.arguments.taken:
            counted = text.block_clock.positions.clamp(min=0).long()
            block["position_ids"] = counted + self.arguments.first_position
        block["use_cache"] = True
        block.pop("cache_position", None)  # until transformers 5.5: of the whole prompt
        return block

    def _mask(
        self, block: dict[str, Any], text: Text, width: int, padded: bool, single: bool
    ) -> None:
        """Give a block the mask of all tokens so far, and none where none is read.

        A prompt's mask is always built, so that `attention` can refuse a mask that is not causal.
        """
        of, clock = self.arguments, text.clock
        if "attention_mask" not in of.taken:
            return
        routed = setting(of.configs, block, "output_router_logits", True)  # its loss reads a mask
        if self.attachment.masks_nothing and single and not routed:
            if self.no_mask.device != clock.fed.device:
                self.no_mask = self.no_mask.to(clock.fed.device)
            block["attention_mask"] = self.no_mask
        elif padded:
            block["attention_mask"] = clock.mask_after(width)

    def _check_attended(self, cache: CompressedCache) -> None:
        """Refuse a model that did not attend through `attention` in every layer."""
        text, layers = cache.text, [cache.layers[n] for n in self.attachment.compressed]
        text.check_open(self.attachment.closed)
        wrong = [x for x in layers if x.waiting or x.block_clock is not text.block_clock]
        if not wrong:
            return
        idle = [layer.number for layer in layers if layer.waiting is not None]
        if idle:
            here = self.arguments.configs[-1]._attn_implementation
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
        raise UnsupportedModelError(
            f"layer {wrong[0].number}, of full attention, gave no keys to the cache in this call: "
            "gradient checkpointing in training drops the cache, and some models leave layers "
            "out; kvlab compresses only calls in which every such layer takes part"
        )

    def _refuse_other_cache(self, given: Given, running: CompressedCache | None) -> NoReturn:
        if running is None:
            refuse_cache(given.get("past_key_values"), "the model")
        ids, held, limit = given.get("input_ids"), running.text.clock.columns, self.rereads
        if ids is not None and limit and held <= limit < held + ids.shape[1]:
            raise ValueError(
                f"a text of {held} tokens in the cache grows beyond "
                f"original_max_position_embeddings = {limit}, where this model reads the whole "
                f"text again without a cache: end at {limit} tokens (max_new_tokens), or call "
                f"reset() on the cache, and give the text as one prompt of more than {limit} tokens"
            )
        raise ValueError(
            "generate called the model without its past_key_values=cache, because an option or a "
            "logits processor calls the model for itself: leave that out inside compress()"
        )


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
