"""The oracle: a policy that knows what the rest of a run will need, the ceiling of comparisons.

It is no method, as it reads the solution of the problem. A comparison names it among its methods.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from kvlab.fast.engine.cache import State
from kvlab.fast.engine.observation import Observation
from kvlab.fast.engine.policy import Score
from kvlab.fast.engine.twins import twin_of
from kvlab.fast.kernels.notation import Candidates, Room, Scores
from kvlab.reference import policy as reference
from kvlab.reference.cache import State as ReferenceState
from kvlab.reference.notation import Array, Marks, Scores as ReferenceScores
from kvlab.reference.observation import NO_ATTENTION, Observation as ReferenceObservation
from kvlab.reference.policy import Edges, Entries, EveryBlock, Policy


@dataclass(frozen=True, eq=False)
class Foreseen(reference.Score):
    """Rates an entry higher if it is used sooner."""

    next_use: Int[Array, "N t t"]
    """For every problem, moment and entry, the query that uses the entry next."""

    needs = NO_ATTENTION

    @property
    def signed(self) -> bool:
        return True

    def score(
        self, state: ReferenceState, seen: ReferenceObservation, candidates: Marks, room: int
    ) -> ReferenceScores:
        """Rate the entries of one sequence: the first problem's."""
        last = self.next_use.shape[1] - 1
        moment, places = min(seen.clock.seen - 1, last), np.minimum(seen.positions, last)
        return -self.next_use[0, moment][places].astype(np.float64)


@twin_of(Foreseen)
class ForeseenInBatch(Score[Foreseen]):
    """The same for a batch; a sequence that outruns its solution stays at its last moment."""

    def observe(self, state: State, seen: Observation) -> None:
        if "problem" not in state.stream:  # sequences that have ended leave the batch
            rows = torch.arange(len(seen.positions), device=seen.positions.device)
            state.stream["problem"] = rows % len(self.spec.next_use)  # layers decide at once

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        next_use = self.spec.next_use
        batch, last = len(seen.positions), next_use.shape[1]
        moments = seen.clock.seen.reshape(batch).clamp(max=last).cpu().numpy() - 1
        problems = state.stream["problem"].cpu().numpy()
        following = torch.from_numpy(next_use[problems, moments])
        places = seen.positions.clamp(min=0, max=last - 1).long()
        found: Tensor = following.to(places.device)[:, None].expand(-1, places.shape[1], -1)
        return -torch.gather(found, 2, places).to(seen.queries.dtype)


def oracle_policy(next_uses: Sequence[Int[Array, "_ _"]], budget: int, recent: int) -> Policy:
    """Return the policy that evicts what is used last next, of unused entries the oldest.

    ``next_uses`` are those of a batch's problems, see `kvlab.reference.tasks.jumps_oracle`. The
    ``recent`` newest entries are protected.
    """
    longest = max(map(len, next_uses))
    unused = 2 * longest - np.arange(longest, dtype=np.int32)
    table = np.tile(unused, (len(next_uses), longest, 1))
    for row, each in zip(table, next_uses, strict=True):
        t = len(each)
        row[:t, :t] = np.where(each < longest, each, unused[:t])
    return Policy("oracle", Foreseen(table), EveryBlock(1), Edges(recent=recent), Entries(budget))
