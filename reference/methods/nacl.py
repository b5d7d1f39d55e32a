"""NACL: proxy tokens and a random rest (arXiv 2408.03675, §3).

Equations (numbered here):

1. F_j = Σ_i a_ij over the proxy queries i, the last 1 % of the prompt
2. keep the K_p largest F, and K_r of the rest drawn without replacement from softmax(F/T)
"""

from dataclasses import dataclass

import numpy as np

from kvlab.reference.attention import softmax
from kvlab.reference.method import Example, Method
from kvlab.reference.observation import NO_ATTENTION, Array, Marks, Observation, Scores, State
from kvlab.reference.policy import AfterPrefill, Policy, Protect, Score
from kvlab.reference.selection import rank
from kvlab.reference.windows import remember_queries, window_attention, window_logits

PROTECTED = 0.01
"""Share of the prompt that is protected."""


@dataclass(frozen=True)
class ProxyAndSample(Score):
    """Rank by proxy attention first, then by a random draw weighted with it."""

    options: "NACL"

    needs = NO_ATTENTION
    ordinal = True

    def drawn(self, seen: Observation) -> dict[str, Array]:
        rng = np.random.default_rng([self.options.seed, seen.layer])
        return {"noise": rng.gumbel(size=seen.positions.shape)}

    def proxies(self, prompt: int) -> int:
        """Number of proxy queries: a share of the prompt, at least one."""
        return max(1, int(self.options.proxy_share * prompt))

    def observe(self, state: State, seen: Observation) -> State:
        if not seen.clock.prefilling:
            return state
        return remember_queries(state, seen, self.proxies(seen.clock.prompt))

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        """Return each entry's rank: the proxy part on top, the drawn ones next."""
        proxy = self.proxy_attention(state, seen)
        drawn = int(room * self.options.random_part)
        by_proxy = rank(np.where(candidates, proxy, -np.inf))
        top = by_proxy >= proxy.shape[1] - (room - drawn)
        perturbed = proxy / self.options.temperature + self.drawn(seen)["noise"]
        keys = np.stack([np.where(candidates, perturbed, -np.inf), top])
        order = np.lexsort(keys, axis=-1)  # [NACL 2]
        ranks = np.empty(order.shape)
        np.put_along_axis(ranks, order, np.arange(float(order.shape[1])), axis=-1)
        return ranks

    def proxy_attention(self, state: State, seen: Observation) -> Scores:
        """Sum the proxies' attention, mean over the group."""
        size = self.proxies(seen.clock.prompt)
        if self.options.causal:
            attention = window_attention(state, seen, size)
        else:
            attention = softmax(window_logits(state, seen, size)[0])
        return attention.sum(axis=2).mean(axis=1)  # [NACL 1]


@dataclass(frozen=True)
class SinksAndTail(Protect):
    """The first ``sinks`` tokens and the last tokens of the prompt, together `PROTECTED` of it."""

    options: "NACL"

    def tail(self, prompt: int) -> int:
        """Entries protected at the end of the prompt."""
        if self.options.recent is not None:
            return self.options.recent
        return max(0, int(PROTECTED * prompt) - self.options.sinks)

    def protected(self, seen: Observation) -> Marks:
        n = seen.positions.shape[1]
        tail = np.arange(n) >= n - self.tail(seen.clock.prompt)
        return (seen.positions < self.options.sinks) | tail

    def count(self, prompt: int) -> int:
        return self.options.sinks + self.tail(prompt)


@dataclass(frozen=True)
class NACL(Method):
    """One eviction after the prompt, partly random, so a biased score does not decide alone."""

    proxy_share: float = 0.01
    """Share of the prompt whose queries are proxies; at least one is."""
    sinks: int = 4
    """First tokens of the text that are protected."""
    recent: int | None = None
    """Protected entries at the end of the prompt; None: 1 % of the prompt less the sinks."""
    random_part: float = 7 / 19
    """Share of the room drawn at random, rounded down: the paper's 7 % besides 12 %."""
    temperature: float = 1.0
    """T of the draw: the lower, the closer to the largest F."""
    causal: bool = True
    """Whether a proxy sees only the entries up to its own position."""
    seed: int = 0
    """Seed of the draw; layers and heads draw independently."""

    name = "nacl"
    source = "Chen et al., NACL: A General and Effective KV Cache Eviction Framework, 2408.03675"
    published = "2024-08"
    equations = ("NACL 1", "NACL 2")
    limits = {"sinks": 0, "seed": 0, "proxy_share": (0, 1), "random_part": (0, 1)}
    examples = (
        Example("nacl@proxy_share=0.2,sinks=2,recent=2"),
        Example("nacl@proxy_share=0.2,sinks=2,recent=2,causal=false", shared=False),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.temperature > 0:
            raise ValueError(f"temperature = {self.temperature} must be positive")

    def policy(self, budget: int | None) -> Policy:
        return self.composed(ProxyAndSample(self), AfterPrefill(), SinksAndTail(self), budget)
