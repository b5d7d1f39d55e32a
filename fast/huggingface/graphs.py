"""One token of decoding as a CUDA graph: captured once, then replayed for every token like it.

A token that enters while another leaves every head is the same work on the same addresses: how many
entries there are does not change, and slots and positions are on the device. What a step would put
into new tensors (the token's position, the vacant slot, the lowest score) is copied to fixed ones
at the end. The host only counts on. Python code of the model, such as hooks, runs when a token is
captured, and not when it is replayed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from kvlab.fast.engine.cache import LayerCache
from kvlab.fast.huggingface.arguments import Given, configs_of, setting
from kvlab.fast.huggingface.attachment import Attachment
from kvlab.fast.huggingface.cache import CompressedCache
from kvlab.fast.huggingface.identity import adapters_used
from kvlab.fast.huggingface.text import Text
from kvlab.reference.observation import Clock

DEVICES = ("cuda",)
FIRST = 2
"""Tokens alike that run before one is captured: kernels are compiled and tuned meanwhile."""
TYPICAL = 64
"""Tokens after which a schedule is looked at, and how many of them."""
AT_FIXED_ADDRESSES = ("input_ids", "position_ids")
"""Arguments of a call that differ from token to token."""


def refuse_graphs(attachment: Attachment) -> None:
    """Raise ValueError if the tokens of a model under a policy cannot be captured."""
    model, policy = attachment.model, attachment.policy
    devices = {x.device for x in model.parameters()}
    kinds = {device.type for device in devices}
    if len(devices) != 1 or not kinds <= {*DEVICES}:
        raise ValueError(f"graphs = True needs a model on one CUDA device, not on {devices}")
    if not attachment.masks_nothing:
        raise ValueError(
            "graphs = True: this model has layers that are left as they are, which grow with "
            "every token"
        )
    if attachment.watch is not None or policy.uses_confidence:
        raise ValueError("graphs = True: the host sees every token (watch, confidence)")
    later = (Clock(TYPICAL + number, 1, 1) for number in range(TYPICAL))
    each = policy.specification.evicts and all(map(policy.schedule.due, later))
    if not (each and policy.is_plain and policy.tensors_alone):
        raise ValueError(
            f"graphs = True: {policy.name} does not evict one entry at every token, by scores and "
            "protection that follow from tensors alone"
        )


@dataclass(frozen=True)
class Place:
    """An attribute that every step gives a new tensor, and the fixed one in its place."""

    owner: Any
    name: str
    fixed: Tensor

    @classmethod
    def of(cls, owner: Any, name: str) -> "Place":
        """Fix the tensor that an attribute has now."""
        return cls(owner, name, getattr(owner, name).clone())

    def bring(self) -> None:
        """Put the tensor of the attribute to the fixed address."""
        now = getattr(self.owner, self.name)
        if now is not self.fixed:
            self.fixed.copy_(now)
            setattr(self.owner, self.name, self.fixed)


class TokenGraph:
    """A captured token of one text."""

    def __init__(self, text: Text, given: Given, run: Callable[[dict[str, Any]], Any]) -> None:
        """Capture what ``run`` does with the arguments of a call; the text is then as before."""
        clock, cache = text.clock, text.layers.caches[0]
        self.inputs = {name: given[name].clone() for name in AT_FIXED_ADDRESSES if name in given}
        self.addresses = addresses_of(cache)
        fixed = (clock, "_last"), (cache, "_vacant"), (cache, "lowest_scores")
        self.places = [Place.of(*place) for place in fixed]
        for place in self.places:
            place.bring()
        (group,) = text.layers.groups
        before = [(x, dict(vars(x))) for x in (text, clock, cache, cache.columns, group)]
        self.kind: Any = None
        self.outputs: dict[str, Any] = {}
        """Of fixed addresses. Without the cache, which would never be freed."""

        def token() -> None:
            found = run({**given, **self.inputs})
            self.kind, self.outputs = type(found), dict(found.items())
            self.outputs.pop("past_key_values", None)
            for place in self.places:
                place.bring()

        try:
            self.replay = captured(token)
        except RuntimeError as error:
            raise ValueError(
                f"graphs = True: a token of this model cannot be captured ({error}): call "
                "compress() without graphs"
            ) from error
        finally:
            for owner, attributes in before:
                vars(owner).clear()
                vars(owner).update(attributes)

    def fits(self, text: Text) -> bool:
        """Say whether the text still has its entries where they were."""
        return addresses_of(text.layers.caches[0]) == self.addresses

    def __call__(self, given: Given) -> Any:
        """Run the model on a token; return new outputs."""
        for place in self.places:
            place.bring()
        for name, fixed in self.inputs.items():
            fixed.copy_(given[name])
        self.replay()
        return self.kind(**self.outputs, past_key_values=given["past_key_values"])


def captured(run: Callable[[], None]) -> Callable[[], None]:
    """Capture what a function launches; return what launches it again."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def addresses_of(cache: LayerCache) -> tuple[int, ...]:
    """Return where the columns of a cache are, and how many slots they have."""
    every = (*cache.columns.buffers.values(), *cache.state.stream.values())
    return len(cache), *(x.data_ptr() for x in every)


