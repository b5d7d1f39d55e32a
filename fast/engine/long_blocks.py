"""Attention of a block of several tokens, whose probabilities are never in memory together."""

from collections.abc import Iterator

import torch
from torch.nn.functional import pad

from kvlab.fast.engine.cache import BatchClock
from kvlab.fast.engine.observation import (
    Attended,
    LayerView,
    Needs,
    Observation,
    attend_as_needed,
    parts,
)
from kvlab.fast.engine.policy import Policy
from kvlab.fast.kernels.attention import (
    attend,
    attend_without_weights,
    logits,
    reduce_group,
    softmax,
    visible,
)
from kvlab.fast.kernels.notation import PerEntry, Probabilities, Queries
from kvlab.fast.kernels.prefill import attend_block, received_attention
from kvlab.reference.attention import GroupReduction

MASKED = 256
"""Tokens up to which one call with a mask costs less than a call for every padded sequence."""

SUMMED_ROWS = 64
"""Rows of a block whose attention a CPU sums together: so few that its own cache holds them."""

TILE = 2**18
"""Attention probabilities that a CPU sums together at most, if several sequences have few rows."""


def attend_in_parts(policy: Policy, seen: Observation) -> tuple[Queries, Attended, bool]:
    """Let a block of several tokens attend, by what the score reads of it.

    Return the output, what the score has still to be given, and whether it has observed the block.
    """
    needs, view, rows = policy.needs, seen.view, policy.reads(seen.clock)
    if rows == "all" and needs.sums is not None:
        output, attended = attend_with_sums(needs.sums, seen.clock, seen.queries, view)
        every = slice(0, seen.queries.shape[3])
        policy.score.observe(seen.cache.state, seen.part(every, attended))
        return output, Attended(), True
    if rows == "all":
        return _attend_and_observe(policy, seen)
    if view.softcap is None:
        output = attend_unread(seen.clock, seen.queries, view)
    else:
        output = torch.cat([output for _, output, _ in _each_part(needs, seen, read=False)], dim=3)
    if rows == "none":
        return output, Attended(), False
    newest = seen.queries[:, :, :, -1:]
    return output, attend_as_needed(needs, True, newest, None, view)[1], False


def _attend_and_observe(policy: Policy, seen: Observation) -> tuple[Queries, Attended, bool]:
    """Let the score observe each part once it has attended; on the host, all parts at the end."""
    outputs, on_host = [], []
    for part, output, attended in _each_part(policy.needs, seen, read=True):
        outputs.append(output)
        if policy.score.on_host and attended.weights is not None:
            on_host.append(attended.weights.cpu())
        else:
            policy.score.observe(seen.cache.state, seen.part(part, attended))
    weights = torch.cat(on_host, dim=3) if on_host else None
    return torch.cat(outputs, dim=3), Attended(weights), not on_host


def observe(policy: Policy, seen: Observation, share: int = 1) -> None:
    """Let the score observe a block that has attended already, from its queries.

    A long block is observed part by part: each has 1/``share`` of the weights that may be in memory
    at once. What a decision after this block reads stays in ``seen``. Values are read only if the
    score reads them.
    """
    rows = policy.reads(seen.clock)
    if rows == "all" and policy.needs.sums is not None:
        seen.attended = Attended(received=sums_of_rows(policy.needs.sums, seen))
        policy.score.observe(seen.cache.state, seen)
        return
    if rows == "all" and not policy.on_host:
        for part in parts(seen.queries, share * len(seen.cache)):
            seen.attended = attended_by(seen, part)
            policy.score.observe(seen.cache.state, seen.part(part, seen.attended))
        return
    if rows == "all":
        seen.attended = attended_by(seen, slice(0, seen.queries.shape[3]))
    elif rows == "last" and (policy.needs.output or seen.cache.triton):
        newest = seen.queries[:, :, :, -1:]
        seen.attended = attend_as_needed(policy.needs, True, newest, None, seen.view)[1]
    elif rows == "last":
        m = seen.queries.shape[3]
        seen.attended = attended_by(seen, slice(m - 1, m))
    policy.score.observe(seen.cache.state, seen)


