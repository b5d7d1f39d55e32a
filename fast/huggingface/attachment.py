"""What a cache and its copies have in common: the model, the policy, and the layers it decides."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from threading import local
from typing import Any

from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from kvlab.fast.engine.layers import Watch
from kvlab.fast.engine.policy import Policy
from kvlab.fast.huggingface.attention import UnsupportedModelError
from kvlab.fast.huggingface.identity import adapted
from kvlab.fast.huggingface.padding import WindowLayer
from kvlab.fast.huggingface.rotary import Rotation
from kvlab.fast.huggingface.text import Text


class Attachment(ExitStack):
    """What a cache and its copies have in common; it takes them out of the model again."""

    def __init__(
        self,
        model: Any,
        policy: Policy,
        watch: Watch | None = None,
        policy_for: Callable[[int], Policy] | None = None,
    ) -> None:
        """``policy_for`` the tokens of a text's first call, where they decide on the budget."""
        super().__init__()
        self.model, self.policy, self.watch, self.policy_for = model, policy, watch, policy_for
        self.closed = False
        self.rotations: list[Rotation] | None = None
        """How each compressed layer rotates queries and keys; `compress` finds it out."""
        self.adapted = adapted(model)
        """Layers with adapters of PEFT."""
        layers = self.new_layers()
        kinds = [type(layer) for layer in layers]
        self.compressed = [n for n, kind in enumerate(kinds) if kind is DynamicLayer]
        """Numbers of the layers that the policy decides about: those of full attention."""
        self.masks_nothing = len(self.compressed) == len(layers)
        self.recurs = not {*kinds} <= {DynamicLayer, WindowLayer}
        """Whether the model has recurrent layers."""
        self.reads_in_pieces = not self.recurs
        """Whether a text may come in pieces: if there are recurrent layers, `agreement` says so."""
        self.not_compared: tuple[str, ...] = ("texts of any length: verify = False",)
        """Which texts `compress` did not compare with the stock model's (see its ``verify``)."""
        self.of_thread = local()
        """The cache that `generate` ``runs``; and ``inputs``, the attention module that was called
        last, and its input, for a score that reads hidden states."""
        self._check_layers(layers)

    def new_layers(self) -> list[Any]:
        """Return empty layers of transformers' own cache for this model."""
        layers = DynamicCache(config=self.model.config).layers
        for layer in layers:
            if type(layer) is DynamicSlidingWindowLayer:
                layer.__class__ = WindowLayer
        return layers

    def new_text(self) -> Text:
        """Return a text without tokens."""
        return Text.empty(self.policy, len(self.compressed), self.watch)

    def _check_layers(self, layers: Sequence[Any]) -> None:
        name = type(self.model).__name__
        for layer in layers:
            kind = type(layer)
            if issubclass(kind, DynamicLayer) and not (kind is DynamicLayer or layer.is_sliding):
                raise UnsupportedModelError(
                    f"{name} has attention layers of another kind ({kind.__name__}): kvlab cannot "
                    "compress this model; use it without compress()"
                )
        if not self.compressed:
            config = self.model.config.get_text_config(decoder=True)
            window = getattr(config, "sliding_window", None)
            windows = f" (sliding_window = {window})" if window else ""
            raise UnsupportedModelError(
                f"{name} in this configuration{windows} has no full-attention layer: nothing to "
                "compress, because sliding-window and recurrent layers are left as they are; use "
                "it without compress()"
            )
