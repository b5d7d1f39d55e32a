"""StreamingLLM: attention sinks and a sliding window (arXiv 2309.17453, §3.2).

Equations (numbered here):

1. keep = {j : position of j < s} ∪ {the last B − s entries}, with s sinks
"""

from dataclasses import dataclass, replace

from kvlab.reference.method import Example, Method, require_budget
from kvlab.reference.methods.full import Recency
from kvlab.reference.policy import Edges, EveryBlock, EverySeenBeyond, Policy


@dataclass(frozen=True)
class StreamingLLM(Method):
    """Keep the first tokens, which soak up attention, and the newest ones."""

    sinks: int = 4
    """First tokens of the text that are protected."""
    every: int = 1
    """Generated tokens between two evictions."""
    when_full: bool = False
    """Evict where the tokens seen reach budget + k·``every`` only, as llama.cpp does."""
    reposition: bool = False
    """Rotate keys and queries to their index inside the cache."""

    name = "streaming_llm"
    source = "Xiao et al., Efficient Streaming Language Models with Attention Sinks, 2309.17453"
    published = "2023-09"
    equations = ("StreamingLLM 1",)
    examples = (Example("streaming_llm@sinks=2"),)

    def policy(self, budget: int | None) -> Policy:
        budget = require_budget(self.name, budget)
        if not 0 <= self.sinks < budget:
            raise ValueError(
                f"sinks = {self.sinks} must be at least 0 and smaller than budget = {budget}"
            )
        full = EverySeenBeyond(self.every, start=budget)
        schedule = full if self.when_full else EveryBlock(self.every)
        edges = Edges(sinks=self.sinks, recent=budget - self.sinks)  # [StreamingLLM 1]
        policy = self.composed(Recency(), schedule, edges, budget)
        return replace(policy, reposition=self.reposition)