def sums_of_rows(how: GroupReduction, seen: Observation) -> PerEntry:
    """Sum what the rows of a block pay every entry, query heads joined first; values are not read.

    On a CPU, tiles are so small that its own cache holds them.
    """
    queries, received = seen.queries, seen.queries.new_zeros(seen.positions.shape)
    N, G, rho, m, _ = queries.shape
    most = m if queries.is_cuda else min(m, SUMMED_ROWS)
    size = N if queries.is_cuda else max(1, TILE // (G * rho * most * len(seen.cache)))
    for first in range(0, N, size):
        some = slice(first, first + size)
        for rows in parts(queries[some], len(seen.cache), most):
            weights = attention_of(seen, rows, some)
            joined = weights.amax(dim=2).sum(dim=2) if how == "max" else weights.sum(dim=(2, 3))
            received[some, :, : joined.shape[2]] += joined
    return received / rho if how == "mean" else received


def attended_by(seen: Observation, rows: slice) -> Attended:
    """Return what some rows of a block pay every entry."""
    weights = attention_of(seen, rows, slice(None))
    return Attended(pad(weights, (0, len(seen.cache) - weights.shape[-1])))


def attention_of(seen: Observation, rows: slice, sequences: slice) -> Probabilities:
    """Return what some rows of a block pay the entries that they may read.

    In a cache in order the block's entries are the last ones: a mask is made of the rows' own, and
    those after the last row are not read.
    """
    first, last = 0, len(seen.cache)
    if seen.cache.ordered and not seen.cache.ragged:
        last -= seen.queries.shape[3] - rows.stop
        first = last - (rows.stop - rows.start)
    queries, keys = seen.queries[sequences, :, :, rows], seen.keys[sequences, :, :last]
    at, entries = seen.query_positions[sequences, rows], seen.positions[sequences, :, first:last]
    return softmax(logits(queries, keys, seen.view.softcap), visible(at, entries))


def _each_part(
    needs: Needs, seen: Observation, read: bool
) -> Iterator[tuple[slice, Queries, Attended]]:
    """Attend part by part; ``read``: the score is given the attention."""
    for part in parts(seen.queries, len(seen.cache)):
        queries, positions = seen.queries[:, :, :, part], seen.query_positions[:, part]
        yield part, *attend_as_needed(needs, read, queries, positions, seen.view)


def attend_unread(clock: BatchClock, queries: Queries, view: LayerView) -> Queries:
    """Attend from a whole block whose attention no score reads, by PyTorch's fused kernels.

    Without a mask the kernels pass over entries that come after a row.
    """
    keys, values = view.fused()
    m, n = queries.shape[3], keys.shape[2]
    if view.only_block and min(clock.present) == m:
        return attend_without_weights(queries, keys, values, None, causal=True)
    output = torch.zeros_like(queries, dtype=keys.dtype)
    if alone := _one_by_one(clock, view):
        for row, real in alone:
            own = queries[row, :, :, real], keys[row, :, real], values[row, :, real]
            output[row, :, :, real] = attend_without_weights(*own, None, causal=True)
        return output
    for part in parts(queries[:, :1, :1], n):  # in all heads the same slots are empty: one mask
        last = n - m + part.stop
        mask = visible(clock.positions[:, part], view.positions[:, :1, :last])
        read = keys[:, :, :last], values[:, :, :last]
        output[:, :, :, part] = attend_without_weights(queries[:, :, :, part], *read, mask)
    return output


def _one_by_one(clock: BatchClock, view: LayerView) -> list[tuple[slice, slice]]:
    """Return every sequence of a long prompt and where its tokens are; none if all attend together.

    Alone they need no mask of padding, if it stands before them; in a short prompt, calls cost
    more.
    """
    m = clock.positions.shape[1]
    if not view.only_block or m <= MASKED or min(clock.present) == m:
        return []
    rows = enumerate(clock.present)
    return [(slice(number, number + 1), slice(m - tokens, m)) for number, tokens in rows]


def attend_with_sums(
    how: GroupReduction, clock: BatchClock, queries: Queries, view: LayerView
) -> tuple[Queries, Attended]:
    """Attend from a whole block, and sum what its rows pay every entry, query heads joined first.

    The matrix of the block's attention is never in memory as a whole.
    """
    if not view.cache.triton or how == "max":
        return _attend_and_sum_parts(how, clock, queries, view)
    keys, values, positions = view.column("keys"), view.column("values"), view.positions
    output, lse = attend_block(queries, keys, values, clock.positions, positions, view.softcap)
    received = received_attention(
        queries, keys, clock.positions, positions, softcap=view.softcap, lse=lse
    )
    return output, Attended(received=received / queries.shape[2] if how == "mean" else received)


def _attend_and_sum_parts(
    how: GroupReduction, clock: BatchClock, queries: Queries, view: LayerView
) -> tuple[Queries, Attended]:
    """Let each part of a block read the entries up to its last row: the block's are the last ones.

    Only entries of the part itself need a mask, unless slots are empty.
    """
    N, G, _, m, _ = queries.shape
    n, keys, values = view.positions.shape[2], view.keys, view.values
    output, received = torch.zeros_like(queries), queries.new_zeros((N, G, n))
    alone = _one_by_one(clock, view)
    for row, real in alone or [(slice(0, N), slice(0, m))]:
        start = real.start
        for part in parts(queries[row, :, :, real], n, m if queries.is_cuda else SUMMED_ROWS):
            tokens = slice(start + part.start, start + part.stop)
            last = n - m + tokens.stop
            first = 0 if view.cache.ragged and not alone else n - m + tokens.start
            mask = visible(clock.positions[row, tokens], view.positions[row, :1, first:last])
            read = keys[row, :, start:last], values[row, :, start:last]
            rows = queries[row, :, :, tokens]
            output[row, :, :, tokens], weights = attend(rows, *read, mask, view.softcap)
            received[row, :, start:last] += reduce_group(weights, how).sum(dim=2)
    return output, Attended(received=received)
