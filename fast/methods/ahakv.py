"""AhaKV: sharpened recent attention, weighted by values (arXiv 2506.03762)."""

import torch

from kvlab.fast.engine.observation import Observation, parts
from kvlab.fast.engine.policy import Score, State
from kvlab.fast.engine.windows import among_candidates, mean_pool, remember_queries, window
from kvlab.fast.kernels.attention import softmax, visible
from kvlab.fast.kernels.notation import Bool, Candidates, Float, Int, PerEntry, Room, Scores, Tensor
from kvlab.fast.kernels.prefill import received_attention
from kvlab.reference.methods import ahakv as reference


def spread(
    raw: Float[Tensor, "N G rho w n"], mask: Bool[Tensor, "N G 1 w n"]
) -> Float[Tensor, "N G rho w 1"]:
    """Standard deviation of each row's visible logits."""
    count = mask.sum(dim=-1, keepdim=True).clamp(min=1)
    mean = (raw * mask).sum(dim=-1, keepdim=True) / count
    variance = ((raw - mean) ** 2 * mask).sum(dim=-1, keepdim=True) / count
    return torch.sqrt(variance)


class SharpenedRecentAttention(Score[reference.SharpenedRecentAttention]):
    """Step-gain attention of recent rows times the value prior."""

    tensors_alone = True

    def observe(self, state: State, seen: Observation) -> None:
        if self.spec.options.accumulation == "recent":
            remember_queries(state, seen, self.spec.options.recent)
            return
        for part in parts(seen.queries, len(seen.cache)):
            queries, positions = seen.queries[:, :, :, part], seen.query_positions[:, part]
            state.entries["accumulated"].add_(self.received(queries, positions, seen))

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        return self.prior(seen) * self.accumulated(state, seen)

    def accumulated(self, state: State, seen: Observation) -> PerEntry:
        """S, summed over the same number of rows for every candidate."""
        if self.spec.options.accumulation == "all":
            return state.entries["accumulated"]
        return self.received(*window(state, self.spec.options.recent), seen)

    def received(
        self,
        queries: Float[Tensor, "N G rho w d"],
        positions: Int[Tensor, "N w"],
        seen: Observation,
    ) -> PerEntry:
        """Sum the sharpened attention of these queries, mean over the query heads of a KV head."""
        excess = self.excess(positions, seen)
        gains = self.spec.options.gain_factor * torch.sqrt(2 * torch.log(excess))
        if self.spec.options.gain == "measured":
            return self.measured(queries, positions, seen, gains, excess > 1).sum(dim=3).mean(dim=2)
        gains = torch.where(excess > 1, gains.clamp(min=self.spec.options.gain_floor), 1.0)
        summed = received_attention(
            queries,
            seen.view.column("keys"),
            positions,
            seen.positions,
            None if self.spec.options.gain == "none" else gains,
            seen.view.softcap,
        )
        return summed / queries.shape[2]

    def excess(self, positions: Int[Tensor, "N w"], seen: Observation) -> Float[Tensor, "N w"]:
        """Tokens that compete for each of the k places of a row, at least 1."""
        competing = (positions + 1).double()
        decoding = positions >= seen.clock.prompt[:, 0]
        if self.spec.options.gain_in_decode == "cache":
            present = seen.present[:, 0].sum(dim=-1, keepdim=True)
            competing = torch.where(decoding, present.double(), competing)
        elif self.spec.options.gain_in_decode == "none":
            competing = torch.where(decoding, float(self.spec.target), competing)
        return (competing / self.spec.target).clamp(min=1.0)

    def measured(
        self,
        queries: Float[Tensor, "N G rho w d"],
        positions: Int[Tensor, "N w"],
        seen: Observation,
        gains: Float[Tensor, "N w"],
        exceeded: Bool[Tensor, "N w"],
    ) -> Float[Tensor, "N G rho w n"]:
        """Sharpened attention where the gain is divided by the spread that each row has."""
        raw, mask = seen.logits(queries), visible(positions, seen.positions)
        deviation = spread(raw, mask)
        flat = deviation <= 1e-6 * (raw * mask).abs().amax(dim=-1, keepdim=True)
        gain = gains[:, None, None, :, None].to(raw.dtype)
        gain = torch.where(flat, 1.0, gain / deviation.masked_fill(flat, 1.0))
        gain = gain.clamp(min=self.spec.options.gain_floor)
        return softmax(raw * torch.where(exceeded[:, None, None, :, None], gain, 1.0), mask)

    def prior(self, seen: Observation) -> PerEntry:
        """Smoothed value norms, relative to the largest; 1 if all are zero."""
        options = self.spec.options
        if options.value_prior == "none":
            return seen.values.new_ones(())
        norm = seen.values.norm(dim=-1)
        size = norm**2 if options.value_prior == "squared" else norm
        smoothed = among_candidates(size, None, seen, mean_pool, options.kernel, options.border)
        largest = smoothed.masked_fill(~seen.present, 0.0).amax(dim=-1, keepdim=True)
        return torch.where(largest > 0, smoothed / largest, 1.0)
