"""The memory and the error of a policy, measured along a given continuation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvlab.reference.attention import attend, visible
from kvlab.reference.generate import Session, advance, choose, log_softmax, prefill
from kvlab.reference.notation import Array, Bool, Float, Queries
from kvlab.reference.policy import Policy
from kvlab.reference.step import Block, StepResult
from kvlab.reference.transformer import Transformer

PerStep = Float[Array, " steps"]
StepLogits = Float[Array, "steps vocab"]


@dataclass(frozen=True)
class Measurement:
    """One run; every array has one value per token fed after the prompt's last block.

    The first value belongs to the end of prefill.
    """

    output_error: PerStep
    """‖X − X'‖₂ per query head, mean over heads and layers (LazyEviction Eq. 4, CAOTE Eq. 9)."""
    kl: PerStep
    """KL divergence in nats of the next-token distribution from the full cache's."""
    agreement: PerStep
    """1 where the likeliest next token is that of the full cache."""
    entries: PerStep
    """Entries kept per KV head, mean over layers."""
    nbytes: PerStep
    """Bytes of keys and values in all layers, scales and zero points included."""
    average_bits: PerStep
    """Bits stored per element of the full cache, scales and zero points included."""
    after_eviction: Bool[Array, " steps"]
    """Whether the step's last token attended after an eviction; until then nothing is missing."""


@dataclass
class DenseShadow:
    """Everything that the layers ever saw, and the error of each step against it."""

    keys: dict[int, Array] = field(default_factory=dict)
    """Per layer, ``[G, t, d]``."""
    values: dict[int, Array] = field(default_factory=dict)
    errors: list[float] = field(default_factory=list)

    def watch(self, block: Block, result: StepResult) -> None:
        """Compare the block's output with attention over everything seen, for the same queries."""
        keys, values = block.keys, block.values
        if block.layer in self.keys:
            keys = np.concatenate([self.keys[block.layer], keys], axis=1)
            values = np.concatenate([self.values[block.layer], values], axis=1)
        self.keys[block.layer], self.values[block.layer] = keys, values
        positions = block.clock.positions
        everything = np.stack([np.arange(block.clock.seen)] * len(keys))
        mask = visible(positions, everything) if len(positions) > 1 else None
        dense, _ = attend(block.queries, keys, values, mask)
        self.errors.append(output_error(dense, result.output))

    def mean_error(self) -> float:
        """Return the mean error of the last block over the layers, and start anew."""
        error = float(np.mean(self.errors))
        self.errors.clear()
        return error


def output_error(dense: Queries, output: Queries) -> float:
    """Mean distance of two attention outputs over heads and queries."""
    return float(np.linalg.norm(dense - output, axis=-1).mean())


def teacher_forced(
    model: Transformer,
    policy: Policy,
    prompt: Sequence[int],
    continuation: Sequence[int],
    full_logits: StepLogits | None = None,
) -> tuple[Measurement, StepLogits]:
    """Feed all but the last token of a continuation, and compare every step with the full cache.

    ``full_logits`` is what a run with the full cache returned; None: this run is the yardstick.
    Also returned are the logits of every step.
    """
    if len(continuation) == 0:
        raise ValueError("continuation must hold at least one token")
    shadow, whole = DenseShadow(), []
    rng = np.random.default_rng()

    def watch(block: Block, result: StepResult) -> None:
        shadow.watch(block, result)
        whole.append(attended_to_all(policy, block, result))

    row, session = prefill(model, policy, prompt, watch=watch)
    logits, columns = [row], [_memory(session, shadow.mean_error())]
    for token in continuation[:-1]:
        _, confidence = choose(logits[-1], 0.0, rng)
        rows, session = advance(session, [token], confidence, watch)
        logits.append(rows[-1])
        columns.append(_memory(session, shadow.mean_error()))
    written = np.stack(logits)
    yardstick = written if full_logits is None else full_logits
    if yardstick.shape != written.shape:
        raise ValueError(
            f"full_logits has the shape {yardstick.shape}, the run gave {written.shape}"
        )
    after = np.arange(len(prompt), len(prompt) + len(written)) > min(whole)
    return measurement(np.array(columns), yardstick, written, after), written


def attended_to_all(policy: Policy, block: Block, result: StepResult) -> float:
    """Return how many tokens attended to all before them when a step evicts; else infinity."""
    if result.decision is None or result.decision.scores is None:
        return math.inf
    return block.clock.seen - (block.clock.block if policy.evict_before_attend else 0)


def measurement(
    columns: Float[Array, "steps 4"],
    full: StepLogits,
    written: StepLogits,
    after_eviction: Bool[Array, " steps"],
) -> Measurement:
    """Put a run together: errors, entries, bytes and average bits, and its logits."""
    error, entries, nbytes, average = columns.T
    kl, alike = divergence(full, written), full.argmax(axis=-1) == written.argmax(axis=-1)
    agreement = alike.astype(float)
    return Measurement(error, kl, agreement, entries, nbytes, average, after_eviction)


def divergence(full: StepLogits, other: StepLogits) -> PerStep:
    """KL(full ‖ other) of the next-token distributions, in nats."""
    log_p, log_q = log_softmax(full), log_softmax(other)
    return np.maximum((np.exp(log_p) * (log_p - log_q)).sum(axis=-1), 0.0)


def _memory(session: Session, error: float) -> tuple[float, ...]:
    heads, d = session.caches[0].positions.shape[0], session.model.config.head_dim
    elements = 2 * session.seen * heads * d * len(session.caches)
    entries = float(np.mean([len(cache) for cache in session.caches]))
    return error, entries, session.nbytes, 8 * session.nbytes / elements
