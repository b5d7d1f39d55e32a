"""The models and texts that every contender is measured on; needs torch and transformers alone."""

import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Cache, GenerationConfig, LlamaConfig

ENTRIES = 256
"""Entries per head that every compressed contender keeps of the small model's text."""

DATA = tomllib.loads(Path(__file__).with_name("benchmarks.toml").read_text(encoding="utf-8"))
VOCABULARY: int = DATA["llama"]["tiny"]["vocab_size"]


@dataclass(frozen=True)
class Run:
    """One generation."""

    prompt: int
    tokens: int
    batch: int = 1


Holds = tuple[int, int]
"""Entries of the fullest head of a cache's fullest layer, and bytes allocated in all layers."""


@dataclass(frozen=True)
class Outcome:
    """How long one generation took, and what its cache held."""

    first: float
    """Seconds until the first token, in which the prompt is read."""
    rest: float
    """Seconds from the first token to the last."""
    tokens: int
    entries: int = 0
    """Entries of the fullest head in the end, or the most that a watched cache ever held."""
    bytes: int = 0
    wall: float = 0.0
    """Seconds on the clock from the first token to the last, where ``rest`` is CPU time."""

    def speed(self, with_prompt: bool) -> float:
        """Return tokens per second, from the first token on unless the prompt counts, too."""
        if with_prompt:
            return self.tokens / (self.first + self.rest)
        return (self.tokens - 1) / self.rest


def random_llama(device: str, dtype: torch.dtype, **config: Any) -> Any:
    """Return a Llama of random weights that never ends a text; the same on every machine."""
    torch.manual_seed(0)
    with torch.device(device):
        model: Any = AutoModelForCausalLM.from_config(LlamaConfig(**config), dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def tiny_llama(device: str = "cpu", shape: str = "tiny") -> Any:
    """Return a model of 4 layers; ``shape``: tiny, or host, in which nothing takes time."""
    model = random_llama("cpu", torch.float32, **DATA["llama"][shape])  # devices draw otherwise
    return model.to(device)


def fetched(directory: str) -> Any:
    """Return the language model in a directory, in float32; it never ends a text."""
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    model.generation_config = GenerationConfig(pad_token_id=0)
    return model


def drawn(run: Run, known: int = VOCABULARY) -> torch.Tensor:
    """Return the random tokens of a prompt, ``[batch, prompt]``; 0, which is padding, is none."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(1, known, (run.batch, run.prompt), generator=generator)


def generate(model: Any, run: Run, cache: Any, streamer: Any) -> None:
    """Read random tokens, and write, greedily, to the end; ``streamer`` is told of each token."""
    ids = drawn(run, min(VOCABULARY, model.config.vocab_size)).to(model.device)
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        past_key_values=cache,
        max_new_tokens=run.tokens,
        min_new_tokens=run.tokens,
        do_sample=False,
        streamer=streamer,
    )


def held_by(cache: Cache) -> Holds:
    """Return what a cache of transformers or of kvlab holds."""
    every: Any = cache
    if hasattr(every, "kept"):
        return max((max(x) for x in every.kept() if x), default=0), every.memory().total
    every = cache.layers
    layers = [layer for layer in every if layer.is_initialized]
    entries = max((layer.keys.shape[-2] for layer in layers), default=0)
    return entries, sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)


def measure(model: Any, run: Run, cache: Any, watched: bool, cpu_time: bool) -> Outcome:
    """Generate once with an empty cache; say how long it took, and what the cache held.

    ``watched``: read the cache between any two tokens, which takes time; else only at the end.
    """
    clock = time.process_time if cpu_time else time.perf_counter
    times: list[tuple[float, float]] = []
    found: list[Holds] = []

    def notice(value: Any) -> None:
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)
        times.append((clock(), time.perf_counter()))
        if watched:
            found.append(held_by(cache))

    generate(model, run, cache, SimpleNamespace(put=notice, end=lambda: None))
    found.append(held_by(cache))
    entries, held = (max(each) for each in zip(*found, strict=True))
    (start, _), (first, began), (last, ended) = times[0], times[1], times[-1]
    return Outcome(first - start, last - first, len(times) - 1, entries, held, ended - began)
