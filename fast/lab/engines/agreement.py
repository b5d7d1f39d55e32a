"""Whether an engine writes what kvlab's specification of its settings would write."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from kvlab.fast.huggingface import compress
from kvlab.fast.lab.points import After, tokens_after
from kvlab.reference import methods

TIE = 0.01
"""Difference of log-probabilities below which two tokens count as equally good."""


@dataclass(frozen=True)
class Setting:
    """Settings of an engine, and the specification that does the same."""

    name: str
    spec: str
    budget: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the engine's worker is told."""
    within: float = 0.001
    """Mean difference of log-probabilities up to which they agree."""
    differs: bool = False
    """Whether the engine must part from the specification; `docs/engines.md` says why."""

    def verdict(self, figures: Mapping[str, Any]) -> str:
        """Say what the figures of `compare` mean; WRONG: they are not as expected."""
        after = figures["after_eviction"]
        if after is not None and not after.count:
            return "measures nothing: no token comes after an eviction"
        mean = figures["mean"]
        same = figures["agreed"] == figures["tokens"] and (mean is None or mean <= self.within)
        verdict = "agrees" if same else "parts"
        return verdict if same != self.differs else f"WRONG: {verdict}"


def _eviction(mode: str, window: int, more: str = "", recent: int = 64, **other: Any) -> Setting:
    """Return a setting of OpenVINO's eviction; ``more`` is what kvlab's specification adds."""
    name = f"{mode}, window {window or 'off'}, {more or ''.join(other)}".removesuffix(", ")
    spec = f"openvino@start=32,recent={recent},aggregation={mode.lower()},window={window},{more}"
    sizes = {"start": 32, "recent": recent, "max": 32 + 2 * recent, "aggregation": mode}
    options, differs = sizes | {"window": window} | other, "rotation" in other
    return Setting(name, spec.removesuffix(","), sizes["max"], options, differs=differs)


def _shift(size: int) -> Setting:
    spec = f"streaming_llm@sinks=4,every={size},when_full=true,reposition=true"
    options = {"context": 256, "keep": 4, "shift": size}
    return Setting(f"context shift, {size} of 256", spec, 255 - size, options, 0.003)


Q8, Q4 = "full@precision=q8_0", "full@precision=q4_0"
SETTINGS: Mapping[str, tuple[Setting, ...]] = {
    "openvino": (
        Setting("no eviction", "full"),
        *(_eviction(mode, window) for window in (0, 8, 32) for mode in ("SUM", "NORM_SUM")),
        *(
            _eviction("NORM_SUM", 8, f"crush=2,anchor={anchor}", 32, crush=(2, anchor.upper()))
            for anchor in ("zeros", "ones", "mean", "alternating")
        ),
        _eviction("SUM", 0, "chunk=100", batched=100),
        _eviction("NORM_SUM", 8, "chunk=220", batched=220),
        _eviction("NORM_SUM", 0, rotation=True),
        Setting("u8", "full", None, {"precision": "u8"}, differs=True),
    ),
    "llama.cpp": (
        Setting("f16", "full", within=0.005),
        _shift(100),
        _shift(125),
        Setting("q8_0, rotation off", Q8, None, {"type": "Q8_0", "rotation": False}, 0.005, True),
        Setting("q4_0, rotation off", Q4, None, {"type": "Q4_0", "rotation": False}, 0.005, True),
        Setting("q8_0", Q8, None, {"type": "Q8_0"}, 0.005, True),
        Setting("q4_0", Q4, None, {"type": "Q4_0"}, 0.005, True),
    ),
}


@torch.inference_mode()
def compare(model: Any, spec: str, budget: int | None, text: Mapping[str, Any]) -> dict[str, Any]:
    """Read the engine's tokens under a specification, and rate each before it is read.

    Return how many ``tokens`` there are, how many ``agreed`` before the first of a prompt that is
    worse than the best by more than `TIE`, and the largest such ``gap`` with its ``prompt`` and
    ``step``; ``mean`` and ``largest`` difference of log-probabilities; and ``after_eviction``.
    """
    wanted, block = torch.tensor(text["tokens"]), torch.tensor(text["prompts"])
    best, found = torch.empty(wanted.shape), torch.empty(wanted.shape)
    with compress(model, spec, budget=budget if methods.takes_budget(spec) else None) as cache:
        for step in range(wanted.shape[1]):
            logits = model(block, past_key_values=cache, logits_to_keep=1).logits[:, -1]
            rated = logits.float().log_softmax(dim=-1)
            block = wanted[:, step : step + 1]
            best[:, step], found[:, step] = rated.amax(dim=-1), rated.gather(1, block)[:, 0]
    gaps, mean, largest = torch.nn.functional.pad(best - found, (0, 1)), None, None
    before = (gaps[:, :-1] <= TIE).cumprod(dim=1).sum(dim=1)
    gap, prompt = gaps.gather(1, before[:, None])[:, 0].max(dim=0)
    if text.get("log_probs"):
        apart = (torch.tensor(text["log_probs"]) - found).abs()
        mean, largest = apart.mean().item(), apart.amax().item()
    figures = {"tokens": wanted.numel(), "agreed": int(before.sum()), "gap": gap.item()}
    figures |= {"prompt": int(prompt), "step": int(before[prompt])}
    length, steps = len(text["prompts"][0]), wanted.shape[1]
    counts = [tokens_after(first, length, steps) for first in cache.first_evictions]
    evicts = cache.text.policy.specification.evicts
    after = After(sum(counts), wanted.numel(), "tokens") if evicts else None
    return {**figures, "mean": mean, "largest": largest, "after_eviction": after}
