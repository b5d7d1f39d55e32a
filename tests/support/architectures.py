"""Small random models of many architectures, and what they compute without kvlab."""

import importlib

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from kvlab.fast.huggingface.attaching import implementation
from study.architectures import sharpen
from support.models import SHAPE, SHARPER
from support.tolerances import FLOAT32_LOGITS

TEXT = {**SHAPE, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4}
ALTERNATING = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2}
SMALL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "patch_size": 4}


def built(kind, module: str, name: str, **options):
    config = getattr(importlib.import_module(f"transformers.models.{module}"), name)(**options)
    torch.manual_seed(0)
    model = kind.from_config(config).eval()
    sharpen(model, SHARPER)
    return model


def text_model(module: str, name: str, **options):
    return built(AutoModelForCausalLM, module, name, **{**TEXT, **options})


def gemma3_with_vision():
    return built(
        AutoModelForImageTextToText,
        "gemma3",
        "Gemma3Config",
        text_config={**TEXT, **ALTERNATING},
        vision_config={**VISION, "image_size": 8, "num_attention_heads": 2},
        mm_tokens_per_image=4,
        image_token_index=90,
    )


def qwen_with_vision():
    return built(
        AutoModelForImageTextToText,
        "qwen2_5_vl",
        "Qwen2_5_VLConfig",
        text_config={**TEXT, "rope_parameters": ROPE_IN_THREE},
        vision_config=QWEN_VISION,
        image_token_id=90,
        video_token_id=91,
        vision_start_token_id=92,
        vision_end_token_id=93,
    )


ROPE_IN_THREE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
QWEN_VISION = {
    **{"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2},
    **{"out_hidden_size": 64, "patch_size": 4, "window_size": 16, "fullatt_block_indexes": [0]},
}


def eager(model, **inputs):
    with torch.no_grad(), implementation(model, "eager"):
        return model(**inputs, use_cache=False).logits


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=FLOAT32_LOGITS * expected.std())


def model_of(module: str, name: str, **options):
    """Return a small model whose norms and biases are not those of a fresh one."""
    model = text_model(module, name, **{"num_hidden_layers": 1, **options})
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.copy_(torch.rand(parameter.shape, generator=generator) + 0.5)
    return model
