"""The worker's side: who is in a step's batch, what each request has kept, and what waits.

`Requests` are those of a table of blocks, from step to step; a `Batch` holds what is there in one
step; once all layers have attended, each of its requests has its turn (`kvlab.fast.vllm.turns`).
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import pairwise
from math import isclose
from typing import Any, NamedTuple

from kvlab.fast.engine.serving import PromptState, Remembered
from kvlab.fast.kernels.common import to_device
from kvlab.fast.kernels.notation import Float, Tensor
from kvlab.fast.vllm.blocks import Layout
from kvlab.fast.vllm.settings import Settings, UnsupportedError


@dataclass(frozen=True)
class Place:
    """Where a request stands in a step, as the scheduler says."""

    request_id: str
    preemptions: int
    """How often the request was preempted: what it had kept before is gone."""
    siblings_name: str
    """Name shared by the requests that write texts of one prompt; empty unless a score has to see
    all of the prompt."""
    follows_sibling: bool
    """Whether the request keeps of the prompt what the first of its siblings kept."""
    _: KW_ONLY  # what follows are numbers of tokens
    prompt: int
    """Tokens that are read before any is written: after a preemption also those written before."""
    seen: int
    """Tokens after this step, of which ``new`` come in this step."""
    new: int
    longest: int
    """Tokens at most, when the request ends."""


@dataclass(eq=False)
class Request:
    """What a request has kept, and what its score remembers of it."""

    preemptions: int
    observed: int
    """Tokens that the score has observed, or need not."""
    kept: list[int] = field(default_factory=list)
    """Numbers that the kept blocks have in the text, ascending."""
    evicted: int = 0
    """How many blocks were evicted."""
    waiting: list[Float[Tensor, "L m H d"]] = field(default_factory=list)
    """Queries of the earlier steps that the score has not observed, copied: no batch is kept."""
    remembered: list[Remembered] = field(default_factory=list)
    """What the score remembers of the kept entries and of the stream, for each cache."""
    failed: bool = False
    """Whether a method failed, so that the request is about to end."""

    def grow(self, seen: int, block: int) -> None:
        """Keep the blocks that a text begins up to ``seen`` tokens."""
        self.kept += range(self.evicted + len(self.kept), -(-seen // block))

    def evict(self, stay: Container[int]) -> tuple[int, ...]:
        """Evict all blocks but those that stay; return the numbers of the evicted ones."""
        evicted = tuple(block for block in self.kept if block not in stay)
        self.kept = [block for block in self.kept if block in stay]
        self.evicted += len(evicted)
        return evicted

    def kept_tokens(self, seen: int, block: int) -> int:
        """Return how many tokens are kept, of a text of ``seen`` tokens.

        Every evicted block was full: the one that is being written, which alone may not be, is
        always protected (`engine/granularity.py`).
        """
        return seen - block * self.evicted


class Eviction(NamedTuple):
    """What was evicted of a request in a step."""

    request_id: str
    preemptions: int
    blocks: tuple[int, ...]
    """Numbers that the evicted blocks have in the text."""


class Requests:
    """All requests of a worker, in the layers that share a table of blocks."""

    def __init__(self, settings: Settings, own: Sequence[str], layers: Sequence[str]) -> None:
        """Take the names of the table's own layers, and of all layers in the model's order."""
        self.settings, self.layers_of_model = settings, len(layers)
        self.layer_numbers = [number for number, name in enumerate(layers) if name in own]
        """Numbers that the layers of this table have in the model."""
        self.index_of_layer = {layers[n]: index for index, n in enumerate(self.layer_numbers)}
        """Index of a layer among those of this table, ascending, by its name."""
        self.by_id: dict[str, Request] = {}
        self.prompt_states: dict[tuple[str, int], PromptState] = {}
        """By the name of the siblings, and the tokens of the prompt that were read.

        `Turn.leave` notes them, and `Turn.keep_as_left` of the others takes them over.
        """
        self.evictions: list[Eviction] = []
        """Those of which the scheduler has not been told."""
        self.failures: dict[str, str] = {}
        """Why a method failed, by requests of which the scheduler has not been told."""
        self.caches: Mapping[str, Tensor] = {}
        """vLLM's blocks, by the names of all layers; the connector sets them when it has them."""
        self.places: Mapping[int, Place] = {}
        """See `begin`; empty outside of steps."""
        self._batch: Batch | None = None
        self._layout: Layout | None = None

    def begin(self, places: Mapping[int, Place], ended: set[str], siblings: set[str]) -> None:
        """Begin a step, without the requests that have ended.

        Args:
            places: every request, by the block that it writes its last token to. That block is its
                own in this step: blocks that are shared are full.
            ended: ids of requests.
            siblings: names of the siblings that live.
        """
        self.by_id = {k: x for k, x in self.by_id.items() if k not in ended}
        self.prompt_states = {k: x for k, x in self.prompt_states.items() if k[0] in siblings}
        self.places = places

    def batch(self, metadata: Any) -> "Batch | None":
        """Return the batch of this step; None outside of steps.

        vLLM gives all layers of a table the same metadata.
        """
        if not self.places:
            return None
        if self._batch is None:
            self._batch = Batch(self, metadata)
        if self._batch.platform_metadata is not metadata:
            raise RuntimeError("kvlab: layers of one table must share vLLM's metadata of a step")
        return self._batch

    def of(self, place: Place) -> Request:
        """Return the request that stands there, grown; after a preemption it begins anew."""
        request = self.by_id.get(place.request_id)
        if request is None or request.preemptions != place.preemptions:
            request = Request(place.preemptions, observed=place.seen - place.new)
            self.by_id[place.request_id] = request
        request.grow(place.seen, self.settings.block)
        return request

    def layout(self, attention: Any, layer: Any) -> Layout:
        """Return where keys and values are in a block: found once, as it is so in all layers."""
        if self._layout is None:
            self._layout = Layout.found(attention, layer, self.caches[layer.layer_name])
        return self._layout

    def fail(self, place: Place, error: Exception | str) -> None:
        """Let a request end, and drop what its score remembers and has not observed."""
        request = self.by_id[place.request_id]
        request.failed, request.waiting, request.remembered = True, [], []
        self.failures[place.request_id] = f"{self.settings.method} failed: {error}"

    def end(self) -> tuple[list[Eviction], dict[str, str]]:
        """End a step, and return what was evicted in it, and what failed."""
        found = self.evictions, self.failures
        self.places, self._batch, self.evictions, self.failures = {}, None, [], {}
        return found


