"""One token of decoding as a CUDA graph: captured once, then replayed for every token like it.

Two tokens are the same work on the same addresses if equally many entries leave every head: slots
and positions are on the device, and buffers have a fixed size. A token after which nothing leaves,
or several entries do, is captured over vacant slots at the end, which attention does not read; when
they are used up, it is captured anew over twice as many. Where one entry leaves, the next token
overwrites its slot. Every other token runs as usual, between two replays.

What a step puts into new tensors (the token's position, a vacant slot, remembered queries) is
copied to fixed ones at the end. The host only counts on. Python code of the model, such as hooks,
runs when a token is captured, and not when it is replayed. When a text is gone, the next one of the
same shape moves into its buffers, and replays its graph.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

from kvlab.fast.engine.columns import Columns
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
FIRST_ROOM = 256
"""Vacant slots over which a text's token is captured first."""
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
    always = policy.specification.evicts and all(map(policy.schedule.due, later))
    observes = policy.score.tensors_alone or policy.score.observes_tensors_alone
    reasons = {
        "stores codes, in tables that grow by other rows than tokens": policy.precision.quantises,
        "evicts or moves keys before a token attends": policy.is_early,
        "runs the reference on the host": policy.on_host,
        "observes tokens by what the host counts": not observes,
        "decides at every token, by what the host counts": always and not policy.tensors_alone,
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"graphs = True: {policy.name} {reason}")


@dataclass(frozen=True)
class Change:
    """How the next token changes every head of the caches: what all tokens of a graph share."""

    due: bool
    """Whether the policy decides."""
    leaving: int
    """Entries that leave."""
    room: int
    """Candidates that stay, if it decides."""

    @property
    def in_place(self) -> bool:
        """Whether the slot of the entry that leaves is the next token's."""
        return self.leaving == 1

    @classmethod
    def of_next(cls, text: Text) -> "Change | None":
        """Return how the next token changes a text's caches; None if it cannot be captured."""
        policy, layers, rows = text.policy, text.layers, rows_after_a_token(text)
        first = layers.caches[0]
        if not first.even if layers.shared else layers.can_share(rows[0]):
            return None
        due = {policy.schedule.due(row) for row in rows}
        vacant = first.has_vacant_slot
        if due == {False}:
            return None if vacant else cls(False, 0, 0)
        if due != {True} or not policy.tensors_alone or not layers.shared:
            return None
        counts = first.counts[: first.sequences]
        plans = {policy.plan(row, n + 1, True) for row, n in {*zip(rows, counts, strict=True)}}
        if len(plans) > 1 or None in plans:
            return None
        ((leaving, room),) = (plan for plan in plans if plan is not None)
        if leaving and None in text.clock.first_evictions:
            return None
        return cls(True, leaving, room) if (leaving == 1) == vacant else None


Places = list[tuple[MutableMapping[str, Any], str]]
"""Attributes, and values of mappings, in which a step may put a new tensor."""


def places_of(text: Text, change: Change) -> Places:
    """Return where a step of a text may put a new tensor, if there is one now."""
    clock = vars(text.clock)
    of_cache = ("_vacant", "nan_if_any") if change.due else ()
    places: Places = [(clock, "_last"), (clock, "_prompt")]
    for group in text.layers.groups:
        own, stream = vars(group.cache), group.cache.state.stream
        places += [(vars(group), "prompt"), *((own, name) for name in of_cache)]
        places += [(stream, name) for name in stream]
    return [(owner, name) for owner, name in places if isinstance(owner[name], Tensor)]


@contextmanager
def as_it_was(text: Text) -> Iterator[None]:
    """Let steps change what the host knows of a text, and undo that."""
    layers = text.layers
    owners: list[MutableMapping[str, Any]] = [vars(text), vars(text.clock), vars(layers)]
    for group in layers.groups:
        cache = group.cache
        owners += [vars(group), vars(cache), vars(cache.columns)]
        owners += [vars(cache.state), cache.state.stream]
    before = [(owner, dict(owner)) for owner in owners]
    try:
        yield
    finally:
        for owner, values in before:
            owner.clear()
            owner.update(values)


