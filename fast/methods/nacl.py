"""NACL: proxy tokens and a random rest (arXiv 2408.03675)."""

import numpy as np
import torch

from kvlab.fast.engine.policy import Clock, Observation, Protect, Score, State
from kvlab.fast.engine.windows import remember_queries, window, window_logits
from kvlab.fast.kernels.attention import softmax
from kvlab.fast.kernels.common import to_device
from kvlab.fast.kernels.keep import in_ascending_position, last_in_use, rank
from kvlab.fast.kernels.notation import Candidates, Marks, PerEntry, Room, Scores
from kvlab.reference.methods import nacl as reference


class ProxyAndSample(Score[reference.ProxyAndSample]):
    """Rank by proxy attention first, then by a random draw weighted with it."""

    observes_tensors_alone = True

    def observe(self, state: State, seen: Observation) -> None:
        if seen.clock.prefilling:
            remember_queries(state, seen, max(self.proxies(seen)))

    def proxies(self, seen: Observation) -> list[int]:
        """Number of proxy queries of each sequence."""
        return [self.spec.proxies(row.prompt) for row in seen.clock.rows]

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        order = seen.positions, seen.cache.ordered
        proxy, into_slots = in_ascending_position(self.proxy_attention(state, seen), *order)
        open_entries = seen.present if candidates is None else candidates & seen.present
        open_entries = in_ascending_position(open_entries.expand_as(proxy), *order)[0]
        by_proxy = rank(proxy.masked_fill(~open_entries, -torch.inf))
        sure = [places - int(places * self.spec.options.random_part) for places in room]
        sure_places = to_device(sure, proxy.device)[:, None, None]
        top = by_proxy >= proxy.shape[-1] - sure_places
        perturbed = proxy / self.spec.options.temperature + self.noise(seen)
        drawn = rank(perturbed.masked_fill(~open_entries, -torch.inf))
        ranks = rank((drawn + top * proxy.shape[-1]).to(proxy.dtype))
        return into_slots((ranks - (~seen.present).sum(dim=-1, keepdim=True)).to(proxy.dtype))

    def noise(self, seen: Observation) -> PerEntry:
        """Draw each sequence's noise as the reference does, for its own entries in cache order."""
        N, G, n = seen.positions.shape
        noise = np.zeros((N, G, n))
        for number, count in enumerate(seen.cache.counts):
            layer = seen.numbers[number // seen.cache.sequences]
            rng = np.random.default_rng([self.spec.options.seed, layer])
            noise[number, :, n - count :] = rng.gumbel(size=(G, count))
        return torch.from_numpy(noise).to(seen.queries)

    def proxy_attention(self, state: State, seen: Observation) -> PerEntry:
        """Sum the proxies' attention, mean over the group."""
        sizes = self.proxies(seen)
        raw, mask = window_logits(state, seen, max(sizes))
        w = raw.shape[3]
        is_proxy = last_in_use(w, [min(w, size) for size in sizes], raw.device)[:, 0]
        is_proxy = (is_proxy & (window(state, max(sizes))[1] >= 0))[:, None, None, :, None]
        visible = mask if self.spec.options.causal else seen.present[:, :, None, None, :]
        return softmax(raw, visible & is_proxy).sum(dim=3).mean(dim=2)


class SinksAndTail(Protect[reference.SinksAndTail]):
    """The first ``sinks`` and the last tokens of the prompt, together a share of the prompt."""

    def protected(self, seen: Observation) -> Marks:
        device = seen.positions.device
        tails = to_device([self.spec.tail(row.prompt) for row in seen.clock.rows], device)
        oldest = seen.clock.seen - tails[:, None, None]
        return (seen.positions < self.spec.options.sinks) | (seen.positions >= oldest)

    def count(self, clock: Clock, entries: int) -> int:
        return min(clock.seen, self.spec.count(clock.prompt))

    def edges(self, clock: Clock, entries: int) -> tuple[int, int]:
        return self.spec.options.sinks, self.spec.tail(clock.prompt)
