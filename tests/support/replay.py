"""Feeds one stream to both sides, step by step, and says where they differ.

Both sides see the same inputs, already rounded to the working precision. Where keep sets differ,
the difference has to lie within the tolerance of the threshold; the reference then goes on with
what the fast side kept, so that every step is compared from the same state.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from kvlab.fast import compress
from kvlab.fast.engine.cache import BatchClock, LayerCache
from kvlab.fast.engine.host import on_arrays
from kvlab.fast.engine.layers import Layers
from kvlab.fast.engine.step import Block, attend, begin, finish
from kvlab.fast.huggingface.rotary import rotation
from kvlab.fast.methods import port
from kvlab.reference import policy as reference
from kvlab.reference.cache import LayerCache as ReferenceCache
from kvlab.reference.granularity import OneForAllHeads
from kvlab.reference.observation import Clock
from kvlab.reference.policy import Policy
from kvlab.reference.precisions import OnArrival
from kvlab.reference.step import (
    Block as ReferenceBlock,
    Decision,
    StepResult,
    apply,
    empty_cache,
    look,
)
from support.models import prompts
from support.tolerances import BFLOAT16_OUTPUT, FLOAT32_SCORES, FLOAT64


@dataclass
class Tolerance:
    """How far fast may be from the reference."""

    score: float
    """Share of the largest score of a head."""
    output: float


@dataclass
class Found:
    """What a comparison saw; a test asserts that it saw enough."""

    steps: int = 0
    evictions: int = 0
    coded: int = 0
    """Entries that are stored as codes after the last step."""


class ReferenceRow:
    """One sequence on the reference's side."""

    def __init__(self, policy: Policy, kv_heads: int, head_dim: int) -> None:
        self.policy = policy
        self.cache = empty_cache(policy, kv_heads, head_dim)

    def step(self, block: ReferenceBlock, kept: list[np.ndarray], tolerance: Tolerance) -> "Seen":
        """Take a block, but keep what the fast side kept if it may."""
        looked = look(self.policy, self.cache, block)
        decision, positions = looked.decision, looked.seen.positions
        if decision is None:
            self.cache = looked.cache
            return Seen(looked.output, positions)
        keep, places = decision.keep, np.zeros(positions.shape[1])
        if decision.scores is not None:
            places = uncertain_places(self.policy, looked, decision, tolerance)
            if isinstance(self.policy.precision, reference.Full | OnArrival):
                ours = [np.flatnonzero(np.isin(p, k)) for p, k in zip(positions, kept, strict=True)]
                assert_near_the_threshold(decision, ours, tolerance.score, places)
                keep = np.array(ours)
        result = apply(self.policy, looked, keep)
        self.cache = result.cache
        return Seen(result.output, positions, decision.scores, decision.candidates, places)


@dataclass
class Seen:
    """What the reference computed in a step."""

    output: np.ndarray
    positions: np.ndarray
    scores: np.ndarray | None = None
    candidates: np.ndarray | None = None
    places: np.ndarray | None = None


def uncertain_places(
    policy: Policy, looked: StepResult, decision: Decision, tolerance: Tolerance
) -> np.ndarray:
    """Return by how much each entry's score may differ because the score counts places.

    Where heads keep their favourites in turns, rounding swaps the places of entries that a head
    scores nearly alike: at most by as many places as there are such entries.
    """
    score, candidates = policy.score, decision.candidates
    if not (isinstance(score, OneForAllHeads) and score.join == "union"):
        return np.zeros(candidates.shape[1])
    inner = score.inner.score(looked.cache.state, looked.seen, candidates, decision.room)
    size = np.abs(np.where(candidates, inner, 0)).max(axis=1)
    near = np.abs(inner[:, :, None] - inner[:, None]) <= tolerance.score * size[:, None, None]
    return (near & candidates[:, None]).sum(axis=2).max(axis=0) - 1.0