def bring(places: Places, fixed: Sequence[Tensor]) -> None:
    """Put the tensors of some places to fixed addresses."""
    for (owner, name), to in zip(places, fixed, strict=True):
        if owner[name] is not to:
            to.copy_(owner[name])
            owner[name] = to


class TokenGraph:
    """A captured token of the texts of one shape, which have it one after the other."""

    def __init__(self, text: Text, change: Change, key: Any) -> None:
        self.text, self.change, self.key = ref(text), change, key
        self.buffers = [dict(columns.buffers) for columns in columns_of(text)]
        self.fixed = [owner[name].clone() for owner, name in places_of(text, change)]
        self.vacant: list[Tensor] = []
        """The slots that the next token takes, one for every head of a cache; none in place."""
        if not change.in_place:
            self.vacant = [
                torch.empty_like(columns["positions"][:, :, :1], dtype=torch.int64)
                for columns in columns_of(text)
            ]
        self.next_column = -1
        """The token, counted with padding, for which the vacant slots are empty and known."""
        self.inputs: dict[str, Tensor] = {}
        self.kind: Any = None
        self.outputs: dict[str, Any] = {}
        """Of fixed addresses. Without the cache, which would never be freed."""

    def capture(self, text: Text, given: Given, run: Callable[[dict[str, Any]], Any]) -> None:
        """Capture what ``run`` does with the arguments of a call; the text is then as before."""
        self.inputs = {name: given[name].clone() for name in AT_FIXED_ADDRESSES if name in given}
        self._prepare(text)
        arguments = {**given, **self.inputs}
        try:
            self.replay = captured(partial(self._token, text, arguments, run))
        except RuntimeError as error:
            raise ValueError(
                f"graphs = True: a token of this model cannot be captured ({error}): call "
                "compress() without graphs"
            ) from error

    def _token(self, text: Text, given: Given, run: Callable[[dict[str, Any]], Any]) -> None:
        """Run the model, and leave all that the next token reads at fixed addresses."""
        with as_it_was(text):
            places = places_of(text, self.change)
            for cache, vacant in zip(text.layers.caches, self.vacant, strict=False):
                cache.columns.count, cache.ordered = cache.columns.capacity, False
                cache._vacant = vacant
            found = run(dict(given))
            self.kind, self.outputs = type(found), dict(found.items())
            self.outputs.pop("past_key_values", None)
            bring(places, self.fixed)
            for columns, vacant in zip(columns_of(text), self.vacant, strict=False):
                if self.change.leaving:
                    columns.empty_from(columns.count)
                    vacant.fill_(columns.count)
                else:
                    vacant.add_(1)

    def fits(self, text: Text, key: Any) -> bool:
        """Say whether the text's next token is this one, and no other text has it."""
        if self.key != key or self.text() not in (None, text):
            return False
        own = zip(columns_of(text), self.buffers, strict=True)
        more = not self.change.in_place
        return all(each.count + more <= slots_of(buffers) for each, buffers in own)

    def __call__(self, text: Text, given: Given) -> Any:
        """Run the model on a text's token, and count it; return new outputs."""
        self._prepare(text)
        for name, fixed in self.inputs.items():
            fixed.copy_(given[name])
        self.replay()
        text.clock.rows = rows_after_a_token(text)
        text.clock.columns += 1
        self.next_column = text.clock.columns
        if not self.change.in_place:
            for cache in text.layers.caches:
                cache.count_on(self.change.leaving)
        return self.kind(**self.outputs, past_key_values=given["past_key_values"])

    def is_home(self, text: Text) -> bool:
        """Say whether the entries of the text lie where the graph reads them."""
        own = zip(columns_of(text), self.buffers, strict=True)
        return self.text() is text and all(
            each.buffers[kind] is buffer for each, mine in own for kind, buffer in mine.items()
        )

    def _prepare(self, text: Text) -> None:
        """Bring all that the token reads to the fixed addresses."""
        text.layers.catch_up()
        if not self.is_home(text):
            self.text, self.next_column = ref(text), -1
            for columns, buffers in zip(columns_of(text), self.buffers, strict=True):
                columns.move_into(dict(buffers))
        bring(places_of(text, self.change), self.fixed)
        if self.next_column != text.clock.columns:
            for columns, vacant in zip(columns_of(text), self.vacant, strict=False):
                columns.reserve(columns.capacity)
                columns.empty_from(columns.count)
                vacant.fill_(columns.count)


