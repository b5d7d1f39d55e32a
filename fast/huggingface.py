"""Policies inside Hugging Face models: the one file that knows transformers.

`compress` puts three things in place and takes them away again: an attention function, a mask
function (both registered under the name ``kvlab``), and a wrapper of the model's ``forward`` that
keeps the clock and cuts prompts into blocks. A layer's ``update`` only hands a ticket to the
attention function, in which `kvlab.fast.policy.step` does everything.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from math import isclose, sqrt
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from kvlab.fast import methods
from kvlab.fast.attention import attend, compute_dtype
from kvlab.fast.cache import LayerCache, LayerMemory
from kvlab.fast.fusion import fusing
from kvlab.fast.joint_layers import Stack, can_stack
from kvlab.fast.policy import BatchClock, Block, Policy, StepResult, step
from kvlab.fast.rotary import rotation_of
from kvlab.fast.sharding import check_heads, shard_of
from kvlab.reference import policy as reference
from kvlab.reference.policy import Clock

IMPLEMENTATION = "kvlab"
TICKET = "_kvlab_ticket"

Watch = Callable[[Block, StepResult], None]
"""Called after every step of every layer that is compressed."""


@dataclass(frozen=True)
class CacheMemory:
    """Bytes that a cache has allocated, slack included."""

    layers: tuple[LayerMemory, ...]

    @property
    def total(self) -> int:
        """Of all layers."""
        return sum(layer.total for layer in self.layers)

    @property
    def entries(self) -> int:
        """Of keys and values, with what it takes to dequantise them."""
        return sum(layer.keys + layer.values + layer.scales for layer in self.layers)


class CompressedLayer(CacheLayerMixin):
    """One attention layer whose entries a policy chooses."""

    is_sliding = False

    def __init__(self, owner: "CompressedCache", number: int) -> None:
        super().__init__()
        self.owner, self.number = owner, number
        self.place = 0
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.entries = self.owner.policy.empty_cache()
        self.waiting: Ticket | None = None
        self.is_initialized = False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to prepare: buffers are made by the first step."""
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Hand the block's own keys and values on; `attention` takes them to the entries."""
        self.is_initialized = True
        self.owner.expect_step()
        self.waiting = Ticket(self)
        tagged = key_states.view_as(key_states)
        setattr(tagged, TICKET, self.waiting)
        return tagged, value_states

    def get_seq_length(self) -> int:
        """Columns fed so far, evicted ones and padding included."""
        return self.owner.columns

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the mask of an uncompressed layer."""
        return self.owner.columns + query_length, 0

    def get_max_length(self) -> int:
        """No maximum."""
        return -1

    get_max_cache_shape = get_max_length
    """The name until transformers 5.2."""

    def offload(self) -> None:
        """Refuse.

        Raises:
            ValueError: always.
        """
        raise ValueError("a compressed cache cannot be offloaded")

    def map_rows(self, change: Callable[[Tensor], Tensor], order: Sequence[int]) -> None:
        """Apply one change of the batch axis."""
        if self.entries.counts:
            self.entries.map_rows(change, order)


@dataclass(eq=False)
class Ticket:
    """Says to which layer the keys in an attention call belong."""

    layer: CompressedLayer


class CompressedCache(Cache):
    """The cache that `compress` gives: pass it to the model as ``past_key_values``."""

    def __init__(
        self, model: Any, policy: Policy, watch: Watch | None = None, fuse: bool = False
    ) -> None:
        self.policy = policy
        self.watch = watch
        self.fuse = fuse
        self.rotate = rotation_of(model) if policy.specification.reposition else None
        self.shard = shard_of(model)
        layers = DynamicCache(config=model.config).layers
        replaced = [
            CompressedLayer(self, number) if type(layer) is DynamicLayer else layer
            for number, layer in enumerate(layers)
        ]
        self._forget()
        super().__init__(layers=cast(Any, replaced))
        self.compressed_layers = [new for new in replaced if isinstance(new, CompressedLayer)]
        """The layers that the policy decides about; sliding-window layers are left alone."""
        for place, layer in enumerate(self.compressed_layers):
            layer.place = place
        if not self.compressed_layers:
            raise ValueError(
                f"model {type(model).__name__} has no full-attention layer: nothing to compress"
            )

        self.masks_nothing = all(isinstance(layer, CompressedLayer) for layer in replaced)
        self._no_mask: Tensor | None = None

    def no_mask(self, device: torch.device) -> Bool[Tensor, "1 1 1 1"]:
        """Return what transformers hands through as a ready mask, where no layer reads any."""
        if self._no_mask is None or self._no_mask.device != device:
            self._no_mask = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=device)
        return self._no_mask

    # --- what users ask ---

    @property
    def confidence(self) -> Float[Tensor, "N t"]:
        """Largest probability of the distribution that produced each token; NaN if given.

        Recorded for policies that use it and for who watches.
        """
        longest = max((row.seen for row in self.clocks), default=0)
        return self._confidence[:, :longest]

    def kept(self) -> list[tuple[int, ...]]:
        """Entries per KV head of each sequence, for every compressed layer."""
        if self.stack is not None:
            return [self.stack.counts] * self.stack.layers
        return [layer.entries.counts for layer in self.compressed_layers]

    def positions(self) -> list[Int[Tensor, "N G n"]]:
        """Absolute positions of the entries, ascending, for every compressed layer.

        A head that holds fewer entries than the longest sequence of the batch starts with -1.
        """
        return [entries.positions.sort(dim=-1).values for entries in self._entries()]

    def memory(self) -> CacheMemory:
        """Bytes that every layer has allocated."""
        shares = iter(self._shares())
        return CacheMemory(
            tuple(
                next(shares) if isinstance(layer, CompressedLayer) else _memory_of(layer)
                for layer in self.layers
            )
        )

    def check(self) -> None:
        """Raise ValueError if a score was NaN so far. Waits for the device."""
        caches = [layer.entries for layer in self.compressed_layers]
        for cache in caches if self.stack is None else [self.stack.cache]:
            if cache.lowest_scores is not None and cache.lowest_scores.isnan().any():
                raise ValueError(
                    "scores must not be NaN: the model's keys or values are no numbers"
                )

    def reset(self) -> None:
        """Forget all tokens; the cache can be used for another batch."""
        self._forget()
        super().reset()

    @torch.inference_mode()
    def _entries(self) -> list[LayerCache]:
        if self.stack is None:
            for layer in self.compressed_layers:
                layer.entries.settle()
            return [layer.entries for layer in self.compressed_layers]
        return self.stack.split()

    def _shares(self) -> list[LayerMemory]:
        """Bytes of every compressed layer."""
        if self.stack is None:
            return [layer.entries.memory() for layer in self.compressed_layers]
        return self.stack.memory()

    # --- the clock ---

    def _forget(self) -> None:
        self.columns = 0
        self.clocks: tuple[Clock, ...] = ()
        self.broken = False
        self.block: BatchClock | None = None
        self._last: Tensor | None = None
        self._prompt: Tensor | None = None
        self._confidence = torch.empty((0, 0))
        self._next_confidence: Tensor | None = None
        self._gave_many = False
        self.stack: Stack | None = None

    @property
    def uses_confidence(self) -> bool:
        """Whether confidences have to be recorded."""
        return self.watch is not None or self.policy.uses_confidence

    def begin(self, real: Bool[Tensor, "N m"] | None, shape: tuple[int, int], device: Any) -> None:
        """Take in a call of the model.

        Args:
            real: which tokens are no padding; None for all.
            shape: sequences and tokens of the call.
            device: where the model's inputs are.

        Raises:
            ValueError: if the call does not fit what came before.
        """
        N, m = shape
        if self.broken:
            raise ValueError("the last step failed in the middle: call reset() on this cache")
        if self.clocks and len(self.clocks) != N:
            raise ValueError(f"batch of {N} sequences, the cache holds {len(self.clocks)}")
        if self._gave_many and m > 1:
            raise ValueError(
                "the prompt came in pieces: give it at once, and compress(block_size=...) "
                "instead of prefill_chunk_size"
            )
        if not self.clocks:
            prompts = [m] * N if real is None else real.sum(dim=-1).tolist()
            for prompt in prompts:
                self.policy.specification.check(prompt)
            self.clocks = tuple(Clock(0, 0, prompt) for prompt in prompts)
            self._last = torch.full((N, 1), -1, dtype=torch.int32, device=device)
            self._prompt = torch.tensor(prompts, dtype=torch.int32, device=device)[:, None, None]
            self._confidence = torch.full((N, max(prompts) + 64), torch.nan, device=device)
        self._gave_many = m > 1
        if m > 1:
            self.check()

    def begin_block(self, real: Bool[Tensor, "N m"] | None, m: int) -> Int[Tensor, "N m"]:
        """Advance the clock by a block, and return the positions of its tokens."""
        assert self._last is not None and self._prompt is not None
        if real is None:
            counts = [m] * len(self.clocks)
            positions = self._last + 1
            if m > 1:
                ahead = torch.arange(m, dtype=torch.int32, device=self._last.device)
                positions = positions + ahead
            self._last = positions[:, -1:]
        else:
            counts = real.sum(dim=-1).tolist()
            ahead = real.cumsum(dim=-1, dtype=torch.int32)
            positions = torch.where(real, self._last + ahead, -1)
            self._last = self._last + ahead[:, -1:]
        self.clocks = tuple(
            Clock(clock.seen + count, count, clock.prompt)
            for clock, count in zip(self.clocks, counts, strict=True)
        )
        self.block = BatchClock(self.clocks, positions, self._prompt)
        self._stack_or_split(m)
        self.confidence_so_far = self._confidence
        if self.uses_confidence:
            self._record_confidence(positions)
            self.confidence_so_far = self.confidence
        return positions

    def end_block(self, logits: Float[Tensor, "N k vocab"], m: int) -> None:
        """Note that the block is done."""
        idle = [layer.number for layer in self.compressed_layers if layer.waiting is not None]
        if idle or not all(layer.entries.counts for layer in self.compressed_layers):
            raise RuntimeError(
                "the model does not call the attention function that it is configured with: "
                "kvlab cannot compress it"
            )
        if self.stack is not None:
            with fusing(self.fuse):
                self.stack.finish()
        self.columns += m
        self.block = None
        if self.uses_confidence:
            confidence = logits[:, -1].float().softmax(dim=-1).amax(dim=-1)
            self._next_confidence = confidence.to(self._confidence.device)

    def _stack_or_split(self, m: int) -> None:
        """Let all layers decide together while single tokens come, where they can."""
        layers = self.compressed_layers
        assert self.block is not None
        if self.stack is None and m == 1 and self.watch is None and self.columns:
            caches = [layer.entries for layer in layers]
            if can_stack(self.policy, caches, self.block):
                self.stack = Stack(self.policy, caches)
        elif self.stack is not None and m > 1:
            for layer, entries in zip(layers, self.stack.split(), strict=True):
                layer.entries = entries
            self.stack = None
        if self.stack is not None:
            self.stack.begin(self.block.to(self.stack.cache.positions.device))

    def expect_step(self) -> BatchClock:
        """Return the clock of the running block.

        Raises:
            ValueError: outside a call of the compressed model.
        """
        if self.block is None:
            raise ValueError("call the model itself inside compress(), not a part of it")
        return self.block

    def _record_confidence(self, positions: Int[Tensor, "N m"]) -> None:
        longest = max(clock.seen for clock in self.clocks)
        if longest > self._confidence.shape[1]:
            more = torch.full_like(self._confidence, torch.nan)
            self._confidence = torch.cat([self._confidence, more], dim=1)
        if positions.shape[1] == 1 and self._next_confidence is not None and not self._gave_many:
            self._confidence.scatter_(1, positions.long(), self._next_confidence[:, None])

    # --- the batch axis ---

    @torch.inference_mode()
    def _map_rows(self, change: Callable[[Tensor], Tensor], order: Sequence[int]) -> None:
        if self.stack is not None:
            self.stack.map_rows(change, order)
        else:
            for layer in self.compressed_layers:
                layer.map_rows(change, order)
        self.clocks = tuple(self.clocks[i] for i in order)
        for name in ("_last", "_prompt", "_confidence", "_next_confidence"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, change(value))

    def _others(self) -> list[Any]:
        return [layer for layer in self.layers if not isinstance(layer, CompressedLayer)]

    def reorder_cache(self, beam_idx: Int[Tensor, " N"]) -> None:
        """Reorder the sequences for beam search."""
        for layer in self._others():
            layer.reorder_cache(beam_idx)
        alike = len(set(self.clocks)) == 1
        order = range(len(beam_idx)) if alike else beam_idx.tolist()
        self._map_rows(lambda x: x.index_select(0, beam_idx.to(x.device)), order)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every sequence."""
        for layer in self._others():
            layer.batch_repeat_interleave(repeats)
        order = [number for number in range(len(self.clocks)) for _ in range(repeats)]
        self._map_rows(lambda x: x.repeat_interleave(repeats, dim=0), order)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some sequences alone."""
        for layer in self._others():
            layer.batch_select_indices(indices)
        rows = torch.arange(len(self.clocks), device=indices.device)[indices]
        self._map_rows(lambda x: x.index_select(0, rows.to(x.device)), rows.tolist())

    # --- what cannot work ---

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse: evicted entries cannot come back.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "assisted decoding and rolling back need evicted entries again: not with compress()"
        )

    def activate_past_recording(self) -> None:
        """Refuse assisted decoding, as `crop` does.

        Raises:
            ValueError: always.
        """
        self.crop(0)


def _memory_of(layer: Any) -> LayerMemory:
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    if keys is None or values is None:
        return LayerMemory(0, 0, 0, 0)
    return LayerMemory(keys.untyped_storage().nbytes(), values.untyped_storage().nbytes(), 0, 0)


# --- what transformers calls ---------------------------------------------------------------------


def attention(
    module: torch.nn.Module,
    query: Float[Tensor, "N H m d"],
    key: Float[Tensor, "N G n d"],
    value: Float[Tensor, "N G n d"],
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Float[Tensor, "N m H d"], None]:
    """Attend as the policy of the keys' layer says; the signature is transformers'."""
    ticket = getattr(key, TICKET, None)
    if ticket is None:
        output = _attend_uncompressed(
            module, query, key, value, attention_mask, scaling, softcap, **kwargs
        )
        return output, None
    if kwargs.get("s_aux") is not None:
        raise ValueError("kvlab does not know attention with learned sinks")
    layer: CompressedLayer = ticket.layer
    owner = layer.owner
    N, H, m, d = query.shape
    G = key.shape[1]
    if scaling is not None and not isclose(scaling, 1 / sqrt(d), rel_tol=1e-6):
        query = query.to(compute_dtype(query.dtype)) * (scaling * sqrt(d))
    block = Block(
        owner.expect_step().to(query.device),
        layer.number,
        query.view(N, G, H // G, m, d),
        key,
        value,
        owner.confidence_so_far.to(query.device),
        owner.rotate,
        softcap,
        owner.shard.first_head(G),
    )
    layer.waiting = None
    if owner.stack is not None:
        output = owner.stack.attend(layer.place, block)
        return output.flatten(1, 2).transpose(1, 2), None
    result = step(owner.policy, layer.entries, block, watched=owner.watch is not None)
    if owner.watch is not None:
        owner.watch(block, result)
    return result.output.flatten(1, 2).transpose(1, 2), None


def _attend_uncompressed(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    softcap: float | None,
    **kwargs: Any,
) -> Tensor:
    """Attention of a sliding-window layer, as transformers computes it."""
    if softcap is None:
        return sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **kwargs)[0]
    N, H, m, d = query.shape
    G, n, dtype = key.shape[1], key.shape[2], compute_dtype(key.dtype)
    if mask is None:
        causal = torch.ones(m, n, dtype=torch.bool, device=key.device).tril(n - m)
        mask = causal.expand(N, 1, m, n)
    scale = 1.0 if scaling is None else scaling * sqrt(d)
    queries = (query.to(dtype) * scale).view(N, G, H // G, m, d)
    output, _ = attend(queries, key.to(dtype), value.to(dtype), mask[:, :, None], softcap)
    return output.flatten(1, 2).transpose(1, 2).to(query.dtype)


def mask(*args: Any, local_size: int | None = None, **kwargs: Any) -> Tensor | None:
    """Masks of sliding-window layers; compressed layers make theirs from positions."""
    if local_size is None:
        return None
    return sdpa_mask(*args, local_size=local_size, **kwargs)


AttentionInterface.register(IMPLEMENTATION, attention)
AttentionMaskInterface.register(IMPLEMENTATION, mask)


# --- what users call -----------------------------------------------------------------------------


@contextmanager
def compress(
    model: Any,
    policy: str | Policy | reference.Policy,
    budget: int | None = None,
    block_size: int | None = None,
    watch: Watch | None = None,
    fuse: bool = False,
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
        fuse: compile the arithmetic of scores and selection with torch.compile, for decoding.
            That takes some seconds at the first decision and, on a CPU, a C++ compiler.
        options: hyper-parameters of the method.

    Raises:
        ValueError: if the method, an option, a value or the model is not allowed.
        TypeError: if an argument or an option has the wrong type.
    """
    if block_size is not None:
        if not isinstance(block_size, int) or isinstance(block_size, bool):
            raise TypeError(f"block_size = {block_size!r} must be a whole number, or None")
        if block_size < 1:
            raise ValueError(f"block_size = {block_size!r} must be at least 1")
    if watch is not None and not callable(watch):
        raise TypeError(f"watch = {watch!r} must be a function, or None")
    if not isinstance(fuse, bool):
        raise TypeError(f"fuse = {fuse!r} must be True or False")
    if not isinstance(policy, str | Policy | reference.Policy):
        raise TypeError(f"policy = {policy!r} must be a method's name or a policy")
    if isinstance(policy, str):
        policy = methods.get(policy, budget, **options)
    elif budget is not None or options:
        raise ValueError("budget and options belong to a method's name, not to a finished policy")
    if isinstance(policy, reference.Policy):
        policy = methods.port(policy)
    configs = _configurations(model)
    check_heads(policy, shard_of(model))
    cache = CompressedCache(model, policy, watch, fuse)
    before = [config._attn_implementation for config in configs]
    own_forward = model.__dict__.get("forward")
    try:
        model.set_attn_implementation(IMPLEMENTATION)
        if model.config.get_text_config(decoder=True)._attn_implementation != IMPLEMENTATION:
            raise ValueError(
                f"{type(model).__name__} does not use transformers' attention interface"
            )
        model.forward = _Forward(model.forward, cache, block_size).as_method()
        yield cache
        cache.check()
    finally:
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation_internal = implementation
        if own_forward is not None:
            model.forward = own_forward
        else:
            model.__dict__.pop("forward", None)


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


