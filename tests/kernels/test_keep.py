"""Keep sets and moved survivors are those of the reference."""

import numpy as np
import pytest
import torch

from kvlab.fast.kernels import keep, move
from kvlab.fast.kernels.keep import keep_slots
from kvlab.fast.kernels.move import move_survivors
from kvlab.reference.selection import keep_set
from support.kernel_inputs import DEVICE, DTYPES, as_numpy, drawn, in_torch
from support.sampling import diagonal


def ascending_positions(N, G, n, seed=0):
    rng = np.random.default_rng(seed)
    rows = [np.sort(rng.choice(3 * n, n, replace=False)) for _ in range(N * G)]
    return torch.tensor(np.array(rows), dtype=torch.int32, device=DEVICE).view(N, G, n)


def expected(scores, protected, kept):
    return [
        keep_set(
            np.broadcast_to(one, marked.shape).astype(float), marked, count - int(marked[0].sum())
        )
        for one, marked, count in zip(scores, protected, kept, strict=True)
    ]


@pytest.mark.parametrize("n", [1, 2, 17, 64, 100, 1023, 1024, 1025, 2500])
def test_lengths(n, monkeypatch):
    """The second head has many equal scores; more entries than a program holds are read again."""
    monkeypatch.setattr(keep, "MOST_HELD", 1024)
    scores, kept = drawn((2, 2, n)), [max(1, n // 2)] * 2
    scores[:, 1] = scores[:, 1].round()
    found = keep_slots(scores, None, ascending_positions(2, 2, n), kept, ordered=True)
    nobody = np.zeros((2, 2, n), dtype=bool)
    np.testing.assert_array_equal(as_numpy(found), expected(as_numpy(scores), nobody, kept))


def test_the_later_stay_of_more_protected_entries_than_fit():
    scores, protected = drawn((1, 2, 9)), torch.ones((1, 2, 9), dtype=torch.bool, device=DEVICE)
    protected[:, 1, 2::3] = False
    given = scores, protected, ascending_positions(1, 2, 9), [3], True
    found = keep_slots(*given).tolist()
    with in_torch():
        assert found == keep_slots(*given).tolist() == [[[6, 7, 8], [4, 6, 7]]]


def buffers(N, G, capacity, d, dtype, seed=0):
    wide = drawn((2, N, G, capacity, d), seed, dtype)
    whole = torch.arange(3 * N * G * capacity, dtype=torch.int32, device=DEVICE)
    return {
        "vectors": wide,
        "counters": whole.view(3, N, G, capacity).clone(),
        "sums": drawn((1, N, G, capacity), seed + 1),
    }


def survive(before, slots):
    """What is moved to the front is what lay in these slots, in every buffer."""
    after = {name: x.clone() for name, x in before.items()}
    move_survivors(after, slots, ascending=True)
    for name, x in before.items():
        for head in np.ndindex(x.shape[1:3]):
            own = slots[head]
            assert (after[name][:, *head, : len(own)] == x[:, *head][:, own]).all(), name


@pytest.mark.parametrize(
    ("lengths", "d", "dtype"),
    diagonal(((1, 1), (40, 17), (300, 299), (300, 130)), (32, 80, 128), DTYPES),
)
def test_survivors_are_moved_together(lengths, d, dtype, monkeypatch):
    """In several chunks."""
    monkeypatch.setattr(move, "WORDS_OF_A_BLOCK", 1024)
    n, kept = lengths
    rng = np.random.default_rng(n)
    rows = [np.sort(rng.choice(n, kept, replace=False)) for _ in range(4)]
    slots = torch.tensor(np.array(rows), device=DEVICE).view(2, 2, kept)
    survive(buffers(2, 2, n + 5, d, dtype), slots)


ALONE = (["vectors"], ["counters"], ["sums"], ["vectors", "sums"])


@pytest.mark.parametrize("names", [*ALONE, ["vectors", "counters", "sums", "others"]])
def test_vectors_alone_state_alone_and_vectors_that_differ(names):
    """Two kinds of vectors take PyTorch."""
    found = {**buffers(1, 1, 9, 32, torch.float32), "others": drawn((1, 1, 1, 9, 16))}
    survive({name: found[name] for name in names}, torch.tensor([[[0, 2, 3, 8]]], device=DEVICE))


def test_nan_ranks_highest():
    scores = torch.tensor([[[1.0, torch.nan, -torch.nan, 5.0, torch.inf]]], device=DEVICE)
    found = keep_slots(scores, None, ascending_positions(1, 1, 5), [3], ordered=True)
    assert found.flatten().tolist() == [1, 2, 4]
