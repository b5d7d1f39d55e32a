"""The scores of a policy after one prompt, without a model."""

from dataclasses import replace

import numpy as np

from kvlab.reference import methods
from kvlab.reference.observation import Clock
from kvlab.reference.policy import Never
from kvlab.reference.step import Block, empty_cache, step


def scores_after_prompt(spec, budget, queries, keys, values):
    """Scores ``[t]`` of one head's entries when a prompt has been read at once.

    Args:
        spec: registry syntax.
        budget: entries to keep, fewer than the prompt has.
        queries: ``[t, d]``, like keys and values.
        keys: of the same head.
        values: of the same head.
    """
    t, d = keys.shape
    policy = replace(methods.get(spec, budget), schedule=Never())
    block = Block(
        Clock(seen=t, block=t, prompt=t),
        0,
        queries[None, None],
        keys[None],
        values[None],
        np.full(t, np.nan),
        None,
    )
    result = step(policy, empty_cache(policy, 1, d), block)
    everything = np.ones((1, t), dtype=bool)
    scores = policy.score.score(result.cache.state, result.seen, everything, budget)
    return np.broadcast_to(scores, (1, t))[0]
