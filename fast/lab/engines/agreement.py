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

PLUGGED = (
    "streaming_llm@protected=first4",
    "random",
    "knorm",
    "value_norm",
    "tova",
    "h2o",
    "snapkv@window=32,schedule=every_block",
    "caote:h2o",
    "fast_caote:tova",
    "rkv@window=8,every=32",
    "lazy_eviction@threshold=0.01",
    "ahakv@recent=32",
)
"""Methods that run inside vLLM."""

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
    differs: bool | None = False
    """Whether the engine must part from the specification; `docs/engines.md` says why. None: we do
    not know, because it ran on no machine of ours."""
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
        return verdict if self.differs is None or same != self.differs else f"WRONG: {verdict}"


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


def _vllm(name: str, counter: str = "", prompts: Any = alike, **options: Any) -> Setting:
    return Setting(name, "full", None, options, prompts=prompts, counter=counter or None)


def _fp8(format: str) -> Setting:
    """Return a cache of 8-bit floats, which vLLM has where the processor has AVX-512 or AMX."""
    return Setting(f"cache in {format}", "full", None, {"kv_cache_dtype": format}, differs=None)


def _plugged(method: str, how: str = "", **other: Any) -> Setting:
    """Return kvlab's method inside vLLM, 128 entries kept, eight requests at once.

    ``other`` is what the specification says otherwise, so that it must part.
    """
    options = {**plugged(method, 128), "max_num_seqs": 8, "one_by_one": how == ALONE}
    expected: Any = {"spec": completed(method, 32), "budget": 128, "in_numpy": 0 if how else 2}
    name = f"{method}, {how}" if how else method
    how_far: Any = {"within": 1e-4, "differs": bool(other), "prompts": unequal}
    return Setting(name, options=options, **expected | other | how_far)


ALONE = "one by one"
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
    "vllm": (
        _vllm("blocks of 32"),
        _vllm("blocks of 64", block_size=64),
        _vllm("blocks of 128", block_size=128),
        _vllm("prompts in chunks of 50", max_num_batched_tokens=50, max_num_seqs=20),
        _vllm("unequal prompts", prompts=unequal),
        _vllm(
            "shared prefixes",
            "vllm:prefix_cache_hits",
            in_pairs,
            enable_prefix_caching=True,
            one_by_one=True,
        ),
        _vllm("pool of 24 blocks", "vllm:num_preemptions", num_gpu_blocks_override=24),
        Setting("bfloat16", "full", None, {"dtype": "bfloat16"}, 0.03, tie=0.15),
        Setting("sliding window and softcap", "full", model="gemma2"),
        Setting("sliding window and sinks", "full", model="gpt_oss"),
        _fp8("fp8_e4m3"),
        _fp8("fp8_e5m2"),
    ),
    WITH_PLUGIN: (
        *map(_plugged, PLUGGED),
        *(_plugged(method, ALONE) for method in ("tova", "caote:h2o")),
        _plugged("h2o", "control: budget 160", budget=160),
        _plugged("h2o", "control: pages of 64", spec="h2o@page=64,kv_heads=model"),
    ),
}
"""What is checked of each engine."""

TINY = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "sliding_window": 40}
TINY |= {"max_position_embeddings": 1024}
"""Sizes of a model with random weights; a window of 40 is shorter than every prompt."""


def save_random_model(architecture: str, directory: Path) -> None:
    """Write a tiny model of Transformers' architecture, the same every time."""
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    config = AutoConfig.for_model(architecture, initializer_range=0.2, **TINY, **experts)
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
