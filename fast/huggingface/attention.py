"""The attention and mask functions that compressed models call, registered with transformers.

A layer's ``update`` only tags the keys with a ticket; by the ticket the attention function finds
the layer, and `kvlab.fast.engine.step` does everything else. Arguments and masks that these
functions do not know are refused, also in layers that are left alone: to drop an argument or a
mask would give wrong text without an error.
"""

import sys
from dataclasses import dataclass
from math import isclose, sqrt
from typing import Any, NoReturn
from weakref import proxy

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import CacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, sdpa_mask

from kvlab.fast.engine.cache import BatchClock
from kvlab.fast.engine.step import Block, attend
from kvlab.fast.huggingface.text import State
from kvlab.fast.kernels.attention import compute_dtype
from kvlab.fast.kernels.notation import Float, QueryPositions, Tensor, Vectors

TICKET = "_kvlab_ticket"
IMPLEMENTATION = "kvlab"
"""Name of the attention and mask functions in the model's configuration."""

WITHOUT_EFFECT = {
    *("position_ids", "cache_position", "use_cache", "sliding_window", "deterministic"),
    *("output_attentions", "output_hidden_states", "output_router_logits", "return_dict"),
    *("logits_to_keep", "num_items_in_batch"),
}
"""Arguments that models pass to attention and that do not change its result."""


class UnsupportedModelError(ValueError):
    """The model computes its attention in a way that kvlab does not know."""


