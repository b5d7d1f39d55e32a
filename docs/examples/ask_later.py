"""Reads a part of a novel once, keeps it compressed in a file, and asks three questions about it.

A second process loads the file, and gives each question a copy of the cache. Its answers have to
be those of three runs without interruption. `kvlab models get smollm2` fetches the model.
"""

import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from kvlab.fast import compress
from kvlab.fast.models.loading import load
from kvlab.reference.tasks.english import novel

METHOD, BUDGET, TOKENS, ANSWER = "caote:h2o", "25%", 2000, 24
QUESTIONS = (
    "\n\nQuestion: What is the name of the heroine?\nAnswer:",
    "\n\nQuestion: How many children did her parents have?\nAnswer:",
    "\n\nQuestion: What did she prefer to play as a child?\nAnswer:",
)


def answer(model, cache, tokenizer, question: str) -> list[int]:
    """Ask about the text in a cache: only the question is given, with a mask of everything."""
    ids = tokenizer(question, return_tensors="pt", add_special_tokens=False)["input_ids"]
    mask = torch.ones(1, cache.get_seq_length() + ids.shape[1], dtype=torch.long)
    found = model.generate(
        ids,
        attention_mask=mask,
        past_key_values=cache,
        max_new_tokens=ANSWER,
        do_sample=False,
    )
    return found[0, ids.shape[1] :].tolist()


def asked_later(file: str) -> list[list[int]]:
    """Load a context, and answer every question with a copy of it."""
    model, tokenizer = load("smollm2", "float32", "cpu")
    with compress(model, METHOD, BUDGET) as cache:
        cache.load(file)
        return [answer(model, cache.copy(), tokenizer, question) for question in QUESTIONS]


def main() -> None:
    """Compare answers from a file with answers without interruption."""
    model, tokenizer = load("smollm2", "float32", "cpu")
    context = tokenizer(novel(), return_tensors="pt")["input_ids"][:, :TOKENS]
    uninterrupted = []
    with TemporaryDirectory() as directory:
        file = Path(directory) / "novel.safetensors"
        with compress(model, METHOD, BUDGET) as cache, torch.no_grad():
            for question in QUESTIONS:
                cache.reset()
                started = time.process_time()
                model(context, past_key_values=cache, logits_to_keep=1)
                reading = time.process_time() - started
                if not uninterrupted:
                    cache.save(file)
                    size, memory = file.stat().st_size, cache.memory().total
                    print(f"{TOKENS} tokens read in {reading:.1f} s of processor time")
                    print(f"{cache.kept()[0][0]} entries kept, {memory:,} bytes")
                    print(f"{file.name}: {size:,} bytes, {size / memory - 1:+.2%}")
                uninterrupted.append(answer(model, cache, tokenizer, question))
        later = subprocess.run(
            [sys.executable, __file__, str(file)], check=True, capture_output=True, text=True
        )
    for question, tokens in zip(QUESTIONS, uninterrupted, strict=True):
        print(f"{question.split('?')[0].strip()}?{tokenizer.decode(tokens)!r}")
    same = later.stdout.splitlines()[-1] == str(uninterrupted)
    print("the other process gives the same tokens" if same else f"it gives {later.stdout}")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    print(asked_later(sys.argv[1])) if len(sys.argv) > 1 else main()
