"""Attention over the kept blocks: the platform's own, with a table that lacks the evicted ones.

Keys are rotated before they are stored, so nothing but the table and the lengths changes.
"""

from functools import cache
from typing import Any

from vllm.config import get_current_vllm_config
from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

from kvlab.fast.vllm import own_backend
from kvlab.fast.vllm.requests import Built
from kvlab.fast.vllm.settings import Settings, UnsupportedError, settings_of
from kvlab.fast.vllm.turns import take_turns


class Evicting:
    """Mixed into a builder of metadata."""

    def build(self, common_prefix_len: int, common_attn_metadata: Any, *args: Any, **given: Any):
        """Build what the platform builds, and note from what."""
        metadata = super().build(common_prefix_len, common_attn_metadata, *args, **given)  # type: ignore[misc]
        metadata.kvlab = Built(self, common_attn_metadata)
        return metadata

    def build_again(self, common: Any, **changed: Any) -> Any:
        """Build metadata for another table and other lengths."""
        return super().build(0, common.replace(**changed))  # type: ignore[misc]

    def use_cascade_attention(self, *args: Any, **given: Any) -> bool:
        """Read no prefix apart: the table of each request is its own."""
        return False


class Observed:
    """Mixed into an implementation of attention."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        for name in ("alibi_slopes", "sinks"):
            if getattr(self, name, None) is not None:
                raise UnsupportedError(f"kvlab: no score reads attention with {name}")
        if getattr(self, "sliding_window", None) not in (None, -1, (-1, -1)):
            raise UnsupportedError("kvlab: every layer must have full attention, not of a window")

    def forward(self, layer: Any, query: Any, *given: Any, **named: Any) -> Any:
        """Attend to the kept blocks, and note the queries."""
        *tensors, metadata = given  # key, value, the layer's blocks
        forward, batch = super().forward, None  # type: ignore[misc]
        if metadata is not None and has_kv_transfer_group():
            batch = get_kv_transfer_group().requests_of[layer.layer_name].batch(metadata)
        if batch is None:
            return forward(layer, query, *tensors, metadata, **named)
        found = forward(layer, query, *tensors, batch.kept_metadata, **named)
        if batch.attended(self, layer, query):
            layout = batch.requests.layout(self, layer)
            take_turns(batch, layout, getattr(self, "logits_soft_cap", None) or None)
        return found


@cache
def wrapped(name: str) -> type:
    """Return one of vLLM's backends with the parts that evict blocks."""
    own = own_backend(name)

    class Backend(own):
        """The platform's backend; its parts evict blocks."""

        configured: Settings | None = None
        """Of the model that was built last: vLLM tells it to attention layers alone.

        None without kvlab: vLLM keeps the class that an earlier model of the process got.
        """

        @staticmethod
        def get_impl_cls() -> type:
            Backend.configured = settings_of(get_current_vllm_config())
            return Backend.with_part(Observed, own.get_impl_cls())

        @staticmethod
        def get_builder_cls() -> type:
            return Backend.with_part(Evicting, own.get_builder_cls())

        @classmethod
        def with_part(cls, part: type, own: type) -> type:
            """Return a class of vLLM with a part of kvlab, or as it is where nothing is evicted."""
            if cls.configured is None:
                return own
            return type(own.__name__, (part, own), {"settings": cls.configured})

        @classmethod
        def customize_spec(cls, spec: Any) -> Any:
            from kvlab.fast.vllm.manager import evicting

            spec = own.customize_spec(spec)  # layers ask for their implementation first
            return spec if cls.configured is None else evicting(spec, cls.configured)

    Backend.__name__ = Backend.__qualname__ = name
    Backend.__module__ = "kvlab.fast.vllm"  # whose `__getattr__` finds it by its path
    return Backend
