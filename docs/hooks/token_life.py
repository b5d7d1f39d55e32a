"""The life of a token: the functions that run while a model under `compress` writes one token."""

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

PROMPT, BUDGET = 12, 12
"""Tokens that are read, and entries that are kept at most."""
DEEPEST, SHORTEST = 4, 4
"""How deep calls are followed, and how many lines a function has that is shown."""


@dataclass(frozen=True)
class Call:
    """One call of a function of the engine."""

    depth: int
    module: str
    name: str
    says: str
    """The first sentence of the function's docstring."""
    entries: int
    """Entries in the first layer's cache when the function begins."""


def follow_token() -> list[Call]:
    """Return the documented calls of one step of decoding, first layer only, in their order."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from kvlab.fast import compress

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "vocab_size": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, **sizes, **heads)).eval()
    with compress(model, "h2o", budget=BUDGET) as cache:
        model(torch.arange(PROMPT)[None], past_key_values=cache)
        with followed(lambda: cache.kept()[0][0]) as calls:
            model(torch.tensor([[1]]), past_key_values=cache)
    return calls


@contextmanager
def followed(count: Any) -> Iterator[list[Call]]:
    """Collect the calls of documented public functions of the engine."""
    calls: list[Call] = []
    open_frames: list[FrameType] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and (found := documented(frame)):
            open_frames.append(frame)
            if len(open_frames) <= DEEPEST:
                sys.setprofile(None)
                calls.append(Call(len(open_frames), *found, entries=count()))
                sys.setprofile(note)
        elif event == "return" and open_frames and open_frames[-1] is frame:
            open_frames.pop()

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def documented(frame: FrameType) -> tuple[str, str, str] | None:
    """Return module, name and first sentence of what runs in a frame, if it is documented."""
    module = frame.f_globals.get("__name__", "")
    name = frame.f_code.co_qualname
    lines = {line for *_, line in frame.f_code.co_lines() if line is not None}
    private = "<" in name or "._" in name or name.startswith("_")
    if not module.startswith("kvlab.fast.") or private or len(lines) < SHORTEST:
        return None
    thing: Any = sys.modules[module]
    for part in name.split("."):
        thing = vars(thing).get(part) if hasattr(thing, "__dict__") else None
    if thing is None or isinstance(thing, property) or not inspect.getdoc(thing):
        return None
    text = (inspect.getdoc(thing) or "").partition("\n\n")[0].replace("\n", " ")
    return module, name, text.partition(". ")[0].rstrip(".") + "."