class Built(NamedTuple):
    """What the platform's metadata, which has it as ``kvlab``, was built by and from.

    `Evicting.build` (`backend.py`) notes it there.
    """

    builder: Any
    """The `Evicting`, whose class has the settings of its engine."""
    common: Any
    """vLLM's CommonAttentionMetadata: the table of blocks, and lengths."""


class Row(NamedTuple):
    """A request of a batch."""

    place: Place
    request: Request
    queries: slice
    """Which of the batch's queries are its own: the newest one, or those of all its tokens."""


class Batch:
    """The requests of one step, as attention computes them."""

    def __init__(self, requests: Requests, platform_metadata: Any) -> None:
        builder, common = platform_metadata.kvlab
        _check(builder, requests.settings)
        self.requests, self.table = requests, common.block_table_tensor
        self.platform_metadata = platform_metadata
        starts = map(int, common.query_start_loc_cpu.numpy())
        # vLLM pads a batch at its end by requests without tokens: the others keep their rows
        spans = [slice(*each) for each in pairwise(starts) if each[0] < each[1]]
        newest = to_device([span.stop - 1 for span in spans], self.table.device)
        slots = common.slot_mapping[newest].tolist()  # the first of two reads from the device
        policy = requests.settings.policy
        self.reads_queries = policy.remembers or policy.needs.rows != "none"
        """Whether the scores read queries at all."""
        self.observed = slice(common.num_actual_tokens) if policy.remembers else newest
        """Tokens whose queries they read: all of the batch, or the newest of every request."""
        self.rows: list[Row] = []
        for row, (slot, span) in enumerate(zip(slots, spans, strict=True)):
            place = requests.places.get(slot // requests.settings.block)
            if place is None or place.new != span.stop - span.start:
                raise RuntimeError("kvlab: vLLM's batch holds a request that was not scheduled")
            queries = span if policy.remembers else slice(row, row + 1)
            self.rows.append(Row(place, requests.of(place), queries))
        self.kept_metadata = platform_metadata
        """What attention is computed by: the platform's, or without blocks that were evicted."""
        if any(row.request.evicted for row in self.rows):
            self.kept_metadata = builder.build_again(common, **self._without_evicted(common))
        self.queries: Float[Tensor, "L observed H d"] | None = None
        self.attended_layers = 0

    def _without_evicted(self, common: Any) -> dict[str, Any]:
        """Return the table of blocks, and the lengths, without what was evicted."""
        kept, block = [row.request.kept for row in self.rows], self.requests.settings.block
        count, width = len(kept), max(map(len, kept))
        # Columns past a row's length are not read, so any block of the row may stand there.
        columns = [[*blocks, *[0] * (width - len(blocks))] for blocks in kept]
        table = self.table.clone()
        table[:count, :width] = self.table[:count].gather(1, to_device(columns, table.device))
        # vLLM memoises the computed tokens, which it counts from the lengths; None: count again.
        changed: dict[str, Any] = {"block_table_tensor": table, "_num_computed_tokens_cache": None}
        lengths = [row.request.kept_tokens(row.place.seen, block) for row in self.rows]
        for name in ("seq_lens", "seq_lens_cpu_upper_bound"):
            if (found := getattr(common, name)) is not None:
                changed[name] = found.clone()
                changed[name][:count] = to_device(lengths, found.device)
        return {**changed, "max_seq_len": max(lengths)}

    def attended(self, attention: Any, layer: Any, query: Float[Tensor, "tokens H d"]) -> bool:
        """Note the queries of a layer; say whether it was the last one."""
        if self.reads_queries:
            query = query.view(len(query), attention.num_heads, -1)[self.observed]
            if self.queries is None:
                self.queries = query.new_empty((len(self.requests.layer_numbers), *query.shape))
            # The engine divides by √d; a model of vLLM's may scale otherwise.
            factor = attention.scale * query.shape[-1] ** 0.5
            index = self.requests.index_of_layer[layer.layer_name]
            self.queries[index] = query if isclose(factor, 1) else query * factor
        self.attended_layers += 1
        return self.attended_layers == len(self.requests.layer_numbers)


def _check(builder: Any, settings: Settings) -> None:
    """Raise `UnsupportedError` if the platform's attention is not built for what is configured."""
    if builder.kv_cache_spec.block_size != settings.block:
        raise UnsupportedError("kvlab: the kernel must read blocks as large as vLLM's")
    if builder.settings != settings:
        raise UnsupportedError("kvlab: another engine of this process was configured otherwise")