def captured(run: Callable[[], None]) -> Callable[[], None]:
    """Capture what a function launches; return what launches it again."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def columns_of(text: Text) -> list[Columns]:
    """Return the columns of every cache of a text."""
    return [cache.columns for cache in text.layers.caches]


def slots_of(buffers: Mapping[Any, Tensor]) -> int:
    """Return the slots of each head in the buffers of columns."""
    return next(iter(buffers.values())).shape[3]


def shape_of(text: Text, change: Change) -> Any:
    """Return what texts have in common that can have one graph, one after the other."""
    policy, layers = text.policy, text.layers
    ended = all(policy.schedule.ended(row) for row in text.clock.rows)
    places = [(name, (x := owner[name]).shape, x.dtype) for owner, name in places_of(text, change)]
    caches = []
    for columns, cache in zip(columns_of(text), layers.caches, strict=True):
        slots, *layout = columns.layout
        at_slots = (slots, cache.ordered, cache.ragged) if change.in_place else ()
        caches.append((at_slots, *layout, *columns.places))
    return layers.shared, ended, tuple(places), tuple(caches)


class Graphs:
    """The captured tokens of a model."""

    def __init__(self, attachment: Attachment) -> None:
        self.attachment = attachment
        self.configs = configs_of(attachment.model)
        self.alike: WeakKeyDictionary[Text, Counter[Any]] = WeakKeyDictionary()
        """How many tokens of each kind a text had."""
        self.rooms: WeakKeyDictionary[Text, int] = WeakKeyDictionary()
        """Vacant slots that a text got last."""
        self.graphs: list[TokenGraph] = []

    def token(
        self, cache: CompressedCache, given: Given, run: Callable[[dict[str, Any]], Any]
    ) -> Any:
        """Run the model on a token by a graph; None if it is not a token like those before."""
        text = cache.text
        change = None if text.model_counts_positions else Change.of_next(text)
        options = None if change is None else self._options(given)
        if change is None or options is None:
            return None
        key = options, change, shape_of(text, change)
        counted = self.alike.setdefault(text, Counter())
        counted[key] += 1
        if counted[key] <= FIRST:
            return None
        graph = next((graph for graph in self.graphs if graph.fits(text, key)), None)
        if graph is None:
            if not change.in_place:
                self._make_room(text)
            graph = TokenGraph(text, change, key)
            graph.capture(text, given, run)
            # A graph of no text, and what this text cannot use any more, hold memory.
            self.graphs = [
                each
                for each in self.graphs
                if (other := each.text()) is not None
                and (other is not text or (each.change != change and each.is_home(text)))
            ]
            self.graphs.append(graph)
        return graph(text, given)

    def _make_room(self, text: Text) -> None:
        """Give a text vacant slots, twice as many as the last ones once those are used up."""
        every = columns_of(text)
        if text not in self.rooms or any(columns.count == columns.capacity for columns in every):
            room = self.rooms[text] = 2 * self.rooms.get(text, FIRST_ROOM // 2)
            for columns in every:
                columns.reserve(columns.count + room)

    def _options(self, given: Given) -> Any:
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


def rows_after_a_token(text: Text) -> tuple[Clock, ...]:
    """Return the clocks of all sequences after one more token."""
    return text.clock.rows_after([1] * len(text.clock.rows))
