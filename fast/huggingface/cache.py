"""The cache that `compress` gives to a model, as its user sees it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any, NoReturn

import torch
from transformers import Cache

from kvlab.fast.engine.cache import LayerMemory
from kvlab.fast.huggingface import saving
from kvlab.fast.huggingface.attachment import Attachment
from kvlab.fast.huggingface.attention import CompressedLayer
from kvlab.fast.huggingface.identity import writes_to
from kvlab.fast.huggingface.padding import WindowLayer
from kvlab.fast.huggingface.text import Text
from kvlab.fast.kernels.notation import Change, Float, Int, Tensor
from kvlab.reference.observation import Clock


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


class OneThread:
    """Keeps all threads but one away from a cache: others are refused, and do not wait."""

    def __init__(self) -> None:
        self._lock = RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise ValueError(
                "this cache is in use by another thread: wait for the thread to end, or give every "
                "thread a cache of its own, cache.copy()"
            )

    def __exit__(self, *_: Any) -> None:
        self._lock.release()


class CompressedCache(Cache):
    """The cache that `compress` gives: pass it to the model as ``past_key_values``."""

    ALIKE = (
        *("attachment", "used"),
        *("layer_class_to_replicate", "offloading", "_is_user_defined"),  # of transformers
    )

    def __init__(
        self, attachment: Attachment, text: Text | None = None, like: Sequence[Any] | None = None
    ) -> None:
        """Make a cache of a text, or an empty one.

        ``like`` are the layers of another cache of this model: those that no policy decides about
        are copied; None: they are empty.
        """
        self.attachment = attachment
        self.text = text or attachment.new_text()
        super().__init__(layers=self._layers_like(like or attachment.new_layers()))
        self.used = OneThread()

    def _layers_like(self, layers: Sequence[Any]) -> Any:
        """Return copies of layers, with layers of this cache where a policy decides."""
        numbers = self.attachment.compressed
        return [
            CompressedLayer(self, number, numbers.index(number))
            if number in numbers
            else deepcopy(layer)
            for number, layer in enumerate(layers)
        ]

    @property
    def compressed_layers(self) -> list[CompressedLayer]:
        """The layers that the policy decides about; sliding-window layers are not changed."""
        return [self.layers[number] for number in self.attachment.compressed]

    @property
    def _others(self) -> list[Any]:
        return [layer for layer in self.layers if not isinstance(layer, CompressedLayer)]

    @contextmanager
    def padded(self, padding: Int[Tensor, " N"] | None) -> Iterator[None]:
        """Let windows of layers that are left alone know how much padding a block begins with."""
        windows = [each for each in self._others if isinstance(each, WindowLayer)]
        for layer in windows:
            layer.padding = padding
        yield
        for layer in windows:
            del layer.padding

    def fit(self, columns: int) -> None:
        """Let the text have as many columns as its calls had, not as many as its blocks."""
        self.text.clock.columns = columns
        for layer in self._others:
            if isinstance(layer, WindowLayer):
                layer.fit(columns)

    # --- what users ask ---

    @property
    def not_compared(self) -> tuple[str, ...]:
        """Which texts `compress` did not compare with the stock model's (see its ``verify``)."""
        return self.attachment.not_compared

    @property
    def confidence(self) -> Float[Tensor, "N t"]:
        """Largest probability of the distribution that produced each token; NaN for given tokens.

        It is recorded for policies that use it and for `compress(watch=...)`.
        """
        return self.text.clock.confidence

    @property
    def clocks(self) -> tuple[Clock, ...]:
        """The clock of every sequence."""
        return self.text.clock.rows

    @property
    def first_evictions(self) -> tuple[int | None, ...]:
        """Tokens of each sequence that attended to all tokens before them, in every layer.

        The next token is the first from which an entry was evicted, or stored in fewer bits instead
        (DDKS). None: nothing was evicted so far, so the cache is still the full one.
        """
        return self.text.clock.first_evictions

    def kept(self) -> list[tuple[int, ...]]:
        """Entries per KV head of each sequence, for every compressed layer."""
        return self.text.layers.kept

    @torch.inference_mode()
    def positions(self) -> list[Int[Tensor, "N G n"]]:
        """Absolute positions of the entries, ascending, for every compressed layer.

        A head that holds fewer entries than the longest sequence of the batch starts with -1.
        """
        return [layer.positions.sort(dim=-1).values for layer in self.text.layers.copies()]

    def memory(self) -> CacheMemory:
        """Bytes that every layer has allocated."""
        compressed = iter(self.text.layers.memory())
        return CacheMemory(
            tuple(
                next(compressed) if isinstance(layer, CompressedLayer) else _memory_of(layer)
                for layer in self.layers
            )
        )

    def check(self) -> None:
        """Raise ValueError if a score was NaN so far, or a mask was wrong. Waits for the device."""
        self.text.clock.check_noted()
        self.text.layers.check()

    # --- texts ---

    @torch.inference_mode()
    def reset(self) -> None:
        """Discard all tokens; the cache can be used for another batch."""
        with self.used:
            self.layers = self._layers_like(self.attachment.new_layers())
            self.text = self.attachment.new_text()

    @torch.inference_mode()
    def copy(self) -> "CompressedCache":
        """Return a cache of the same text, which goes on apart from this one.

        It is given to the same model, also after this one was given more text or was reset, and
        belongs to the same context: `close` of either ends it for both.
        """
        with self.used:
            self.text.check_whole()
            return type(self)(self.attachment, self.text.copied(), self.layers)

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
        with self.used:
            self.text.check_whole()
            self.text.clock.check_noted()
            saving.save(self, Path(path), model_name)

    def load(self, path: str | Path, model_name: str | None = None) -> None:
        """Go on from what `save` wrote, perhaps in another process, and discard what was held.

        ValueError if the file is damaged, or was saved by another version of kvlab, with another
        model (its configuration, active adapters of PEFT, and all parameters and buffers, or
        ``model_name``, are compared) or another method; the cache is then as it was.
        """
        with self.used:
            self.text, layers = saving.load(self, Path(path), model_name)
            self.layers = self._layers_like(layers)
            self.text.weights_version = writes_to(self.attachment.model)

    def close(self) -> None:
        """Restore the model, which is then called without this cache; what it holds stays."""
        self.attachment.close()

    def __enter__(self) -> "CompressedCache":
        return self

    def __exit__(self, error: type | None, *_: Any) -> None:
        self.close()
        if error is None:
            self.check()

    # --- the batch axis ---

    @torch.inference_mode()
    def _map_rows(self, change: Change, order: Sequence[int]) -> None:
        self.text.map_rows(change, order)

    def _of_others(self, name: str) -> list[Callable[..., Any]]:
        """Return a method of the layers that the policy leaves alone; all must have it."""
        others = self._others
        if lacking := [type(each).__name__ for each in others if not hasattr(each, name)]:
            raise ValueError(f"{name}: {lacking[0]} of transformers cannot, use reorder_cache")
        return [getattr(each, name) for each in others]

    def reorder_cache(self, beam_idx: Int[Tensor, " N"]) -> None:
        """Reorder the sequences for beam search.

        If all clocks are equal and the host remembers nothing, the host need not know the order.
        """
        for layer in self._others:
            layer.reorder_cache(beam_idx)
        alike = len(set(self.clocks)) == 1 and not self.text.policy.on_host
        order = range(len(beam_idx)) if alike else beam_idx.tolist()
        self._map_rows(lambda x: x.index_select(0, beam_idx.to(x.device)), order)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every sequence."""
        for change in self._of_others("batch_repeat_interleave"):
            change(repeats)
        order = [number for number in range(len(self.clocks)) for _ in range(repeats)]
        self._map_rows(lambda x: x.repeat_interleave(repeats, dim=0), order)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only some sequences."""
        rows = torch.arange(len(self.clocks), device=indices.device)[indices]
        for change in self._of_others("batch_select_indices"):
            change(indices)
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
