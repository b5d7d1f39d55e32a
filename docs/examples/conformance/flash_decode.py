"""Attention of a block of queries, written as a CUDA kernel would be: tiles and a running softmax.

One thread block works on one query of one query head; it walks over tiles of ``TILE`` entries and
keeps the largest logit, the sum of the weights and the weighted sum of the values in registers.
"""

import numpy as np

TILE = 8


def attend(queries, keys, values, positions, query_positions, softcap):
    """Launch the kernel; arrays as ``kvlab conformance show attend`` lists them."""
    return launch(tile_step, queries, keys, values, positions, query_positions, softcap)


def attend_broken(queries, keys, values, positions, query_positions, softcap):
    """Launch the kernel with the bug."""
    return launch(broken_tile_step, queries, keys, values, positions, query_positions, softcap)


def launch(step, queries, keys, values, positions, query_positions, softcap):
    G, rho, m, _ = queries.shape
    output = np.full_like(queries, np.nan)  # what no thread writes must not look right
    for g, r, i in np.ndindex(G, rho, m):  # the grid
        seen = positions[g] <= query_positions[i]
        output[g, r, i] = thread_block(step, queries[g, r, i], keys[g], values[g], seen, softcap)
    return output


def thread_block(step, query, keys, values, seen, softcap):
    registers = -np.inf, 0.0, np.zeros_like(query)
    for start in range(0, len(keys), TILE):
        tile = slice(start, start + TILE)
        logits = keys[tile] @ query / np.sqrt(np.float32(len(query)))
        if softcap is not None:
            logits = softcap * np.tanh(logits / softcap)
        logits = np.where(seen[tile], logits, -np.inf)
        registers = step(registers, logits, values[tile])
    _, total, weighted = registers
    return weighted / total


def tile_step(registers, logits, values):
    largest, total, weighted = registers
    new_largest = max(largest, logits.max())
    if new_largest == -np.inf:
        return registers
    shrink = np.exp(largest - new_largest)
    weights = np.exp(logits - new_largest)
    return new_largest, total * shrink + weights.sum(), weighted * shrink + weights @ values


def broken_tile_step(registers, logits, values):
    largest, total, weighted = registers
    new_largest = max(largest, logits.max())
    if new_largest == -np.inf:
        return registers
    shrink = np.exp(largest - new_largest)
    weights = np.exp(logits - new_largest)
    return new_largest, total * shrink + weights.sum(), weighted + weights @ values  # the bug
