"""The cache that `compress` gives to a model: its layers, its clock, and what users ask of it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from threading import RLock, local
from typing import Any, NoReturn
from weakref import proxy

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from kvlab.fast.engine.batch import BatchClock
from kvlab.fast.engine.cache import LayerMemory
from kvlab.fast.engine.layers import Layers
from kvlab.fast.engine.policy import Policy
from kvlab.fast.engine.step import Watch, begin
from kvlab.fast.huggingface import saving
from kvlab.fast.huggingface.clock import StreamClock
from kvlab.fast.huggingface.identity import adapted, adapters_used, writes_to
from kvlab.fast.huggingface.rotary import Rotation
from kvlab.reference.observation import Clock

TICKET = "_kvlab_ticket"
IMPLEMENTATION = "kvlab"
"""Name of the attention and mask functions in the model's configuration."""


class UnsupportedModelError(ValueError):
    """The model computes its attention in a way that kvlab does not know."""


class Attachment(ExitStack):
    """What takes a cache, and every copy of it, out of the model again."""

    closed = False

    def __init__(self) -> None:
        super().__init__()
        self.of_thread = local()
        """The cache that `generate` ``runs``; and ``inputs``, the attention module that was called
        last, and its input, for a score that reads hidden states."""


@dataclass(frozen=True)
class CacheMemory:
    """Bytes that a cache has allocated, slack included."""

    layers: tuple[LayerMemory, ...]

    @property
    def total(self) -> int:
        """Bytes of all layers."""
        return sum(layer.total for layer in self.layers)

    @property
    def entries(self) -> int:
        """Bytes of keys and values, with the scales and zero points of quantised ones."""
        return sum(layer.keys + layer.values + layer.scales for layer in self.layers)


