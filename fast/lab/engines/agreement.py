"""Whether an engine writes what kvlab's specification of its settings would write."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from kvlab.fast.huggingface import compress
from kvlab.fast.lab import engines
from kvlab.fast.lab.engines import plugged, weights_for
from kvlab.fast.lab.files import read_data
from kvlab.fast.lab.points import After, tokens_after
from kvlab.fast.models import cache_directory, loading
from kvlab.fast.vllm.settings import completed
from kvlab.reference import methods
from kvlab.reference.generate import advance, log_softmax, prefill
from kvlab.reference.transformer import Transformer

SMOLLM2 = "smollm2"

TIE = 0.01
"""Difference of log-probabilities below which two tokens count as equally good."""


WITH_PLUGIN = "vllm --plugin"
"""vLLM with kvlab's own methods inside."""

Prompts = Sequence[Sequence[int]]
"""Token ids, a row per prompt."""


def alike(prompts: Prompts) -> Prompts:
    """Return prompts of one length."""
    return prompts


def unequal(prompts: Prompts) -> Prompts:
    """Cut each prompt 19 tokens shorter than the one before."""
    return [ids[: len(ids) - 19 * (number % 8)] for number, ids in enumerate(prompts)]


def in_pairs(prompts: Prompts) -> Prompts:
    """Let every second prompt begin with the first 160 tokens of the one before."""
    return [[*prompts[number - number % 2][:160], *ids[160:]] for number, ids in enumerate(prompts)]


class Agreement(TypedDict, total=False):
    """What is no plain number or text in a row: what `compare` found, or why it was not run."""

    after_eviction: After | None


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
    seen: bool = True
    """Whether we know, because it ran on a machine of ours."""
    model: str = SMOLLM2
    """The model, or the architecture of a tiny one with random weights."""
    prompts: Callable[[Prompts], Prompts] = alike
    counter: str | None = None
    """Counter of the engine, which says how often the thing happened that the setting is about."""
    tie: float = TIE
    in_numpy: int = 0
    """Prompts of which the NumPy reference reads the texts, too."""

    def verdict(self, figures: Mapping[str, Any]) -> str:
        """Say what the figures of `compare` mean; WRONG: they are not as expected."""
        after = figures["after_eviction"]
        if after is not None and not after.count:
            return "measures nothing: no token comes after an eviction"
        if self.counter and not figures["counted"]:
            return f"measures nothing: {self.counter} is 0"
        means = [figures.get(name) or 0 for name in ("mean", "reference")]
        same = figures["agreed"] == figures["tokens"] and max(means) <= self.within
        verdict = "agrees" if same else "parts"
        return verdict if not self.seen or same != self.differs else f"WRONG: {verdict}"


PROMPTS = {"alike": alike, "unequal": unequal, "in_pairs": in_pairs}

ALONE = "one by one"


def _listed(prompts: str = "alike", **row: Any) -> Setting:
    """Return a setting of ``settings.toml``."""
    return Setting(**row, prompts=PROMPTS[prompts])


def _plugged(method: str, how: str = "", **other: Any) -> Setting:
    """Return kvlab's method inside vLLM, 128 entries kept, eight requests at once.

    ``other`` is what the specification says otherwise, so that it must part.
    """
    options = {**plugged(method, 128), "max_num_seqs": 8, "one_by_one": how == ALONE}
    expected: Any = {"spec": completed(method, 32), "budget": 128, "in_numpy": 0 if how else 2}
    name = f"{method}, {how}" if how else method
    how_far: Any = {"within": 1e-4, "differs": bool(other), "prompts": unequal}
    return Setting(name, options=options, **expected | other | how_far)


LISTED = read_data("engines/settings.toml")
SETTINGS: Mapping[str, Sequence[Setting]] = {
    name: [_listed(**row) for row in LISTED[name]] for name in ("openvino", "llama.cpp", "vllm")
} | {WITH_PLUGIN: [_plugged(**row) for row in LISTED["plugged"]]}
"""What is checked of each engine."""


def save_random_model(architecture: str, directory: Path) -> None:
    """Write a tiny model of Transformers' architecture, the same every time."""
    config = AutoConfig.for_model(architecture, initializer_range=0.2, **LISTED["tiny"])
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, weights in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(weights, std=2)
    if model.config.tie_word_embeddings:  # else each token predicts itself
        model.get_input_embeddings().weight.data /= 10
        model.model.norm.weight.data += 2
    model.save_pretrained(directory)


def weights_of(engine: str, setting: Setting) -> Path:
    """Return the file or directory of the setting's model that the engine reads.

    FileNotFoundError if it is SmolLM2 and nothing wrote it.
    """
    if setting.model != SMOLLM2:
        directory = cache_directory() / "engines" / "models" / setting.model
        if not directory.is_dir():
            save_random_model(setting.model, directory)
        return directory
    found = weights_for(engine)
    if not found.exists():
        raise FileNotFoundError(f"{found} is written by: kvlab engines install ENGINE")
    return found


