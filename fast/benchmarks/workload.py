"""The model and text that every contender is measured on; needs torch and transformers alone."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

ENTRIES = 256
"""Entries per head that every compressed contender keeps."""


@dataclass(frozen=True)
class Run:
    """One generation."""

    prompt: int
    """Tokens of the prompt."""
    tokens: int
    """Tokens to write."""


WHOLE = Run(prompt=64, tokens=4096)
"""A long generation: the full cache grows to 4,160 entries."""

CONSTANT = Run(prompt=300, tokens=128)
"""A compressed cache that is full from the start and stays so."""

FULL_AT_SAME_SIZE = Run(prompt=ENTRIES - 64, tokens=128)
"""A full cache that holds `ENTRIES` entries on average."""


def tiny_llama(device: str = "cpu") -> Any:
    """Return a random Llama of 4 layers, 8 heads of 32 channels; the same on every machine."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=32768,
    )
    model: Any = LlamaForCausalLM(config).eval()
    model = model.to(device)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def prompt(run: Run, device: str = "cpu") -> torch.Tensor:
    """Return random token ids; none is the padding token."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(1, 512, (1, run.prompt), generator=generator).to(device)


class Stopwatch:
    """Notes when tokens come; ``model.generate`` takes it as ``streamer``."""

    def __init__(self, device: str = "cpu") -> None:
        self.device, self.times = device, []

    def put(self, value: Any) -> None:
        """Take in the prompt, then every token."""
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing more will come."""


def tokens_per_second(
    generate: Callable[..., Any], run: Run, whole: bool, device: str = "cpu"
) -> float:
    """Measure one generation.

    Args:
        generate: ``model.generate`` with everything but prompt, length and streamer.
        run: how much to read and write.
        whole: count the prompt's time, too; otherwise from the first token to the last.
        device: as PyTorch names it.
    """
    watch = Stopwatch(device)
    ids = prompt(run, device)
    generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=run.tokens,
        min_new_tokens=run.tokens,
        do_sample=False,
        streamer=watch,
    )
    first = 0 if whole else 1
    return (len(watch.times) - 1 - first) / (watch.times[-1] - watch.times[first])
