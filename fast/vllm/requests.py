"""The worker's side: who is in a step's batch, what each request has kept, and what waits.

`Requests` are those of a table of blocks, from step to step; a `Batch` holds what is there in one
step; once all layers have attended, each of its requests has its turn (`kvlab.fast.vllm.turns`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from kvlab.fast.engine.serving import Remembered
from kvlab.fast.kernels.notation import Float, Int, Tensor
from kvlab.fast.vllm.blocks import Layout
from kvlab.fast.vllm.settings import Settings, UnsupportedError


@dataclass(frozen=True)
class Place:
    """Where a request stands in a step, as the scheduler says."""

    request_id: str
    preemptions: int
    """How often the request was preempted: what it had kept before is gone."""
    prompt: int
    """Tokens that are read before any is written: after a preemption also those written before."""
    seen: int
    """Tokens after this step, of which ``tokens`` are new."""
    tokens: int
    last: int
    """Tokens at most, when the request ends."""
    siblings_name: str
    """Of the requests for texts of the same prompt, if a score has to see all of it; else empty."""
    follows_sibling: bool
    """Whether it keeps of the prompt what the first of them kept."""


@dataclass(eq=False)
class Request:
    """What a request has kept, and what its score remembers of it."""

    preemptions: int
    observed: int
    """Tokens that the score has observed, or need not."""
    evicted: set[int] = field(default_factory=set)
    """Numbers of blocks in the request."""
    waiting: list[Float[Tensor, "L m H d"]] = field(default_factory=list)
    """Queries of the earlier steps that the score has not observed, copied: no batch is kept."""
    remembered: list[Remembered] = field(default_factory=list)
    """What the score remembers of the kept entries and of the stream, for each cache."""
    failed: bool = False
    """Whether a method failed, so that the request is about to end."""

    def kept(self, seen: int, block: int) -> list[int]:
        """Return the numbers of the blocks that are kept, of a text of ``seen`` tokens."""
        return [number for number in range(-(-seen // block)) if number not in self.evicted]

    def kept_tokens(self, seen: int, block: int) -> int:
        """Return how many tokens are kept, of a text of ``seen`` tokens.

        Every evicted block was full: the one that is being written, which alone may not be, is
        always protected (`engine/granularity.py`).
        """
        return seen - block * len(self.evicted)


PromptState = tuple[set[int], list[Remembered]]
"""What the first of siblings has kept after so many tokens of the prompt: its `Request.evicted`,
and `Request.remembered`, of which there is nothing before the end of the prompt.

`Turn.leave` notes it, and `Turn.keep_as_left` of the others takes it over.
"""


class Requests:
    """All requests of a worker, in the layers of a table; ``every`` has those of the model."""

    def __init__(self, settings: Settings, layers: Sequence[str], every: Sequence[str]) -> None:
        self.settings, self.of_model = settings, len(every)
        self.numbers = [number for number, name in enumerate(every) if name in layers]
        """Numbers that the layers of this table have in the model."""
        self.place_of_layer = {every[n]: place for place, n in enumerate(self.numbers)}
        """By the names of this table's layers, in their order."""
        self.requests: dict[str, Request] = {}
        self.prompt_states: dict[str, dict[int, PromptState]] = {}
        """By the name of the siblings, and by the tokens of the prompt that were read."""
        self.evictions: list[tuple[str, int, tuple[int, ...]]] = []
        """Request, preemptions and numbers of blocks that the scheduler has not been told."""
        self.failures: list[tuple[str, str]] = []
        """Requests that a method failed, and why, of which it has not been told."""
        self.caches: Mapping[str, Tensor] = {}
        self.layout: Any = None
        self.places: Mapping[int, Place] = {}
        self._batch: Batch | None = None

    def begin(self, places: Mapping[int, Place], step: Any) -> None:
        """Begin a step; ``places`` has every request by the block that it writes its last token to.

        That block is its own in this step: blocks that are shared are full. ``step``: the
        connector's `Places`.
        """
        for request_id in step.ended:
            self.requests.pop(request_id, None)
        self.prompt_states = {k: x for k, x in self.prompt_states.items() if k in step.siblings}
        self.places = places

    def batch(self, metadata: Any) -> "Batch | None":
        """Return the batch of a step, the same for all layers; None outside of steps.

        Layers of one group are given the same metadata: another one begins another step.
        """
        if not self.places:
            return None
        if self._batch is None or self._batch.platform_metadata is not metadata:
            self._batch = Batch(self, metadata)
        return self._batch

    def fail(self, place: Place, error: Exception | str) -> None:
        """Let a request end, and keep nothing of it."""
        request = self.requests[place.request_id]
        request.failed, request.waiting, request.remembered = True, [], []
        self.failures.append((place.request_id, f"{self.settings.method} failed: {error}"))

    def end(self) -> tuple[list[tuple[str, int, tuple[int, ...]]], list[tuple[str, str]]]:
        """End a step, and return what was evicted in it, and what failed."""
        found = self.evictions, self.failures
        self.places, self._batch, self.evictions, self.failures = {}, None, [], []
        return found