class CompressedLayer(CacheLayerMixin):
    """One attention layer whose entries a policy chooses."""

    is_sliding = False

    def __init__(self, owner: "CompressedCache", number: int) -> None:
        super().__init__()
        self.owner = proxy(owner)  # a cycle would keep a cache in memory until Python looks for it
        self.number = number
        self.place = 0
        """Its number among the compressed layers."""
        self.reset()

    def reset(self) -> None:
        self.waiting: object = None
        """`Ticket.call` of the keys that `attention` has still to be given."""
        self.step: BatchClock | None = None
        """The last block whose keys came."""
        self.is_initialized = False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Hand the block's own keys and values on; `attention` takes them to the entries."""
        self.is_initialized = True
        self.step = self.owner.expect_step()
        self.waiting = object()
        tagged = key_states.view_as(key_states)
        setattr(tagged, TICKET, Ticket(self, self.waiting))
        return tagged, value_states

    def get_seq_length(self) -> int:
        """Columns fed so far, evicted ones and padding included."""
        return self.owner.clock.columns

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the mask of an uncompressed layer."""
        return self.owner.clock.columns + query_length, 0

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length
    """The name until transformers 5.2."""

    def offload(self) -> None:
        raise ValueError("a compressed cache cannot be offloaded")


@dataclass(frozen=True)
class Ticket:
    """Says to which layer the keys in an attention call belong."""

    layer: CompressedLayer
    call: object
    """Is another one at every call of ``update``."""


class CompressedCache(Cache):
    """The cache that `compress` gives: pass it to the model as ``past_key_values``."""

    def __init__(
        self,
        model: Any,
        policy: Policy,
        watch: Watch | None = None,
        policy_for: Callable[[int], Policy] | None = None,
    ) -> None:
        """Make an empty cache; ``policy_for`` the tokens of the first call, where they decide."""
        self.model, self.policy, self.policy_for = model, policy, policy_for
        self.watch = watch
        self.rotations: list[Rotation] | None = None
        """How each compressed layer rotates queries and keys; `compress` finds it out."""
        self.adapted = adapted(model)
        """Layers with adapters of PEFT."""
        self.attachment = Attachment()
        super().__init__(layers=self._own_layers(DynamicCache(config=model.config).layers))
        self._forget()
        self._check_layers(model)
        self.masks_nothing = all(isinstance(layer, CompressedLayer) for layer in self.layers)
        self.reads_in_pieces = all(
            type(layer) in (CompressedLayer, DynamicSlidingWindowLayer) for layer in self.layers
        )
        """Whether a text may come in pieces: if there are recurrent layers, `agreement` says so."""
        self._no_mask: Tensor | None = None
        self._lock = RLock()
        self.not_compared: tuple[str, ...] = ("texts of any length: verify = False",)
        """Which texts `compress` did not compare with the stock model's (see its ``verify``)."""

    def _own_layers(self, layers: Sequence[Any]) -> Any:
        """Return layers of a cache, with layers of this cache where a policy decides."""
        own = [
            CompressedLayer(self, number)
            if type(layer) in (DynamicLayer, CompressedLayer)
            else deepcopy(layer)
            for number, layer in enumerate(layers)
        ]
        self.compressed_layers = [new for new in own if isinstance(new, CompressedLayer)]
        """The layers that the policy decides about; sliding-window layers are not changed."""
        for place, layer in enumerate(self.compressed_layers):
            layer.place = place
        return own

    def _check_layers(self, model: Any) -> None:
        name, others = type(model).__name__, self._others()
        for layer in others:
            if isinstance(layer, DynamicLayer) and not layer.is_sliding:
                raise UnsupportedModelError(
                    f"{name} has attention layers of another kind ({type(layer).__name__}): kvlab "
                    "cannot compress this model; use it without compress()"
                )
        if not self.compressed_layers:
            window = getattr(model.config.get_text_config(decoder=True), "sliding_window", None)
            windows = f" (sliding_window = {window})" if window else ""
            raise UnsupportedModelError(
                f"{name} in this configuration{windows} has no full-attention layer: nothing to "
                "compress, because sliding-window and recurrent layers are left as they are; use "
                "it without compress()"
            )

    def _forget(self) -> None:
        self.clock = StreamClock(self.watch is not None or self.policy.uses_confidence)
        self.read_with: dict[int, int] = {}
        """`writes_to` the model when it read the first tokens."""
        self.broken = self.generating = self.begins = False
        self.model_counts_positions = False
        """Whether the prompt has images: then the model knows what their positions are."""
        self.block: BatchClock | None = None
        self.compressed = self._layers_of(self.policy)
        """What the policy keeps."""

    def _layers_of(self, policy: Policy) -> Layers:
        return Layers(policy, len(self.compressed_layers), self.watch)

    # --- what users ask ---

    @torch.inference_mode()
    def copy(self) -> "CompressedCache":
        """Return a cache of the same text, which goes on apart from this one.

        It is given to the same model, also after this one was given more text or was reset, and
        belongs to the same context: `close` of either ends it for both.
        """
        with self.used():
            self._check_whole()
            other = object.__new__(type(self))
            vars(other).update(vars(self))
            other._lock, other.generating, other.begins = RLock(), False, False
            other.layers = other._own_layers(self.layers)
            other.clock, other.compressed = self.clock.copied(), self.compressed.copied()
            return other

    def __deepcopy__(self, memo: Any) -> "CompressedCache":
        return self.copy()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a compressed cache is not pickled: call its save(path), or its copy()")

    def save(self, path: str | Path, model_name: str | None = None) -> None:
        """Write what the cache holds to a file, whole or not at all; `load` goes on from it.

        The file is safetensors, with JSON in its metadata. Free slots are given back first, so
        that it is as large as `memory` says then. ``model_name`` is a name of your own for the
        model's weights, in place of a digest for which they all are read. ValueError if the cache
        is empty or broken, or holds what cannot be saved, or a weight cannot be read, or if the
        text was read with other adapters of PEFT than those that are active now, or a weight was
        written to meanwhile (not through ``.data``, which nobody can notice).
        """
        with self.used():
            self._check_whole()
            self.clock.check_noted()
            saving.save(self, Path(path), model_name)

    def load(self, path: str | Path, model_name: str | None = None) -> None:
        """Go on from what `save` wrote, perhaps in another process, and discard what was held.

        ValueError if the file is damaged, or was saved by another version of kvlab, with another
        model (its configuration, active adapters of PEFT, and all parameters and buffers, or
        ``model_name``, are compared) or another method; the cache is then as it was.
        """
        with self.used():
            policy, clock, compressed, layers = saving.load(self, Path(path), model_name)
            self._forget()
            self.policy, self.clock, self.compressed = policy, clock, compressed
            self.layers, self.read_with = self._own_layers(layers), writes_to(self.model)

    def close(self) -> None:
        """Restore the model, which is then called without this cache; what it holds stays."""
        self.attachment.close()

    def __enter__(self) -> "CompressedCache":
        return self

    def __exit__(self, error: type | None, *_: Any) -> None:
        self.close()
        if error is None:
            self.check()

    @property
    def confidence(self) -> Float[Tensor, "N t"]:
        """Largest probability of the distribution that produced each token; NaN for given tokens.

        It is recorded for policies that use it and for `compress(watch=...)`.
        """
        return self.clock.confidence

    @property
    def clocks(self) -> tuple[Clock, ...]:
        """The clock of every sequence."""
        return self.clock.rows

    @property
    def first_evictions(self) -> tuple[int | None, ...]:
        """Tokens of each sequence that attended to all tokens before them, in every layer.

        The next token is the first from which an entry was evicted, or stored in fewer bits instead
        (DDKS). None: nothing was evicted so far, so the cache is still the full one.
        """
        return self.clock.first_evictions

    def kept(self) -> list[tuple[int, ...]]:
        """Entries per KV head of each sequence, for every compressed layer."""
        return self.compressed.kept

    @torch.inference_mode()
    def positions(self) -> list[Int[Tensor, "N G n"]]:
        """Absolute positions of the entries, ascending, for every compressed layer.

        A head that holds fewer entries than the longest sequence of the batch starts with -1.
        """
        return [layer.positions.sort(dim=-1).values for layer in self.compressed.copies()]

    def memory(self) -> CacheMemory:
        """Bytes that every layer has allocated."""
        compressed = iter(self.compressed.memory())
        return CacheMemory(
            tuple(
                next(compressed) if isinstance(layer, CompressedLayer) else _memory_of(layer)
                for layer in self.layers
            )
        )

    def check(self) -> None:
        """Raise ValueError if a score was NaN so far, or a mask was wrong. Waits for the device."""
        self.clock.check_noted()
        self.compressed.check()

    @torch.inference_mode()
    def reset(self) -> None:
        """Discard all tokens; the cache can be used for another batch."""
        with self.used():
            self.layers = self._own_layers(DynamicCache(config=self.model.config).layers)
            self._forget()

    # --- what the model's forward tells ---

    @contextmanager
    def used(self) -> Iterator[None]:
        """Keep other threads away; ValueError if one of them uses the cache now."""
        if not self._lock.acquire(blocking=False):
            raise ValueError(
                "this cache is in use by another thread: wait for the thread to end, or give every "
                "thread a cache of its own, cache.copy()"
            )
        try:
            yield
        finally:
            self._lock.release()

    def check_open(self) -> None:
        """Raise ValueError if the context has ended."""
        if self.attachment.closed and self.generating:
            raise ValueError(
                "the context of compress() has ended while the model was generating in it: wait "
                "for the thread that generates inside the context"
            )
        if self.attachment.closed:
            raise ValueError(
                "the context of compress() that gave this cache has ended: call compress() again, "
                "and give the model the cache that it returns"
            )

    def _check_whole(self) -> None:
        if self.broken:
            raise ValueError("the last step failed in the middle: call reset() on this cache")
        if self.block is not None:
            raise ValueError("a step is running: use the cache between two calls of the model")

    def begin(self, inputs: Tensor, real: Bool[Tensor, "N m"] | None) -> None:
        """Take in a call of the model, if it fits what came before.

        ``inputs`` are ids or embeddings; ``real`` marks the tokens that are not padding; None: all.
        """
        N, m = inputs.shape[:2]
        self._check_whole()
        self.check_open()
        if m > 1:
            self.check()
        if m > 1 and self.clock.columns and not self.reads_in_pieces:
            raise ValueError(
                f"a second text of {m} tokens: this model's recurrent layers were not shown to "
                "read a text in pieces as at once; call reset() on this cache, and give the model "
                "all tokens at once"
            )
        if not self.clocks:
            prompts = [m] * N if real is None else real.sum(dim=-1).tolist()
            policy = self.policy_for(max(prompts)) if self.policy_for else self.policy
            for prompt in prompts:
                policy.specification.check(prompt)
            if policy is not self.policy:
                self.policy, self.compressed = policy, self._layers_of(policy)
            self.clock.begin(prompts, inputs.device)
            self.read_with = writes_to(self.model)
        used = adapters_used(self.adapted) if self.adapted else ()
        if used not in self.clock.adapters:
            self.clock.adapters += (used,)
        self.clock.note_call(inputs, real, given=self.begins)
        self.begins = False

    def begin_block(self, real: Bool[Tensor, "N m"] | None, m: int) -> Int[Tensor, "N m"]:
        """Advance the clock by a block, and return the positions of its tokens."""
        self.block = self.clock.advance(real, m)
        begin(self.compressed, self.block)
        return self.block.positions

    def check_attended(self) -> None:
        """Refuse a model that did not attend through `attention` in every layer."""
        self.check_open()
        idle = [layer.number for layer in self.compressed_layers if layer.waiting is not None]
        if idle:
            here = self.model.config.get_text_config(decoder=True)._attn_implementation
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
        left_out = [x.number for x in self.compressed_layers if x.step is not self.block]
        if left_out:
            raise UnsupportedModelError(
                f"layer {left_out[0]}, of full attention, gave no keys to the cache in this call: "
                "gradient checkpointing in training drops the cache, and some models leave layers "
                "out; kvlab compresses only calls in which every such layer takes part"
            )

    def end_block(self, logits: Float[Tensor, "N k vocab"], m: int) -> None:
        """Note that the block is done."""
        self.block = None
        if self.policy.specification.evicts and None in self.clock.first_evictions:
            early = self.policy.specification.evict_before_attend
            self.clock.note_evictions(self.compressed.fewest, early)
        self.clock.end_block(logits, m)

    def expect_step(self) -> BatchClock:
        """Return the clock of the running block.

        ValueError outside a call of the compressed model, or after the context.
        """
        self.check_open()
        if self.block is None:
            raise ValueError("call the model itself inside compress(), not a part of it")
        return self.block

    def no_mask(self, device: torch.device) -> Bool[Tensor, "1 1 1 1"]:
        """Return a mask that transformers passes on unchanged, for steps that read no mask."""
        if self._no_mask is None or self._no_mask.device != device:
            self._no_mask = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=device)
        return self._no_mask

    # --- the batch axis ---

    @torch.inference_mode()
    def _map_rows(self, change: Callable[[Tensor], Tensor], order: Sequence[int]) -> None:
        self.compressed.map_rows(change, order)
        self.clock.map_rows(change, order)

    def _others(self) -> list[Any]:
        return [layer for layer in self.layers if not isinstance(layer, CompressedLayer)]

    def reorder_cache(self, beam_idx: Int[Tensor, " N"]) -> None:
        """Reorder the sequences for beam search.

        If all clocks are equal and the host remembers nothing, the host need not know the order.
        """
        for layer in self._others():
            layer.reorder_cache(beam_idx)
        alike = len(set(self.clocks)) == 1 and not self.policy.on_host
        order = range(len(beam_idx)) if alike else beam_idx.tolist()
        self._map_rows(lambda x: x.index_select(0, beam_idx.to(x.device)), order)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every sequence."""
        for layer in self._others():
            layer.batch_repeat_interleave(repeats)
        order = [number for number in range(len(self.clocks)) for _ in range(repeats)]
        self._map_rows(lambda x: x.repeat_interleave(repeats, dim=0), order)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only some sequences."""
        for layer in self._others():
            layer.batch_select_indices(indices)
        rows = torch.arange(len(self.clocks), device=indices.device)[indices]
        self._map_rows(lambda x: x.index_select(0, rows.to(x.device)), rows.tolist())

    # --- what cannot work ---

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse with ValueError: evicted entries cannot come back."""
        raise ValueError(
            "assisted decoding (assistant_model, prompt_lookup_num_tokens) and rolling back "
            "(crop) need evicted entries again: not with compress()"
        )

    def activate_past_recording(self) -> None:
        """Refuse assisted decoding, as `crop` does."""
        self.crop(0)


def _memory_of(layer: Any) -> LayerMemory:
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    if keys is None or values is None:
        return LayerMemory(0, 0, 0, 0)
    return LayerMemory(keys.untyped_storage().nbytes(), values.untyped_storage().nbytes(), 0, 0)