class CompressedLayer(CacheLayerMixin):
    """One attention layer whose entries a policy chooses."""

    ALIKE = ("owner", "number", "place", "waiting", "block_clock", "is_initialized")

    is_sliding = False

    def __init__(self, owner: Any, number: int, place: int) -> None:
        """``owner`` is a `CompressedCache`, ``place`` the number among its compressed layers."""
        super().__init__()
        self.owner = proxy(owner)  # a cycle would keep a cache in memory until Python looks for it
        self.number, self.place = number, place
        self.waiting: object = None
        """`Ticket.call` of the keys that `attention` has still to be given."""
        self.block_clock: Any = None
        """The `BatchClock` of the last block whose keys came."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Hand the block's own keys and values on; `attention` takes them to the entries."""
        self.is_initialized = True
        text, closed = self.owner.text, self.owner.attachment.closed
        clock = text.block_clock if text.state is State.RUNNING and not closed else None
        self.block_clock = clock or text.running_block(closed)  # which says what is wrong
        self.waiting = object()
        tagged = key_states.view_as(key_states)
        setattr(tagged, TICKET, Ticket(self, self.waiting))
        return tagged, value_states

    def get_seq_length(self) -> int:
        """Columns fed so far, evicted ones and padding included."""
        return self.owner.text.clock.columns

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the mask of an uncompressed layer."""
        return self.owner.text.clock.columns + query_length, 0

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


def attention(
    module: torch.nn.Module,
    query: Float[Tensor, "N H m d"],
    key: Vectors,
    value: Vectors,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Float[Tensor, " H"] | None = None,
    **kwargs: Any,
) -> tuple[Float[Tensor, "N m H d"], None]:
    """Attend as the policy of the keys' layer says; the signature is transformers'.

    Dropout, and attention that kvlab does not know, are refused.
    """
    if dropout or not kwargs.keys() <= WITHOUT_EFFECT:
        _refuse_unknown(module, dropout, kwargs)
    ticket = getattr(key, TICKET, None)
    if ticket is None:  # a layer whose entries no policy chooses: as transformers computes it
        options = {"scaling": scaling, "is_causal": is_causal, "softcap": softcap, "s_aux": s_aux}
        return _of_transformers(module, query, key, value, attention_mask, **options), None
    if is_causal is None and attention_mask is None and query.shape[2] > 1:
        is_causal = getattr(module, "is_causal", True)  # as transformers' sdpa attention reads it
    layer: CompressedLayer = ticket.layer
    if layer.waiting is not ticket.call or s_aux is not None or is_causal is False:
        _refuse_layer(module, ticket, s_aux)
    text, shared = layer.owner.text, layer.owner.attachment
    N, H, m, d = query.shape
    G = key.shape[1]
    if scaling is not None and not isclose(scaling, 1 / sqrt(d), rel_tol=1e-6):
        query = query.to(compute_dtype(query.dtype)) * (scaling * sqrt(d))
    clock: BatchClock = layer.block_clock
    if clock.positions.device != query.device:
        clock = clock.to(query.device)
    if attention_mask is not None and attention_mask.numel() > 1:
        _check_mask(module, attention_mask, clock)
    if key.dtype != value.dtype:  # autocast and RoPE leave them unequal
        wider = torch.promote_types(key.dtype, value.dtype)
        key, value = key.to(wider), value.to(wider)
    block = Block(
        clock,
        layer.number,
        query.view(N, G, H // G, m, d),
        key,
        value,
        text.clock.confidence_now.to(query.device),
        None if shared.rotations is None else shared.rotations[layer.place],
        softcap,
        _hidden_states(module, layer, query) if text.policy.needs.hidden_states else None,
        len(layer.owner.layers),
        shared.model if text.policy.needs.hidden_states else None,
        _projection(module, text.policy.name, G, H, d) if text.policy.needs.projection else None,
    )
    layer.waiting = None
    output = attend(text.layers, layer.place, block)
    return output.flatten(1, 2).transpose(1, 2).contiguous(), None


def _of_transformers(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    **options: Any,
) -> Tensor:
    """Return the output of a layer that is left alone."""
    theirs = sdpa_attention_forward
    if options["softcap"] is not None or options["s_aux"] is not None:
        theirs = sys.modules[type(module).__module__].eager_attention_forward
        if mask is None:
            m, n = query.shape[2], key.shape[2]
            mask = query.new_ones((m, n), dtype=torch.bool).tril(n - m)
        least = max(torch.finfo(dtype).min for dtype in (query.dtype, torch.float32))
        mask = query.new_zeros(()).masked_fill(~mask, least)
    return theirs(module, query, key, value, mask, **options)[0]


def _hidden_states(
    module: torch.nn.Module, layer: CompressedLayer, query: Tensor
) -> Float[Tensor, "N m D"]:
    """Return what the module was given for these queries; refuse a module that was given others."""
    noted, (N, _, m, _) = layer.owner.attachment.of_thread, query.shape
    (running, given), noted.inputs = getattr(noted, "inputs", (None, None)), (None, None)
    if running is not module or not isinstance(given, Tensor) or given.shape[:2] != (N, m):
        raise UnsupportedModelError(
            f"{layer.owner.text.policy.name} reads hidden states, which {_name(module)} is not "
            "given as an argument with a row for every token: use another method with this model"
        )
    return given.to(query.device)


def _projection(
    module: torch.nn.Module, asking: str, G: int, H: int, d: int
) -> Float[Tensor, "G rho d D"]:
    """Return a module's output projection, cut by query heads; refuse one that is not known."""
    linear = getattr(module, "o_proj", None)
    weight = getattr(linear, "weight", torch.empty(0, 0))
    if type(linear) is not torch.nn.Linear or weight.is_meta or weight.shape[1] != H * d:
        raise UnsupportedModelError(
            f"{asking} reads the output projection, and {_name(module)} has no plain linear layer "
            f"o_proj in memory that reads {H} heads of {d} channels: use another method with this "
            "model"
        )
    return weight.detach().view(-1, G, H // G, d).permute(1, 2, 3, 0)


# --- what is refused ---


def _refuse_unknown(module: torch.nn.Module, dropout: float, given: dict[str, Any]) -> None:
    for name, value in given.items():
        if value is not None and name not in WITHOUT_EFFECT:
            raise UnsupportedModelError(
                f"{_name(module)} gives its attention the argument {name}, which kvlab does not "
                "know: it cannot compress this model; use it without compress()"
            )
    if dropout:
        raise ValueError(f"dropout = {dropout} in attention: call model.eval() before compress()")


def _refuse_layer(module: torch.nn.Module, ticket: Ticket, sinks: Tensor | None) -> NoReturn:
    if ticket.layer.waiting is not ticket.call:
        number, owner = getattr(module, "layer_idx", None), ticket.layer.number
        what = (
            "attends twice to the same keys"
            if number is None or number == owner
            else f"of layer {number} attends to the keys of layer {owner}"
        )
        raise UnsupportedModelError(
            f"{_name(module)} {what}: kvlab cannot compress layers whose entries are read more "
            "than once per token; use this model without compress()"
        )
    if sinks is not None:
        raise UnsupportedModelError(
            f"{_name(module)} attends with learned sinks, which kvlab does not know in layers that "
            "it compresses: use this model without compress()"
        )
    raise UnsupportedModelError(
        f"{_name(module)} lets tokens read later ones: kvlab compresses causal attention only; "
        "use this model without compress()"
    )


def _check_mask(module: torch.nn.Module, mask: Tensor, clock: BatchClock) -> None:
    """Refuse a mask of the model that differs from the causal mask.

    A policy masks by positions: it needs no mask, and cannot apply another one.
    """
    if clock.once(("causal", id(mask)), lambda: _is_causal(mask, clock.positions)):
        return
    raise UnsupportedModelError(
        f"{_name(module)} uses an attention mask that is not the causal one (an image or a prefix "
        "whose tokens read later ones, or a mask of the model's own): kvlab cannot compress that; "
        "use this model, or this prompt, without compress()"
    )


def _is_causal(mask: Tensor, positions: QueryPositions) -> bool:
    """Say whether every real token sees itself and all real tokens before it, and no other."""
    m, n = mask.shape[-2:]
    if mask.dtype != torch.bool or m != positions.shape[1] or n < m:
        return False
    later = mask.triu(n - m + 1).any(dim=-1)
    right = ~later & (mask.sum(dim=-1) == positions[:, None] + 1)
    return bool((right | (positions < 0)[:, None]).all())


def _name(module: torch.nn.Module) -> str:
    return type(module).__name__


# --- masks ---


def mask(
    *args: Any,
    mask_function: Any = causal_mask_function,
    local_size: int | None = None,
    **kwargs: Any,
) -> Tensor | None:
    """Masks of sliding-window layers; compressed layers make their masks from positions.

    Any mask but the plain causal one is built, so that `attention` sees it.
    """
    if local_size is not None:
        return sdpa_mask(*args, mask_function=mask_function, local_size=local_size, **kwargs)
    if mask_function is causal_mask_function:
        return None
    kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(*args, mask_function=mask_function, **kwargs)


AttentionInterface.register(IMPLEMENTATION, attention)
AttentionMaskInterface.register(IMPLEMENTATION, mask)