class Graphs:
    """The captured tokens of a model, one for every text."""

    def __init__(self, attachment: Attachment) -> None:
        self.attachment = attachment
        self.configs = configs_of(attachment.model)
        self.alike: WeakKeyDictionary[Text, tuple[Any, int]] = WeakKeyDictionary()
        """What a text's last calls had in common, and how many of them there were."""
        self.of_text: WeakKeyDictionary[Text, TokenGraph] = WeakKeyDictionary()

    def token(
        self, cache: CompressedCache, given: Given, run: Callable[[dict[str, Any]], Any]
    ) -> Any:
        """Run the model on a token by a graph; None if it is not a token like those before."""
        text = cache.text
        alike = evicts_one(text) and not text.model_counts_positions
        kind = self._kind(given) if alike else None
        last, count = self.alike.get(text, (None, 0))
        count = count + 1 if kind == last else 1
        self.alike[text] = kind, count
        if kind is None or count <= FIRST:
            self.of_text.pop(text, None)
            return None
        graph = self.of_text.get(text)
        if graph is None or not graph.fits(text):
            self.of_text[text] = graph = TokenGraph(text, given, run)
        outputs = graph(given)
        text.clock.rows = rows_after_a_token(text)
        text.clock.columns += 1
        return outputs

    def _kind(self, given: Given) -> Any:
        """Return what calls must have in common to be replayed; None if they cannot be."""
        model, adapted = self.attachment.model, self.attachment.adapted
        routed = setting(self.configs, given, "output_router_logits", True)  # reads the mask
        if routed or torch.is_autocast_enabled("cuda") or "inputs_embeds" in given:
            return None
        weights = tuple(x.data_ptr() for x in model.parameters())
        adapters = adapters_used(adapted) if adapted else ()
        options = []
        for name, value in sorted(given.items()):
            if name in AT_FIXED_ADDRESSES:
                options.append((name, value.shape, value.dtype))
            elif name not in ("past_key_values", "attention_mask", "cache_position"):
                if isinstance(value, Tensor):
                    return None
                options.append((name, value))
        return weights, adapters, model.training, *options


def evicts_one(text: Text) -> bool:
    """Say whether one entry of every head leaves at the next token, whose slot is vacant."""
    policy, layers = text.policy, text.layers
    if not layers.shared or layers.caches[0]._vacant is None or None in text.clock.first_evictions:
        return False
    cache, next_rows = layers.caches[0], rows_after_a_token(text)
    counts = cache.counts[: cache.sequences]
    return all(
        policy.schedule.due(row)
        and not policy.schedule.ended(row)
        and (plan := policy.plan(row, count + 1, due=True)) is not None
        and plan[0] == 1
        for row, count in {*zip(next_rows, counts, strict=True)}
    )


def rows_after_a_token(text: Text) -> tuple[Clock, ...]:
    """Return the clocks of all sequences after one more token."""
    return text.clock.rows_after([1] * len(text.clock.rows))
