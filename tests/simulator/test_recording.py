"""A recorded trace holds what the layers were handed; `test_replay` replays what is recorded."""

import numpy as np

from kvlab.reference import generate, methods
from kvlab.reference.simulator.trace import join_blocks


def test_it_holds_all_tokens_but_the_last_written(reasoner, solved):
    prompt, stop, trace = solved
    tokens = generate(reasoner[0], methods.get("full"), prompt, 200, stop=stop).tokens
    assert trace.tokens.tolist() == [*prompt, *tokens][:-1]
    assert trace.prompt == len(prompt)
    assert trace.metadata.model == "reasoner"
    assert np.isnan(trace.confidence[: len(prompt)]).all()
    assert (trace.confidence[len(prompt) :] > 0).all()


def block(layer, *positions):
    """A block whose queries, keys and values name layer, position and what they are."""
    base = np.broadcast_to((np.array(positions) + 100.0 * layer)[:, None], (len(positions), 2))
    return base[None, None], base[None] + 0.25, base[None] + 0.5


def test_blocks_are_joined_layer_by_layer():
    blocks = {n: [block(n, 0, 1), block(n, 2), block(n, 3)] for n in (2, 0)}
    trace = join_blocks(blocks, range(10, 15), 3, np.full(4, np.nan), "model", 30.0)
    assert trace.metadata.layers == (0, 2)
    assert trace.queries[0, 0, 0, :, 0].tolist() == [0, 1, 2, 3]
    assert trace.keys[1, 0, :, 1].tolist() == [200.25, 201.25, 202.25, 203.25]
    assert trace.values[0, 0, :, 0].tolist() == [0.5, 1.5, 2.5, 3.5]
    assert trace.tokens.tolist() == [10, 11, 12, 13]
    assert (trace.prompt, trace.metadata.softcap) == (3, 30.0)
