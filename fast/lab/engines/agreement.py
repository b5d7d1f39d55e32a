"""Whether an engine writes what kvlab's specification of its settings would write."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kvlab.fast.huggingface import compress
from kvlab.fast.lab.engines import Written
from kvlab.reference import methods
from kvlab.reference.tasks import english

TIE = 0.01
"""Difference of log-probabilities below which two tokens count as equally good."""

PROMPT = 224
"""Tokens of a prompt: as many for all, so that they are read together."""

SIZES = {"start": 32, "recent": 64, "max": 160}
NO_ROTATION = "openvino@start=32,recent=64,aggregation={},window={}"


@dataclass(frozen=True)
class Setting:
    """Settings of an engine, and the specification that does the same."""

    name: str
    spec: str
    budget: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the engine's worker is told."""
    differs: str = ""
    """Why the engine must part from the specification; empty: it must not."""


def _eviction(mode: str, window: int, **more: Any) -> Setting:
    name = f"{mode}, window {window or 'off'}" + (", rotation" if more.get("rotation") else "")
    options = {**SIZES, "aggregation": mode, "window": window, **more}
    spec = NO_ROTATION.format(mode.lower(), window)
    return Setting(name, spec, SIZES["max"], options, ROTATED if more else "")


ROTATED = (
    "a defect of theirs: keys turn to new positions by the base 10,000, not the model's, and "
    "queries keep the old ones"
)
SETTINGS: Mapping[str, tuple[Setting, ...]] = {
    "openvino": (
        Setting("no eviction", "full"),
        _eviction("SUM", 0),
        _eviction("NORM_SUM", 0),
        _eviction("SUM", 8),
        _eviction("NORM_SUM", 8),
        _eviction("NORM_SUM", 0, rotation=True),
    ),
    "llama.cpp": (
        Setting("f16", "full"),
        Setting("q8_0", "full@precision=q8_0", None, {"keys": "Q8_0", "values": "Q8_0"}),
        Setting("q4_0", "full@precision=q4_0", None, {"keys": "Q4_0", "values": "Q4_0"}),
    ),
}
"""What is checked of each engine."""


@dataclass(frozen=True)
class Agreement:
    """How far an engine and a specification agree."""

    agreed: int
    """Tokens before the first that is not the specification's best, within `TIE`; all prompts."""
    tokens: int
    """Tokens that the engine wrote."""
    difference: float | None
    """Largest difference of log-probabilities of tokens that agree; None: the engine tells none."""

    @property
    def same(self) -> bool:
        """Whether all tokens agree."""
        return self.agreed == self.tokens


def prompts(tokenizer: PreTrainedTokenizerBase, count: int) -> list[list[int]]:
    """Draw passages of the novel, of `PROMPT` tokens each."""
    texts = [english.passage(np.random.default_rng(number), 330) for number in range(count)]
    return [tokenizer(text, add_special_tokens=False).input_ids[:PROMPT] for text in texts]


@torch.inference_mode()
def compare(
    model: PreTrainedModel,
    setting: Setting,
    prompts: Sequence[Sequence[int]],
    written: Sequence[Written],
) -> Agreement:
    """Read the engine's tokens under the specification, and rate each before it is read."""
    wanted = torch.tensor([each.tokens for each in written])
    best, found = torch.empty(wanted.shape), torch.empty(wanted.shape)
    block = torch.tensor(prompts)
    budget = setting.budget if methods.takes_budget(setting.spec) else None
    with compress(model, setting.spec, budget=budget) as cache:
        for step in range(wanted.shape[1]):
            logits = model(block, past_key_values=cache, logits_to_keep=1).logits[:, -1]
            rated = logits.float().log_softmax(dim=-1)
            block = wanted[:, step : step + 1]
            best[:, step], found[:, step] = rated.amax(dim=-1), rated.gather(1, block)[:, 0]
    agrees = (best - found <= TIE).cumprod(dim=1).bool()
    difference = None
    if all(each.log_probs is not None for each in written):
        engine = torch.tensor([each.log_probs for each in written])
        difference = (engine - found).abs()[agrees].amax().item() if agrees.any() else None
    return Agreement(int(agrees.sum()), wanted.numel(), difference)
