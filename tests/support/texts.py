"""A tiny random model that reads any text, and lm-eval tasks on local data."""

import json

import torch
import yaml
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from study.architectures import sharpen
from support.models import SHAPE, SHARPER

END = "<end>"


def byte_model(directory, context: int = 1024):
    """Save a Llama whose tokens are bytes; returns the directory."""
    symbols = sorted(ByteLevel.alphabet())
    vocabulary = {END: 0, **{symbol: number for number, symbol in enumerate(symbols, start=1)}}
    inner = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = ByteDecoder()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=END, bos_token=END, clean_up_tokenization_spaces=False
    )
    torch.manual_seed(0)
    smaller = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0)
    sizes = {"vocab_size": len(vocabulary), "max_position_embeddings": context}
    model = LlamaForCausalLM(LlamaConfig(**{**SHAPE, **smaller, **special, **sizes}))
    sharpen(model, SHARPER)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


CHOOSING = {"output_type": "multiple_choice", "doc_to_text": "{{question}}"}
CHOOSING |= {"doc_to_choice": "{{choices}}", "doc_to_target": "{{label}}"}
"""How lm-eval reads rows of question, choices and label."""


def write_task(folder, name: str, rows: list[dict], **definition) -> str:
    """Write a task and its data; ``definition`` is what lm-eval's YAML says besides."""
    data = folder / f"{name}.jsonl"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {
            "data_files": {"train": str(data), "test": str(data)},
            "cache_dir": str(folder / "cache"),
        },
        "test_split": "test",
        **definition,
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(task), encoding="utf-8")
    return name
