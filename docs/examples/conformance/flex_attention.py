"""What a serving engine does beside a method, with PyTorch's FlexAttention and float8.

``kvlab conformance run flex_attention.py``: attention of a batch of requests over shared pages,
states that are merged, writing by slots, and RoPE at given positions.
"""

import torch
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

ARRAYS = "torch"


def one_request(queries, keys, values, asked, positions, scale, softcap, window):
    """Attend with [G, rho, m, d] to the entries of one request; return output and log-sum-exp."""

    def squeezed(score, batch, head, query, entry):
        return score if softcap is None else softcap * torch.tanh(score / softcap)

    def seen(batch, head, query, entry):
        distance = asked[query] - positions[entry]
        return (distance >= 0) & (distance < (window or torch.inf))

    mask = create_block_mask(seen, None, None, len(asked), len(positions), device="cpu")
    output, aux = flex_attention(
        queries.flatten(0, 1)[None].contiguous(),
        keys[None].contiguous(),
        values[None].contiguous(),
        score_mod=squeezed,
        block_mask=mask,
        scale=scale,
        enable_gqa=True,
        return_aux=AuxRequest(lse=True),
    )
    assert aux.lse is not None
    return output[0].view(queries.shape), aux.lse[0].view(queries.shape[:-1])


def gathered(pages, slots, scales):
    """Read [G, n, d] from pages, which hold numbers of e4m3 where there are scales."""
    found = pages.flatten(0, 1)[slots].transpose(0, 1)
    if scales is None:
        return found
    return found.to(torch.float8_e4m3fn).to(pages) * scales[:, None, None]


def attend_requests(
    queries,
    query_starts,
    lengths,
    key_pages,
    value_pages,
    tables,
    sinks,
    key_scales,
    value_scales,
    scale,
    softcap,
    window,
):
    """Gather each request's entries through its table, and attend to them."""
    page, output, lse = (
        key_pages.shape[1],
        torch.zeros_like(queries),
        torch.full(queries.shape[:3], -torch.inf),
    )
    for request, n in enumerate(lengths.tolist()):
        rows = slice(*query_starts[request : request + 2].tolist())
        asked, positions = torch.arange(n)[n - rows.stop + rows.start :], torch.arange(n)
        positions = positions[tables[request, positions // page] >= 0]
        if not len(asked) or not len(positions):
            continue  # nothing asks, or nothing is visible: 0, and −∞
        slots = tables[request, positions // page] * page + positions % page
        keys = gathered(key_pages, slots, key_scales)
        values = gathered(value_pages, slots, value_scales)
        output[:, :, rows], lse[:, :, rows] = one_request(
            queries[:, :, rows], keys, values, asked, positions, scale, softcap, window
        )
    if sinks is None:
        return output, lse
    total = torch.logaddexp(lse, sinks[..., None])
    return output * (lse - total).exp()[..., None], total


def merge_states(outputs, lses):
    """Weight each part by its share of the sum."""
    shares = torch.nan_to_num(lses.softmax(dim=0))
    return (shares[..., None] * outputs).sum(dim=0), lses.logsumexp(dim=0)


def write_pages(keys, values, slots, key_pages, value_pages, key_scales, value_scales):
    """Write tokens in place; a slot below 0 is none."""
    there = slots >= 0
    for new, pages, scales in ((keys, key_pages, key_scales), (values, value_pages, value_scales)):
        stored, page = new[:, there].transpose(0, 1), pages.shape[1]
        if scales is not None:
            stored = (stored / scales[:, None]).clamp(-448, 448).to(torch.float8_e4m3fn).float()
        pages[slots[there] // page, slots[there] % page] = stored
    return key_pages, value_pages


def rotate(x, positions, base, rotated, neighbours):
    """Multiply pairs of channels, as complex numbers, with numbers of length 1."""
    angles = positions[:, None] * base ** (-torch.arange(0, rotated, 2) / rotated)
    shape = (*x.shape[:-1], rotated // 2, 2) if neighbours else (*x.shape[:-1], 2, rotated // 2)
    pairs = x[..., :rotated].reshape(shape)
    pairs = pairs if neighbours else pairs.transpose(-1, -2)
    turned = torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones(()), angles)
    turned = torch.view_as_real(turned)
    turned = turned if neighbours else turned.transpose(-1, -2)
    return torch.cat([turned.flatten(-2), x[..., rotated:]], dim=-1)


IMPLEMENTATIONS = {
    "attend_requests": attend_requests,
    "merge_states": merge_states,
    "write_pages": write_pages,
    "rotate": rotate,
}