class Row(NamedTuple):
    """A request of a batch."""

    place: Place
    request: Request
    queries: slice
    """Which of the batch's queries are its own: the newest one, or those of all its tokens."""


class Batch:
    """The requests of one step, as attention computes them."""

    def __init__(self, requests: Requests, platform_metadata: Any) -> None:
        # `Evicting.build` has noted its builder, whose class `backend.py` gives the settings, and
        # vLLM's CommonAttentionMetadata: the table of blocks, and lengths.
        builder, common = platform_metadata.kvlab
        self.owner, self.block = requests, requests.settings.block
        self.platform_metadata = platform_metadata
        if builder.kv_cache_spec.block_size != self.block:
            raise UnsupportedError("kvlab: the kernel must read blocks as large as vLLM's")
        if builder.settings != requests.settings:
            raise UnsupportedError("kvlab: another engine of this process was configured otherwise")
        self.tokens, self.table = common.num_actual_tokens, common.block_table_tensor
        starts = map(int, common.query_start_loc_cpu.numpy())
        # vLLM pads a batch at its end by requests without tokens: the others keep their rows
        tokens = [slice(*each) for each in pairwise(starts) if each[0] < each[1]]
        self.newest = self._sent([own.stop - 1 for own in tokens])
        slots = common.slot_mapping[self.newest].tolist()  # the first of two waits for the device
        self.rows = [self._row(n, *each) for n, each in enumerate(zip(slots, tokens, strict=True))]
        self.kept_metadata = platform_metadata
        """What attention is computed by: the platform's, or without blocks that were evicted."""
        if any(row.request.evicted for row in self.rows):
            self.kept_metadata = builder.build_again(common, **self._without_evicted(common))
        self.queries: Float[Tensor, "L rows H d"] | None = None
        self.attended_layers = 0

    def _sent(self, numbers: Sequence[Any]) -> Int[Tensor, "..."]:
        """Return numbers of the host on the device."""
        return torch.tensor(numbers, device=self.table.device)

    def _row(self, number: int, slot: int, tokens: slice) -> Row:
        """Return the request that writes its last token of this step to a slot.

        ``number`` is its row in the batch, and ``tokens`` say where its tokens stand.
        """
        place = self.owner.places.get(slot // self.block)
        if place is None or place.tokens != tokens.stop - tokens.start:
            raise RuntimeError("kvlab: vLLM's batch holds a request that was not scheduled")
        request = self.owner.requests.get(place.request_id)
        if request is None or request.preemptions != place.preemptions:
            request = Request(place.preemptions, place.seen - place.tokens)
            self.owner.requests[place.request_id] = request
        newest = slice(number, number + 1)
        return Row(place, request, tokens if self.owner.settings.policy.remembers else newest)

    def _without_evicted(self, common: Any) -> dict[str, Any]:
        """Return the table of blocks, and the lengths, without what was evicted."""
        kept = [row.request.kept(row.place.seen, self.block) for row in self.rows]
        wide, rows = max(map(len, kept)), len(kept)
        columns = self._sent([[*numbers, *[0] * (wide - len(numbers))] for numbers in kept])
        table = self.table.clone()
        table[:rows, :wide] = self.table[:rows].gather(1, columns)
        # The cache is invalidated: vLLM may have computed it from the lengths before.
        changed: dict[str, Any] = {"block_table_tensor": table, "_num_computed_tokens_cache": None}
        lengths = [row.request.kept_tokens(row.place.seen, self.block) for row in self.rows]
        for name in ("seq_lens", "seq_lens_cpu_upper_bound"):
            if (found := getattr(common, name)) is not None:
                changed[name] = found.clone()
                changed[name][:rows] = torch.tensor(lengths, dtype=found.dtype)
        return {**changed, "max_seq_len": max(lengths)}

    def attended(self, attention: Any, layer: Any, query: Float[Tensor, "tokens H d"]) -> bool:
        """Note the queries of a layer; say whether it was the last one."""
        requests, place = self.owner, self.owner.place_of_layer[layer.layer_name]
        if requests.layout is None:
            requests.layout = Layout.found(attention, layer, requests.caches[layer.layer_name])
        if requests.settings.policy.remembers or requests.settings.policy.needs.rows != "none":
            query = query[: self.tokens].view(self.tokens, attention.num_heads, -1)
            query = query if requests.settings.policy.remembers else query[self.newest]
            if self.queries is None:
                self.queries = query.new_empty((len(requests.numbers), *query.shape))
            self.queries[place] = query
            # The engine divides by √d; a model of vLLM's may scale otherwise.
            if (factor := attention.scale * query.shape[-1] ** 0.5) != 1:
                self.queries[place] *= factor
        self.attended_layers += 1
        return self.attended_layers == len(requests.numbers)
