"""How many decisions part in bfloat16, in vLLM and without it: is it rounding, or the plug-in?

vLLM writes in bfloat16 under a method. Transformers then reads the same tokens under the same
method, once in float32 and once in bfloat16. Decisions of two of the three are compared in order,
up to the first one of a text that parts: up to there both have kept the same blocks. Where one
parts from float32, ``gaps`` has how far the scores in float32 of the blocks are apart that changed
places, as a share of the range of all scores: what is rounding exchanges blocks that are close.

    PYTHONPATH=docs python -m study.vllm_rounding --out docs/study/results/vllm_bfloat16.json
"""

import json
import shlex
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from kvlab.fast.engine import step
from kvlab.fast.huggingface import compress
from kvlab.fast.lab import engines
from kvlab.fast.lab.engines import agreement
from kvlab.fast.lab.provenance import versions
from kvlab.fast.models import cache_directory
from kvlab.reference.tasks import english

BLOCK = 32
READERS = ("vllm", "bfloat16", "float32")
"""Who decides: vLLM in bfloat16; transformers in bfloat16 and in float32."""
Decisions = Sequence[Sequence[Any]]
"""Of a text: after how many tokens, and the numbers of the blocks that were evicted."""
Rated = dict[tuple[int, int], dict[int, float]]
"""Scores of the blocks that may be evicted, by the text and the tokens seen."""


TINY = "tiny"


def weights_of(model: str) -> Path:
    """Return the directory of SmolLM2, or of a tiny Llama with random weights."""
    if model != TINY:
        return engines.weights_for("vllm")
    directory = cache_directory() / "engines" / "models" / TINY
    agreement.save_random_model("llama", directory)
    file = directory / "config.json"
    config = json.loads(file.read_text("utf-8"))
    config.pop("sliding_window", None)  # vLLM would slide one over it
    file.write_text(json.dumps(config))
    return directory


def command() -> str:
    """Return the command of the worker in vLLM's environment."""
    python, worker, _ = engines.launch("vllm")
    own = Path(__file__).with_name("vllm_decisions_worker.py")
    return shlex.join([python, str(own), worker])


@contextmanager
def rating(texts: int) -> Iterator[Rated]:
    """Note the scores by which all layers decide together."""
    found: Rated = {}
    own = step._mean_over_layers

    def noting(policy: Any, of_layers: Any, candidates: Any, kept: Any) -> torch.Tensor:
        scores = own(policy, of_layers, candidates, kept)
        (seen, *_) = (each for each in of_layers if each is not None)
        for row in range(texts):
            blocks = seen.positions[row, 0] // BLOCK
            may = blocks >= 0 if candidates is None else candidates[row, 0]
            rated = zip(blocks[may].tolist(), scores[row, 0][may].tolist(), strict=True)
            found.setdefault((row, seen.clock.rows[row].seen), {}).update(rated)
        return scores

    step._mean_over_layers = noting
    try:
        yield found
    finally:
        step._mean_over_layers = own


@torch.inference_mode()
def decided(model: Any, setting: Any, text: Mapping[str, Any]) -> list[list[list[Any]]]:
    """Return the decisions of kvlab in transformers, which reads the texts that vLLM wrote."""
    prompts, wanted = torch.tensor(text["prompts"]), torch.tensor(text["tokens"])
    found: list[list[list[Any]]] = [[] for _ in prompts]
    gone: list[set[int]] = [set() for _ in prompts]
    with compress(model, setting.spec, budget=setting.budget) as cache:
        for written in range(wanted.shape[1]):
            block = prompts if written == 0 else wanted[:, written - 1 : written]
            model(block, past_key_values=cache, logits_to_keep=1)
            seen = prompts.shape[1] + written
            for row, positions in enumerate(cache.positions()[0]):
                kept = {int(p) // BLOCK for p in positions.flatten() if p >= 0}
                new = {*range(-(-seen // BLOCK))} - kept - gone[row]
                gone[row] |= new
                if new:
                    found[row].append([seen, sorted(new)])
    return found


def compared(
    one: Sequence[Decisions], other: Sequence[Decisions], rated: Rated | None
) -> dict[str, Any]:
    """Count decisions up to the first of each text that parts, and the texts that part."""
    decisions, parted, gaps = 0, 0, []
    for number, (mine, its) in enumerate(zip(one, other, strict=True)):
        for a, b in zip(mine, its, strict=False):
            decisions += 1
            if a != b:
                parted += 1
                if rated is not None:
                    scores, out, instead = rated[number, b[0]], {*a[1]}, {*b[1]}
                    far = max(scores[x] for x in out - instead)
                    far -= min(scores[x] for x in instead - out)
                    gaps.append(far / (max(scores.values()) - min(scores.values())))
                break
    found = {"decisions": decisions, "parted": parted}
    return found if rated is None else {**found, "gaps": gaps}


def row_of(setting: Any, passages: Sequence[Sequence[int]], tokens: int) -> dict[str, Any]:
    """Compare the three under a method."""
    weights = weights_of(setting.model)
    load = partial(AutoModelForCausalLM.from_pretrained, weights, attn_implementation="eager")
    models = {name: load(dtype=getattr(torch, name)).eval() for name in READERS[1:]}
    vocabulary = models["float32"].config.vocab_size
    prompts = [[i % vocabulary for i in ids] for ids in passages]
    asked = {"weights": str(weights), "prompts": prompts, "tokens": tokens}
    options = {**setting.options, "dtype": "bfloat16"}
    text = engines.generate(command(), {**asked, "settings": options})
    every = {"vllm": text["evicted"]}
    every["bfloat16"] = decided(models["bfloat16"], setting, text)
    with rating(len(prompts)) as rated:
        every["float32"] = decided(models["float32"], setting, text)
    pairs = {
        f"{one} {other}": compared(every[one], every[other], rated if other == "float32" else None)
        for one, other in combinations(READERS, 2)
    }
    return {"model": setting.model, "setting": setting.name, **pairs}


def main() -> None:
    """Go on where an earlier run stopped."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--out", type=Path, required=True)
    told = parser.parse_args()
    said = f"python -m study.vllm_rounding --prompts {told.prompts} --tokens {told.tokens}"
    stored = {"command": said, "versions": versions(), "rows": []}
    if told.out.exists():
        stored = json.loads(told.out.read_text("utf-8"))
        assert stored["command"] == said
    _, tokenizer = agreement.load(engines.weights_for("vllm"))
    texts = (english.passage(np.random.default_rng(seed), 330) for seed in range(told.prompts))
    passages = [tokenizer(text).input_ids[:224] for text in texts]
    done = {(row["model"], row["setting"]) for row in stored["rows"]}
    settings = agreement.SETTINGS[agreement.WITH_PLUGIN]
    methods = [each for each in settings if not each.differs and each.in_numpy]
    for model, setting in product((TINY, agreement.SMOLLM2), methods):
        if (model, setting.name) not in done:
            row = row_of(replace(setting, model=model), passages, told.tokens)
            stored["rows"].append(row)
            told.out.write_text(json.dumps(stored, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