def assert_near_the_threshold(decision: Decision, ours, tolerance: float, places) -> None:
    """Fail if two keep sets differ by more than entries whose scores are near the threshold."""
    scores, candidates = decision.scores, decision.candidates
    assert scores is not None
    for g, (theirs, mine) in enumerate(zip(decision.keep, ours, strict=True)):
        assert len(theirs) == len(mine), (theirs, mine)
        apart = np.setxor1d(theirs, mine)
        if len(apart) == 0:
            continue
        assert candidates[g, apart].all(), "a protected entry was evicted"
        threshold = scores[g, np.intersect1d(theirs, np.flatnonzero(candidates[g]))].min()
        size = np.abs(scores[g, candidates[g]]).max()
        margin = tolerance * size + places[apart]
        assert (np.abs(scores[g, apart] - threshold) <= margin).all(), (
            f"keep sets differ in entries {apart} of head {g}, scores {scores[g, apart]}, "
            f"threshold {threshold}"
        )


class Comparison:
    """A batch of sequences in some layers, on both sides."""

    def __init__(self, policy: Policy, tolerance: Tolerance, layers: int = 1) -> None:
        self.policy, self.tolerance = policy, tolerance
        self.layers = Layers(port(policy), layers, watch=self.compare)
        self.rows: dict[int, list[ReferenceRow]] = {}
        """The sequences of every layer on the reference's side."""
        self.found = Found()

    def feed(self, blocks: Sequence[Block]) -> None:
        """Let both sides take the blocks of all layers, and compare."""
        begin(self.layers, blocks[0].clock)
        for place, block in enumerate(blocks):
            attend(self.layers, place, block)
        finish(self.layers)

    def compare(self, block: Block, result) -> None:
        """Let the reference take a block that the fast side has taken."""
        N, G, _, _, d = block.queries.shape
        rows = self.rows.setdefault(
            block.layer, [ReferenceRow(self.policy, G, d) for _ in range(N)]
        )
        cache = result.cache
        self.found.steps += 1
        for number, clock in enumerate(block.clock.rows):
            if clock.block == 0:
                continue
            given = reference_block(block, number)
            kept = [row[row >= 0] for row in np.sort(as_array(cache.positions[number]), axis=-1)]
            seen = rows[number].step(given, kept, self.tolerance)
            self.found.evictions += seen.scores is not None
            theirs = rows[number].cache
            assert np.array_equal(np.array(kept), theirs.positions)
            new = result.output[number, :, :, -clock.block :]
            assert_close(as_array(new), seen.output, self.tolerance.output)
            if seen.scores is not None and result.scores is not None:
                self.compare_scores(number, seen, result)
            self.compare_storage(number, theirs, cache)

    def compare_scores(self, number: int, seen: Seen, result) -> None:
        positions = result.positions[number]
        order = positions.argsort(dim=-1)[:, positions.shape[1] - seen.positions.shape[1] :]
        ours = as_array(result.scores[number].expand_as(positions).gather(-1, order))
        ours, scores = (np.minimum(x, np.finfo(np.float32).max) for x in (ours, seen.scores))
        for mine, theirs, candidates in zip(ours, scores, seen.candidates, strict=True):
            size = np.abs(theirs[candidates & (theirs < 1e30)]).max(initial=1e-12)
            compared = candidates & (np.abs(mine - theirs) > seen.places)
            assert_close(mine[compared], theirs[compared], self.tolerance.score * size, 1e-3)

    def compare_storage(self, number: int, theirs: ReferenceCache, cache: LayerCache) -> None:
        """Compare widths, and what is read back of entries that are stored as codes."""
        order = cache.positions[number].argsort(dim=-1)
        order = order[:, order.shape[1] - theirs.positions.shape[1] :]
        bits = as_array(cache.bits()[number].gather(-1, order))
        assert np.array_equal(bits, theirs.keys.bits)
        if cache.mixed is None:
            return
        self.found.coded = int((bits < 16).sum())
        for storage, expected in zip(cache.mixed, (theirs.keys, theirs.values), strict=True):
            read = storage.read(torch.float64)[number]
            index = order[..., None].expand(-1, -1, read.shape[-1])
            found = as_array(read.gather(1, index))
            assert_close(found, expected.vectors, self.tolerance.output)


def assert_close(found: np.ndarray, expected: np.ndarray, atol: float, rtol: float = 0) -> None:
    """Let NumPy look, and say what is wrong, only where a difference is not simply small."""
    assert found.shape == expected.shape
    with np.errstate(invalid="ignore"):
        small = np.abs(found - expected) <= atol + rtol * np.abs(expected)
    if not small.all():
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


