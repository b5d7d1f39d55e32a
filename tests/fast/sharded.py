"""Some methods on the embedded model; each of several processes writes what it found."""

import json
import os
import sys
from pathlib import Path

import torch

from kvlab.fast import compress
from kvlab.fast.models.loading import load
from kvlab.reference.models import reasoner_directory
from kvlab.reference.tasks import reasoning

TOKENS = 5
PROMPTS = [problem.prompt for problem in reasoning.held_out(2)]
"""Of different lengths."""

SPECS: dict[str, int | None] = {
    "streaming_llm": 80,
    "random@recent=8": 80,
    "h2o": 80,
    "tova": 80,
    "tova@per_head=true": 80,
    "nacl": 80,
    "rpc@interval=16,selector=4,heads=group": None,
    "kivi@residual=32,group=8": None,
    "lazy_eviction@window=8,threshold=0.01": 80,
    "caote:h2o": 80,
}


def run_all(model, tokenizer) -> dict:
    """Return tokens and positions of every method, or why it was refused."""
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.eos_token
    inputs = tokenizer(PROMPTS, return_tensors="pt", padding=True)
    found = {}
    for spec, budget in SPECS.items():
        try:
            with compress(model, spec, budget, block_size=32) as cache:
                written = model.generate(
                    **inputs, past_key_values=cache, max_new_tokens=TOKENS, eos_token_id=None
                )
                positions = [layer.tolist() for layer in cache.positions()]
        except ValueError as error:
            found[spec] = {"refusal": str(error)}
        else:
            found[spec] = {"tokens": written.tolist(), "positions": positions}
    return found


def write_found(folder: Path) -> None:
    """Run every method as one of several processes, and write what this one found."""
    found = run_all(*load(reasoner_directory(), "float64", parallel="tensor"))
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    write_found(Path(sys.argv[1]))
