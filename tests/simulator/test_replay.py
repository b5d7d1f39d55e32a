"""A replay decides as a live run does, and measures what dense attention says."""

from dataclasses import replace

import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.generate import advance, start
from kvlab.reference.simulator.replay import Layer, replay
from kvlab.reference.simulator.trace import join_blocks
from kvlab.reference.tasks import reasoning
from support.noise import noise
from support.sampling import sampled
from support.tables import cases
from support.tolerances import FLOAT64

EARLY = "caote:tova@evict_before_attend=true"


@pytest.mark.usefixtures("shapes")
@pytest.mark.parametrize("spec", ["h2o", "tova", "lazy_eviction@window=4,threshold=0.05", EARLY])
def test_mass_and_error_are_those_of_dense_attention(spec):
    trace = noise(layers=1)
    ((fate,),) = replay(trace, [methods.get(spec, 12)])
    layer, t = Layer.of(trace, 0), 70
    early = spec == EARLY
    np.testing.assert_array_equal(fate.after_eviction, early | (np.arange(t) > fate.left.min()))
    full = layer.full_attention(0, t)
    for token in range(25, t):
        there = (fate.left >= token + early) & (np.arange(t) <= token)
        there[:, token] = True
        kept = full[:, :, token] * there[:, None]
        np.testing.assert_allclose(
            fate.mass[:, token], kept.sum(axis=-1).mean(axis=1), rtol=FLOAT64
        )
        output = (kept / kept.sum(axis=-1, keepdims=True))[:, :, None] @ layer.values[:, None]
        exact = (full[:, :, token][:, :, None] @ layer.values[:, None])[:, :, 0]
        error = np.linalg.norm(output[:, :, 0] - exact, axis=(1, 2))
        relative = error / np.linalg.norm(exact, axis=(1, 2))
        np.testing.assert_allclose(fate.error[:, token], relative, rtol=FLOAT64)


# --- live runs -----------------------------------------------------------------------------------


def live_run(reasoner, policy):
    """Let the embedded model write the beginning of a solution under a policy.

    Returns:
        What its layers were handed, as a trace, and the positions that each layer kept after every
        step.
    """
    model, tokenizer = reasoner
    problem = reasoning.held_out(1)[0]
    prompt = tokenizer.encode(problem.prompt).ids
    answer = tokenizer.encode(problem.solution).ids[:60]
    blocks, kept = {}, {}

    def watch(block, result):
        blocks.setdefault(block.layer, []).append((block.queries, block.keys, block.values))
        kept.setdefault(block.layer, {})[block.clock.seen - 1] = result.cache.positions

    session = start(model, policy, len(prompt))
    _, session = advance(session, prompt, watch=watch)
    for token in answer[:-1]:
        _, session = advance(session, [token], 0.9, watch)
    trace = join_blocks(blocks, [*prompt, *answer], len(prompt), session.confidence, "reasoner")
    return trace, kept


LIVE = (
    *("h2o", "lazy_eviction@window=16,threshold=0.01", "raas@pin_prompt=false,threshold=0.01"),
    *("tova", "caote:h2o", "fast_caote:snapkv@window=16", "ahakv@recent=16", "rkv@every=16"),
)


@pytest.mark.parametrize("spec", sampled(LIVE, LIVE[:2]))
def test_a_live_run_is_reproduced_exactly(reasoner, spec):
    policy = methods.get(spec, 120)
    trace, kept = live_run(reasoner, policy)
    for (fate,) in replay(trace, [policy]):
        for token, positions in kept[fate.layer].items():
            np.testing.assert_array_equal(fate.kept(token), positions)
        assert (fate.left < trace.prompt + 40).any(), "nothing was ever evicted"


# --- what is refused -----------------------------------------------------------------------------


@cases(__file__, "what_does_not_fit_is_refused", "first spec block_size message")
def test_what_does_not_fit_is_refused(first, spec, block_size, message):
    trace = replace(noise(), positions=np.arange(70) + first)
    with pytest.raises(ValueError, match=message):
        next(replay(trace, [methods.get(spec, 9)], block_size))


def test_who_leaves_before_attending_is_who_leaves_after_it():
    policies = [methods.get(spec, 12) for spec in ("caote:tova", EARLY)]
    ((late, early),) = replay(noise(layers=1), policies)
    np.testing.assert_array_equal(late.left, early.left)