def reference_block(block: Block, number: int) -> ReferenceBlock:
    """Return what one sequence sees of a block, without its padding."""
    clock = block.clock.rows[number]
    m = clock.block
    return ReferenceBlock(
        clock,
        block.layer,
        as_array(block.queries[number, :, :, -m:]),
        as_array(block.keys[number, :, -m:]),
        as_array(block.values[number, :, -m:]),
        as_array(block.confidence[number, : clock.seen]),
        None if block.rotate is None else on_arrays(block.rotate),
        block.softcap,
        None if block.hidden_states is None else as_array(block.hidden_states[number, -m:]),
        block.layers,
        None if block.projection is None else as_array(block.projection),
    )


def rotation_of(layer: int, d: int):
    """Return a rotary embedding that no other layer has."""
    frequencies = torch.tensor(10.0 + layer) ** (-torch.arange(0, d, 2) / d)
    return rotation(frequencies, slice(d // 2), slice(d // 2, d))


def as_array(x: torch.Tensor) -> np.ndarray:
    array = x.detach().cpu()
    return (array.double() if array.is_floating_point() else array).numpy()


def random_blocks(seed: int, heads, prompts, steps: int, block_size, dtype, layers: int = 1):
    """Yield blocks of random sequences, one per layer: prompts, then ``steps`` single tokens."""
    G, rho, d = heads
    rng = np.random.default_rng(seed)
    longest, total = max(prompts), max(prompts) + steps
    N = len(prompts)

    def draw(*shape):
        return [torch.tensor(rng.normal(size=shape)).to(dtype) for _ in range(layers)]

    queries, keys, values = draw(N, G, rho, total, d), draw(N, G, total, d), draw(N, G, total, d)
    confidence = torch.tensor(rng.random((N, total)))
    for row, prompt in enumerate(prompts):
        confidence[row, :prompt] = torch.nan
    padding = torch.tensor([longest - prompt for prompt in prompts])
    borders = [*range(0, longest, block_size or longest), *range(longest, total + 1)]
    for first, last in pairwise(borders):
        column = torch.arange(first, last) - padding[:, None]
        positions = torch.where(column >= 0, column, -1).to(torch.int32)
        rows = tuple(
            Clock(max(0, last - pad), int((column[row] >= 0).sum()), prompts[row])
            for row, pad in enumerate(padding.tolist())
        )
        clock = BatchClock(rows, positions, torch.tensor(prompts, dtype=torch.int32)[:, None, None])
        part = slice(first, last)
        cut = [
            (2 * q[..., part, :], k[:, :, part], v[:, :, part])
            for q, k, v in zip(queries, keys, values, strict=True)
        ]
        yield [
            Block(clock, layer, *vectors, confidence, rotation_of(layer, d), layers=layers)
            for layer, vectors in enumerate(cut)
        ]


def follow_with_reference(model, policy: Policy, tolerance: Tolerance) -> bool:
    """Generate, and let the reference take every block that every compressed layer is given.

    Returns:
        Whether the layers shared a cache in the end.
    """
    comparison = Comparison(policy, tolerance)
    with compress(model, policy, block_size=6, watch=comparison.compare) as cache:
        inputs = prompts([21, 13])
        model.generate(**inputs, past_key_values=cache, max_new_tokens=14, do_sample=False)
    assert set(comparison.rows) == {layer.number for layer in cache.compressed_layers}
    assert comparison.found.steps == len(comparison.rows) * (4 + 13)
    return len(cache.text.layers.groups) == 1


HEADS = {"mha": (4, 1, 8), "gqa": (2, 2, 8), "mqa": (1, 4, 8)}
DTYPES = {
    "float64": (torch.float64, Tolerance(FLOAT64, FLOAT64)),
    "float32": (torch.float32, Tolerance(FLOAT32_SCORES, FLOAT32_SCORES)),
    "bfloat16": (torch.bfloat16, Tolerance(FLOAT32_SCORES, BFLOAT16_OUTPUT)),
}
