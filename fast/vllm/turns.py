"""What is done about a request when all layers have attended: its score observes, and it evicts.

Queries wait until a block is full or a decision is due; then the score observes them at once. Keys,
and values, are read from vLLM's blocks if the score asks for them. The layers of a request are the
batch axis of the engine's cache, and decide together. Observing, rating and deciding are the
engine's.
"""

from collections.abc import Iterator

import torch
from vllm.distributed import tensor_model_parallel_all_gather as all_gather

from kvlab.fast.engine.serving import Kept, PromptState
from kvlab.fast.kernels.common import to_device
from kvlab.fast.kernels.notation import Int, Queries, Tensor, Vectors
from kvlab.fast.vllm.blocks import Layout
from kvlab.fast.vllm.requests import Batch, Eviction
from kvlab.reference.observation import Clock


def take_turns(batch: Batch, layout: Layout, softcap: float | None) -> None:
    """Let the scores of all requests observe and decide, except of those that end before.

    A request whose method fails ends; until then its oldest blocks are evicted. The others go on.
    What was decided comes from the device at once, for all requests.
    """
    turns, requests, settings = [], batch.requests, batch.requests.settings
    for row, (place, request, _) in enumerate(batch.rows):
        if -(-place.longest // settings.block) <= settings.blocks:
            continue
        turns.append(turn := Turn(batch, row, layout, softcap))
        try:
            if not request.failed:
                turn.take()
        except Exception as error:
            requests.fail(place, error)
        if request.failed:
            turn.evict_oldest()
    decided = [turn for turn in turns if not turn.request.failed and turn.decided is not None]
    # The second of two reads from the device.
    found = torch.cat([turn.decided for turn in decided]).tolist() if decided else []
    for turn in decided:
        (wrong, *stay), found = found[: len(turn.decided)], found[len(turn.decided) :]
        if wrong:
            requests.fail(turn.place, "a score is NaN: the model's keys or values are no numbers")
            turn.evict_oldest()
        else:
            turn.evict({*stay})
    for turn in turns:
        if turn.leaves and not turn.request.failed:
            turn.leave()


class Turn:
    """What is done about one request when all layers have attended."""

    def __init__(self, batch: Batch, row: int, layout: Layout, softcap: float | None) -> None:
        self.requests, self.settings = batch.requests, batch.requests.settings
        self.table, self.layout, self.softcap = batch.table[row], layout, softcap
        self.place, self.request, queries = batch.rows[row]
        self.new = [] if batch.queries is None else [batch.queries[:, queries]]
        """Queries of this step, in the batch; nothing if the score reads none."""
        self.decided: Int[Tensor, " n"] | None = None
        """Whether a score was NaN, and for every entry that stays the number of its block."""
        self.leaves = False
        """Whether siblings keep what this request keeps."""

    def take(self) -> None:
        """Observe and decide, if it is time.

        A prompt has blocks of its own (`Settings.prompt_block`); when a score observes depends on
        whether it remembers, which it does until its schedule ends:

        | score | while the prompt is read | afterwards |
        |---|---|---|
        | remembers nothing | before a decision | before a decision |
        | remembers | in every step | when a block of vLLM's is full, and before a decision |
        | remembers, on the host | when a block of the prompt is full, or its last | the same |
        """
        place, settings, request = self.place, self.settings, self.request
        schedule, seen, size = settings.specification.schedule, place.seen, settings.prompt_block
        reads = seen - place.new < place.prompt
        # Nothing is evicted while a block of the prompt is half read.
        ended = not reads or seen == place.prompt or seen % size == 0
        if reads and place.follows_sibling:
            if ended:
                self.keep_as_left()
            return
        self.leaves = reads and ended and bool(place.siblings_name)
        # A schedule counts a block of the prompt as one step, in however many vLLM read it.
        clock = Clock(seen, (seen - 1) % size + 1 if reads else place.new, place.prompt)
        decides = ended and len(request.kept) > settings.blocks and schedule.due(clock)
        observes = (ended or not settings.policy.on_host) if reads else seen % settings.block == 0
        remembers = settings.policy.remembers and not schedule.ended(clock)
        if decides or (observes and remembers):
            self.observe(decides)
        if decides or observes or not remembers:
            request.waiting.clear()
            request.observed = place.seen
        else:
            request.waiting += [queries.clone() for queries in self.new]

    def leave(self) -> None:
        """Leave what is kept for siblings; what is remembered of it only at the prompt's end."""
        place, request = self.place, self.request
        remembered = request.remembered if place.seen == place.prompt else []
        state = PromptState({*request.kept}, remembered)
        self.requests.prompt_states[place.siblings_name, place.seen] = state

    def keep_as_left(self) -> None:
        """Keep what a sibling kept of the same tokens."""
        place = self.place
        left = self.requests.prompt_states.get((place.siblings_name, place.seen))
        if left is None:
            raise RuntimeError("it failed for another text of this prompt")
        stay, self.request.remembered = left
        self.request.observed = place.seen
        self.evict(stay)

    def observe(self, decides: bool) -> None:
        """Let the score observe what waits; decide, and keep what it remembers of the rest."""
        place, request = self.place, self.request
        given = self.settings.policy, request.kept, self.settings.block, place.seen, place.prompt
        layers = self.requests.layer_numbers, self.requests.layers_of_model
        kept = Kept(*given, *layers, self.read, self.softcap)
        seen = kept.observe(self.queries(), [*self.pieces()], request.remembered)
        if decides:
            self.decided = kept.decide(seen)
        request.remembered = kept.remembered(seen)

    def read(self, name: str) -> Vectors:
        """Return keys or values of what is kept, of all layers, from vLLM's blocks."""
        ids = self.table[to_device(self.request.kept, self.table.device)].long()
        caches = [self.requests.caches[layer] for layer in self.requests.index_of_layer]
        tokens = self.request.kept_tokens(self.place.seen, self.settings.block)
        return _of_ranks(self.layout.read(name, caches, ids, tokens))

    def queries(self) -> Queries:
        """Return the queries that wait, of all layers; zeros if no score reads them."""
        L, (_, G, d) = len(self.requests.layer_numbers), self.layout.shape
        if self.new:
            waiting = torch.cat([*self.request.waiting, *self.new], dim=1)
            return _of_ranks(waiting.unflatten(2, (G, -1)).permute(0, 2, 3, 1, 4))
        cache = next(iter(self.requests.caches.values()))
        return _of_ranks(cache.new_zeros((L, G, 1, self.place.seen - self.request.observed, d)))

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Yield where the blocks begin and end in which the score observes what waits.

        That is the newest token, if it remembers nothing of the others; all at once, or, where it
        cannot observe tokens after the prompt together, each of these tokens.
        """
        first, seen, policy = self.request.observed, self.place.seen, self.settings.policy
        if not policy.remembers:
            yield seen - 1, seen
        elif seen <= self.place.prompt or policy.needs.may_wait or policy.needs.rows != "all":
            yield first, seen
        else:
            yield from ((token, token + 1) for token in range(first, seen))

    def evict_oldest(self) -> None:
        """Evict blocks of a request that failed, so that it holds what others count on."""
        self.evict({*self.request.kept[-self.settings.blocks :]})

    def evict(self, stay: set[int]) -> None:
        """Evict all blocks but those that stay."""
        evicted, place = self.request.evict(stay), self.place
        self.requests.evictions.append(Eviction(place.request_id, place.preemptions, evicted))


def _of_ranks(own: Tensor) -> Tensor:
    """Join what all ranks have of their heads."""
    return all_gather(own.contiguous(), dim=1)