class _Forward:
    """The model's ``forward`` with a clock, in blocks where the prompt is long."""

    def __init__(
        self, forward: Callable[..., Any], cache: CompressedCache, block_size: int | None
    ) -> None:
        self.forward, self.cache, self.block_size = forward, cache, block_size
        self.signature = inspect.signature(forward)

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
        inputs = self._inputs(given)
        N, m = inputs.shape[:2]
        real = self._real(given.get("attention_mask"), N, m)
        size = self.block_size or m
        self._refuse_in_blocks(given, m > size)
        self.cache.begin(real, (N, m), inputs.device)
        outputs, logits = None, []
        try:
            for first in range(0, m, size):
                last = min(first + size, m)
                outputs = self._run_block(given, real, first, last, m)
                logits.append(outputs.logits)
        except BaseException:
            self.cache.broken = True
            raise
        assert outputs is not None
        if len(logits) > 1:
            outputs.logits = torch.cat([part for part in logits if part is not None], dim=1)
        return outputs

    def _run_block(
        self, given: dict[str, Any], real: Tensor | None, first: int, last: int, m: int
    ) -> Any:
        cache = self.cache
        part = None if real is None else real[:, first:last]
        columns = cache.columns
        with torch.inference_mode():
            positions = cache.begin_block(part, last - first)
        block = dict(given)
        if last - first < m:
            for name in ("input_ids", "inputs_embeds", "position_ids"):
                if block.get(name) is not None:
                    block[name] = _columns(block[name], first, last, m)
            if block.get("attention_mask") is not None:
                block["attention_mask"] = block["attention_mask"][:, : columns + last - first]
        if block.get("position_ids") is None and "position_ids" in self.signature.parameters:
            block["position_ids"] = positions.clamp(min=0).long()
        wanted = self._logits_wanted(given, first, last, m)
        if wanted is not None:
            block["logits_to_keep"] = max(1, wanted)
        if cache.masks_nothing and "attention_mask" in self.signature.parameters:
            block["attention_mask"] = cache.no_mask(positions.device)
        block["use_cache"] = True
        block.pop("cache_position", None)  # until transformers 5.5: of the whole prompt
        with torch.inference_mode():
            outputs = self.forward(**block)
            cache.end_block(outputs.logits, last - first)
        if wanted == 0 and last < m:
            outputs.logits = None
        return _ordinary(outputs)

    def _logits_wanted(self, given: dict[str, Any], first: int, last: int, m: int) -> int | None:
        """Say how many logits at the end of a block are asked for; None to leave it as it is."""
        if last - first == m or "logits_to_keep" not in self.signature.parameters:
            return None
        keep = given.get("logits_to_keep", 0) or m
        return min(last - first, max(0, last - (m - keep)))

    def _inputs(self, given: dict[str, Any]) -> Tensor:
        if given.get("past_key_values") is not self.cache:
            raise ValueError("inside compress(), call the model with past_key_values=cache")
        if given.get("output_attentions"):
            raise ValueError("output_attentions: attention is not kept; use compress(watch=...)")
        if given.get("return_dict") is False:
            raise ValueError("return_dict = False is not supported inside compress()")
        if given.get("use_cache") is False:
            raise ValueError("use_cache = False: a compressed cache has to be used")
        inputs = given.get("input_ids")
        inputs = given.get("inputs_embeds") if inputs is None else inputs
        if inputs is None:
            raise ValueError("input_ids or inputs_embeds must be given")
        if inputs.shape[1] == 0:
            raise ValueError(f"inputs of shape {tuple(inputs.shape)} must hold at least one token")
        return inputs

    def _refuse_in_blocks(self, given: dict[str, Any], in_blocks: bool) -> None:
        if not in_blocks:
            return
        for name in ("labels", "output_hidden_states"):
            if given.get(name) is not None and given[name] is not False:
                raise ValueError(f"{name} cannot be used with a prompt longer than block_size")
        if isinstance(given.get("logits_to_keep"), Tensor):
            raise ValueError("logits_to_keep must be a number with a prompt longer than block_size")

    def _real(self, attention_mask: Any, N: int, m: int) -> Bool[Tensor, "N m"] | None:
        """Say which tokens are no padding; None for all, and always None for single tokens."""
        if attention_mask is None:
            return None
        expected = (N, self.cache.columns + m)
        if not isinstance(attention_mask, Tensor) or tuple(attention_mask.shape) != expected:
            raise ValueError(f"attention_mask must be a tensor of shape {expected}")
        if m == 1 and self.cache.columns:
            last = attention_mask.select(1, -1).all()
            torch._assert_async(last, "a single token must not be padding")  # type: ignore[attr-defined]
            return None
        real = attention_mask[:, -m:].bool()
        if not real.any(dim=1).all():
            raise ValueError("attention_mask must leave at least one token in every row")
        if not real[:, -1].all():
            raise ValueError("attention_mask must pad on the left: the last token is real")
        return None if real.all() else real


def _ordinary(outputs: Any) -> Any:
    """Let what inference mode made be changed in place outside of it."""
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
