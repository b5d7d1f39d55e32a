"""One text in several calls, and what a model said of it."""

from dataclasses import dataclass, field

import torch

from support.models import GREEDY, prompts


@dataclass
class Text:
    """A text as it grows, and what was said of it."""

    ids: torch.Tensor
    mask: torch.Tensor
    written: list[bool] = field(default_factory=list)
    """Of every column: whether `generate` wrote its token, or it came alone, as if written."""
    columns: list[int] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    """What follows after each of the columns, as the model said when it read them."""


def used(model, cache, steps, shorter) -> Text:
    N, first = len(shorter), steps[0][1]
    given = prompts([60] * N, seed=3)["input_ids"]
    mask = (torch.arange(first) >= torch.tensor(shorter)[:, None]).long()
    text = Text(given[:, :0], mask[:, :0])
    for kind, new, *writes in steps:
        held, begin = cache.get_seq_length(), text.ids.shape[1]
        text.ids = torch.cat([text.ids, given[:, begin : begin + new]], dim=1)
        text.mask = torch.cat([text.mask, mask[:, begin:], mask.new_ones(N, new)], dim=1)
        text.mask = text.mask[:, : begin + new]
        fed = {"attention_mask": text.mask, "past_key_values": cache}
        fed["input_ids"] = text.ids if kind == "whole" else text.ids[:, held:]
        text.written += [kind == "call" and fed["input_ids"].shape[1] == 1] * new
        if kind == "call":
            text.columns += range(held, begin + new)
            text.logits.append(model(**fed).logits)
        else:
            result = model.generate(**fed, max_new_tokens=writes[0], **GREEDY)
            text.columns += range(begin + new - 1, begin + new + writes[0] - 1)
            text.logits.append(torch.stack(result.logits, dim=1))
            text.ids = torch.cat([text.ids, result.sequences[:, -writes[0] :]], dim=1)
            text.mask = torch.cat([text.mask, mask.new_ones(N, writes[0])], dim=1)
            text.written += [True] * writes[0]
    return text
