"""What the trainings of both embedded models share: tokenizer, untrained model, learning rate."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

IGNORED = -100
"""Target that the loss leaves out."""


@dataclass(frozen=True)
class Schedule:
    """What decides the learning rate."""

    steps: int
    """Steps of the whole training."""
    learning_rate: float
    """The highest learning rate."""
    warmup: int
    """Steps until the highest rate is reached."""
    decay: float
    """Share of the steps, at the end, over which the rate falls to zero."""


def token_ids(vocabulary: Sequence[str]) -> dict[str, int]:
    """Return the id of every token."""
    return {token: i for i, token in enumerate(vocabulary)}


def write_tokenizer(directory: Path, vocabulary: Sequence[str], end: str) -> None:
    """Write a tokenizer that splits text at single blanks into the tokens of a task."""
    tokenizer = Tokenizer(WordLevel(token_ids(vocabulary), unk_token=end))
    tokenizer.pre_tokenizer = Split(" ", "removed")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=end,
        eos_token=end,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(directory)


def build_model(
    seed: int, vocabulary: Sequence[str], end: str, names: Sequence[str], **options: Any
) -> LlamaForCausalLM:
    """Return the untrained model; the embedding of ``x3`` is the sum of those of ``x`` and ``3``.

    ``names`` are the tokens that stand beside a digit in such facts, ``options`` go to the
    configuration (``max_position_embeddings``, ``rope_parameters``).
    """
    torch.manual_seed(seed)
    ids = token_ids(vocabulary)
    config = LlamaConfig(
        vocab_size=len(ids),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        bos_token_id=ids[end],
        eos_token_id=ids[end],
        pad_token_id=None,
        **options,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.mul_(1 / math.sqrt(2 * config.num_hidden_layers))
        table = model.model.embed_tokens.weight
        for name in names:
            for digit in range(10):
                table[ids[f"{name}{digit}"]] = table[ids[name]] + table[ids[str(digit)]]
    return model


def learning_rate(step: int, recipe: Schedule) -> float:
    """Warm up, hold, then fall along a cosine to zero."""
    start = recipe.steps * (1 - recipe.decay)
    progress = max(0.0, (step - start) / (recipe.steps - start))
    return (
        recipe.learning_rate
        * min(1, (step + 1) / recipe.warmup)
        * (1 + math.cos(math.pi * progress))
        / 2
    )


def parse_arguments(description: str | None, seed: int, steps: int) -> argparse.Namespace:
    """Read ``--out``, ``--seed`` and ``--steps`` from the command line, and make the directory."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=seed)
    parser.add_argument("--steps", type=int, default=steps)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    return arguments