def load(weights: Path) -> tuple[Any, Any]:
    """Load what the engine reads, in float32, and its tokenizer; a random model has none."""
    if weights.is_dir() and not (weights / "tokenizer.json").is_file():
        how: Any = {"attn_implementation": "eager"}  # Transformers' others skip the softcap
        model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32, **how)
        return model.eval(), None
    if weights.is_dir():
        return loading.load(str(weights), "float32", "cpu")
    model, tokenizer = loading.load_gguf(weights)
    return torch.nn.Module.float(model), tokenizer


def check(
    engine: str,
    setting: Setting,
    spec: str,
    passages: Prompts,
    tokens: int,
    load: Callable[[Path], tuple[Any, Any]] = load,
) -> dict[str, Any]:
    """Let an engine write after passages, and return the figures of `compare`, perhaps more."""
    weights = weights_of(engine, setting)
    model, _ = load(weights)
    ids = setting.prompts([[i % model.config.vocab_size for i in each] for each in passages])
    asked = {"weights": str(weights), "prompts": ids, "tokens": tokens}
    text = engines.generate(engine, {**asked, "settings": setting.options})
    figures = compare(model, setting, spec, text)
    if setting.in_numpy:
        figures["reference"] = difference_from_numpy(setting, spec, text)
    return figures


@torch.inference_mode()
def compare(model: Any, setting: Setting, spec: str, text: Mapping[str, Any]) -> dict[str, Any]:
    """Read the engine's tokens under a specification, and rate each before it is read.

    Return how many ``tokens`` there are, how many ``agreed`` before the first of a prompt that is
    worse than the best by more than a tie, and the largest such ``gap`` with its ``prompt`` and
    ``step``; ``mean`` and ``largest`` difference of log-probabilities; ``after_eviction``; and
    ``counted``, what the setting's counter says.
    """
    prompts, wanted = text["prompts"], torch.tensor(text["tokens"])
    best, found = torch.empty(wanted.shape), torch.empty(wanted.shape)
    counts = []
    for length in {*map(len, prompts)}:
        rows = [number for number, ids in enumerate(prompts) if len(ids) == length]
        alike = torch.tensor([prompts[row] for row in rows])
        best[rows], found[rows], count = _rated(model, setting, spec, alike, wanted[rows])
        counts.append(count)
    gaps, mean, largest = torch.nn.functional.pad(best - found, (0, 1)), None, None
    before = (gaps[:, :-1] <= setting.tie).cumprod(dim=1).sum(dim=1)
    gap, prompt = gaps.gather(1, before[:, None])[:, 0].max(dim=0)
    if text.get("log_probs"):
        apart = (torch.tensor(text["log_probs"]) - found).abs()
        mean, largest = apart.mean().item(), apart.amax().item()
    figures = {"tokens": wanted.numel(), "agreed": int(before.sum()), "gap": gap.item()}
    figures |= {"prompt": int(prompt), "step": int(before[prompt]), "mean": mean}
    after = None if None in counts else After(sum(counts), wanted.numel(), "tokens")
    counted = text.get("counted", {}).get(setting.counter)
    return {**figures, "largest": largest, "after_eviction": after, "counted": counted}


def difference_from_numpy(setting: Setting, spec: str, text: Mapping[str, Any]) -> float:
    """Return the mean difference of log-probabilities of the first texts from the reference's."""
    model = Transformer.from_directory(text["weights"])
    policy, apart = methods.get(spec, setting.budget), []
    texts = zip(text["prompts"], text["tokens"], text["log_probs"], strict=True)
    for prompt, tokens, log_probs in islice(texts, setting.in_numpy):
        logits, session = prefill(model, policy, prompt)
        for token, log_prob in zip(tokens, log_probs, strict=True):
            apart.append(abs(log_softmax(logits)[token] - log_prob))
            (logits,), session = advance(session, [token])
    return float(np.mean(apart))


def _rated(
    model: Any, setting: Setting, spec: str, prompts: torch.Tensor, wanted: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, int | None]:
    """Rate the best token and the wanted one at every step after prompts of one length.

    Return also how many were rated after an eviction, None if nothing is ever evicted. Models with
    random weights have layers that `compress` leaves alone or refuses: they keep everything.
    """
    best, found, block = torch.empty(wanted.shape), torch.empty(wanted.shape), prompts
    budget = setting.budget if methods.takes_budget(spec) else None
    everything = setting.model != SMOLLM2 and spec == "full"
    made = nullcontext(DynamicCache()) if everything else compress(model, spec, budget=budget)
    with made as cache:
        for step in range(wanted.shape[1]):
            logits = model(block, past_key_values=cache, logits_to_keep=1).logits[:, -1]
            rated = logits.float().log_softmax(dim=-1)
            block = wanted[:, step : step + 1]
            best[:, step], found[:, step] = rated.amax(dim=-1), rated.gather(1, block)[:, 0]
    if isinstance(cache, DynamicCache) or not cache.text.policy.specification.evicts:
        return best, found, None
    length, steps = prompts.shape[1], wanted.shape[1]
    return best, found, sum(tokens_after(each, length, steps) for each in cache.first_evictions)
