"""Tiny random models of the six families, built alike."""

import functools

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
)

from study.architectures import sharpen

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
CONFIGS = {
    "llama": LlamaConfig(**SHAPE),
    "mistral": MistralConfig(**SHAPE, sliding_window=None),
    "qwen2": Qwen2Config(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE),
    "gemma2": Gemma2Config(**SHAPE, sliding_window=8, attn_logit_softcapping=4.0),
    "gemma3": Gemma3TextConfig(**{**SHAPE, "num_hidden_layers": 6}, sliding_window=8),
    "phi3": Phi3Config(**SHAPE),
}
SHARPER = 4.0
"""Factor on the weights: fresh ones give nearly uniform attention, which hides mistakes."""


@functools.cache
def tiny(family: str, dtype: torch.dtype = torch.float64):
    return built(CONFIGS[family], dtype)


def built(config, dtype: torch.dtype):
    torch.manual_seed(0)
    implementation = "eager" if config.model_type == "gemma2" else "sdpa"  # ignores its softcap
    model = AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()
    sharpen(model, SHARPER)
    model.generation_config.eos_token_id = None
    return model.to(dtype)


def prompts(lengths, seed: int = 0):
    """Return left-padded token ids and their attention mask."""
    generator = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    ids = torch.randint(3, 97, (len(lengths), longest), generator=generator)
    columns = torch.arange(longest)
    mask = (columns >= longest - torch.tensor(lengths)[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


class Between:
    """A streamer for `generate` that does something between two steps."""

    def __init__(self, act) -> None:
        self.act = act

    def put(self, value) -> None:
        self.act()

    def end(self) -> None:
        pass


GREEDY = {"do_sample": False, "output_logits": True, "return_dict_in_generate": True}


def written(model, cache, inputs, tokens: int, **options):
    """Generate greedily; return the new tokens and the logits of every step."""
    result = model.generate(
        **inputs, past_key_values=cache, max_new_tokens=tokens, **{**GREEDY, **options}
    )
    return result.sequences[:, inputs["input_ids"].shape[1] :], torch.stack(result.logits, dim=1)


CHOICES = 16
"""Different tokens in a column of the batch."""
TWO_LAYERS = {**SHAPE, "vocab_size": 64 * CHOICES, "num_hidden_layers": 2}
LAYERS = {
    "that share a cache": LlamaConfig(**TWO_LAYERS),
    "one, beside a sliding window": Gemma3TextConfig(
        **TWO_LAYERS,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=8,
    ),
}


@functools.cache
def model_with_layers(layers: str):
    return built(LAYERS[layers], torch.float64)
