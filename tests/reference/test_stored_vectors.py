from dataclasses import replace

import numpy as np
import pytest

from kvlab.reference.stored_vectors import ChannelGroups, StoredVectors, TokenGroups


def filled(seed=0, G=2, n=12, d=8):
    vectors = np.random.default_rng(seed).normal(size=(G, n, d))
    storage = StoredVectors.empty(G, d).append(vectors[:, :5]).append(vectors[:, 5:])
    return storage, vectors


def test_bytes_by_hand():
    """24 vectors of 8: 6 at 4 bits in groups of 4 (4 bytes and 2·2·2 of scales), 18 at 16 bits."""
    storage, _ = filled()
    entries = np.zeros((2, 12), dtype=bool)
    entries[:, :3] = True
    mixed = storage.encode(TokenGroups(4, 4), entries)
    assert mixed.payload_bytes == 6 * 4 + 18 * 16
    assert mixed.overhead_bytes == 6 * 8


def test_quantising_in_steps_equals_quantising_at_once():
    storage, _ = filled()
    first, second = np.zeros((2, 12), dtype=bool), np.zeros((2, 12), dtype=bool)
    first[:, :4], second[:, 4:9] = True, True
    steps = storage.encode(TokenGroups(4, 8), first).encode(TokenGroups(4, 8), second)
    once = storage.encode(TokenGroups(4, 8), first | second)
    np.testing.assert_array_equal(steps.vectors, once.vectors)
    assert len(steps.tables) == 1
    for storage in (steps, once, steps.take(np.array([[1, 2, 5, 11]] * 2))):
        (table,), own = storage.tables, storage.table == 0
        read = table.code.decode(table.parts, table.d)[storage.row[own]]
        np.testing.assert_array_equal(read, storage.vectors[own])


def test_balanced_keys_are_read_as_they_came():
    """β = (2, ½): (1, 4) is coded as (2, 2) and (3, 8) as (6, 4), a step of 2/255 apart."""
    keys = np.array([[[1.0, 4.0], [3.0, 8.0]]])
    storage = StoredVectors.empty(1, 2).append(keys)
    stored = replace(storage, balance=np.array([[2.0, 0.5]])).encode(TokenGroups(8, 2))
    np.testing.assert_allclose(stored.vectors, keys, atol=2 / 255)
    scale, zero = stored.tables[0].parts[1:]
    assert zero.tolist() == [[2.0], [4.0]] and scale[0] == 0 < scale[1]


def test_channel_blocks_cannot_be_split():
    storage, _ = filled()
    entries = np.zeros((2, 12), dtype=bool)
    entries[:, :8] = True
    blocks = storage.encode(ChannelGroups(4, 4), entries)
    whole = np.tile(np.arange(4, 12), (2, 1))
    np.testing.assert_array_equal(blocks.take(whole).vectors, blocks.vectors[:, 4:])
    with pytest.raises(ValueError, match="cannot lose single tokens"):
        blocks.take(np.tile(np.arange(1, 12), (2, 1)))
    entries[:, 8] = True
    with pytest.raises(ValueError, match="must be a multiple of group = 4"):
        storage.encode(ChannelGroups(4, 4), entries)
