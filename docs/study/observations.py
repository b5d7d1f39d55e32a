"""What three papers observed in the attention and the keys of their models, on any model's texts.

    python -m study.observations --model smollm2 --out observations.json

LazyEviction: important tokens change and recur (Fig. 2b, 3c). AhaKV: accumulated attention prefers
early positions (Fig. 2c). DesireKV: outliers tell the error of stored keys, and nothing about
importance (Fig. 2, 3). Everything is computed from one trace of a text, read with the full cache.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from kvlab.fast.lab.evaluate.likelihood import Passage, cut_windows
from kvlab.fast.lab.files import write_text
from kvlab.fast.lab.generation import decoding_options, token_ids
from kvlab.fast.lab.loop import Step, kept, run_all
from kvlab.fast.lab.measure import left_padded
from kvlab.fast.lab.provenance import versions
from kvlab.fast.lab.recording import record_trace
from kvlab.fast.lab.terminal import print_line, progress_bar, run
from kvlab.fast.models.loading import load
from kvlab.reference import methods
from kvlab.reference.models import EMBEDDED
from kvlab.reference.proofs.definitions import spearman
from kvlab.reference.proofs.lazy_eviction import missing_before
from kvlab.reference.selection import budget_entries
from kvlab.reference.simulator.observed import (
    QUADRANTS,
    activations,
    quadrants,
)
from kvlab.reference.simulator.replay import Layer, replay
from kvlab.reference.simulator.trace import Trace
from kvlab.reference.tasks import english, needle, reasoning
from study.precision import outliers_and_errors

INSTRUCTION = (
    "Write down every number in this text, and what it belongs to. Then add the numbers, one after "
    "the other, and explain every step."
)
"""What a model that reads English is told to do with a text that hides five numbers."""
TEMPERATURE = 0.7
"""Temperature at which the model writes; greedy texts of small models repeat themselves."""

THRESHOLDS = (1e-4, 5e-4, 1e-2)
"""Attention α that activates an entry: LazyEviction's for Qwen and for Llama, and a larger one."""
GAP = 16
"""Steps back at which a token that is important now is looked for (LazyEviction Fig. 2b)."""
RECENT = 32
"""Rows that AhaKV sums; the same number of newest tokens is left out of the figures of bias."""
KEEPERS = {
    "H2O": "h2o@recent=0",
    "AhaKV": f"ahakv@recent={RECENT}",
    "AhaKV without gain": f"ahakv@recent={RECENT},gain=none",
    "AhaKV, all rows": f"ahakv@recent={RECENT},accumulation=all",
    "AhaKV without values": f"ahakv@recent={RECENT},value_prior=none",
}
"""Methods whose keep sets are compared; H2O has no recent half here, so its scores decide."""
BITS = (8, 4, 2)

Figures = dict[str, float]


# --- figures of one trace ------------------------------------------------------------------------


def problem_passages(tokenizer: Any, count: int) -> list[Passage]:
    """Return problems of the embedded model as passages: the solutions are rated."""
    return [
        Passage(token_ids(tokenizer, each.prompt), token_ids(tokenizer, each.solution))
        for each in reasoning.held_out(count)
    ]


def recurrence_figures(trace: Trace) -> Figures:
    """Return how entries recur: share with MRI > 1, and W, the MRI below which 80 % lie."""
    found: Figures = {}
    for threshold in THRESHOLDS:
        longest = np.array([entry.interval for entry in activations(trace, threshold)])
        found[f"MRI > 1, α = {threshold:g}"] = float((longest > 1).mean())
        for level in (50, 80, 95):
            mri = float(np.percentile(longest[longest > 0], level))
            found[f"MRI, {level} %, α = {threshold:g}"] = mri
        window = found[f"MRI, 80 %, α = {threshold:g}"]
        found[f"W / written, α = {threshold:g}"] = window / (trace.shape[3] - trace.prompt)
    heads = ((head, trace.prompt) for each in attention(trace) for head in each.max(axis=1))
    latest, summed = missing_before(heads, GAP)
    found[f"missing {GAP} steps before, by attention"] = latest
    found[f"missing {GAP} steps before, by its sum"] = summed
    return found


def bias_figures(trace: Trace) -> Figures:
    """Return how accumulated attention and what methods keep of a quarter depend on position.

    Without bias a correlation is 0, and half of the kept entries are in the first half of the text.
    The whole text is read as a prompt, and its last `RECENT` tokens do not count.
    """
    t = trace.shape[3]
    judged = np.arange(t - RECENT)
    everything, recent = [], []
    for layer in attention(trace):
        for rows in layer.reshape(-1, t, t):
            everything.append(spearman(judged, rows[:, judged].sum(axis=0)))
            recent.append(spearman(judged, rows[-RECENT:, judged].sum(axis=0)))
    found = {
        "position and attention of all rows": float(np.mean(everything)),
        f"position and attention of the last {RECENT} rows": float(np.mean(recent)),
    }
    policies = [methods.get(spec, budget_entries("25%", t)) for spec in KEEPERS.values()]
    layers = list(replay(replace(trace, prompt=t), policies))
    for number, name in enumerate(KEEPERS):
        kept = np.concatenate([fates[number].kept(t - 1).ravel() for fates in layers])
        kept = kept[kept < len(judged)]
        found[f"kept in the first half by {name}"] = float((kept < len(judged) / 2).mean())
    return found


def precision_figures(trace: Trace) -> Figures:
    """Return how outliers, errors of stored keys, and importance are related."""
    G, d = trace.shape[1], trace.shape[-1]
    correlations, squares, counts = [], [], dict.fromkeys(QUADRANTS, 0)
    for number in range(trace.shape[0]):
        layer = Layer.of(trace, number)
        scores, errors = outliers_and_errors(layer.keys, 4)
        correlations += [spearman(scores[head], errors[head]) for head in range(G)]
        judged = quadrants(layer, group=d)
        squares.append(judged.r_squared)
        for name in counts:
            counts[name] += judged.counts[name]
    found = {
        "outlier score and error at 4 bits": float(np.mean(correlations)),
        "R² of importance and sensitivity": float(np.mean(squares)),
    }
    found |= {name: count / sum(counts.values()) for name, count in counts.items()}
    for kind in ("keys", "values"):
        vectors = getattr(trace, kind).astype(np.float64)
        flat = vectors.reshape(-1, *vectors.shape[-2:])
        for bits in BITS:
            errors = outliers_and_errors(flat, bits)[1]
            ratio = np.sqrt((errors**2).mean() / (flat**2).mean())
            found[f"error of {kind} at {bits} bits"] = float(ratio)
    return found


def attention(trace: Trace) -> Iterator[np.ndarray]:
    """Yield the causal attention ``[G, rho, t, t]`` of every recorded layer."""
    t = trace.shape[3]
    for number in range(trace.shape[0]):
        yield Layer.of(trace, number).full_attention(0, t)


# --- texts ---------------------------------------------------------------------------------------


def read(model: Any, passage: Passage, every: int = 1) -> Trace:
    """Read a text at once with the full cache, and record every ``every``-th layer.

    Attention is causal, so the rated tokens see what they would have seen one by one.
    """
    ids = torch.tensor([[*passage.prompt, *passage.rated]], device=model.device)
    layers = range(0, model.config.num_hidden_layers, every)
    options = decoding_options(model, max_new_tokens=1)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    trace = record_trace(model, layers=layers, **given, **options)
    return replace(trace, prompt=len(passage.prompt))


def write(model: Any, tokenizer: Any, count: int, tokens: int, seed: int) -> list[Passage]:
    """Let a model that reads English follow `INSTRUCTION`; what it writes does not end early.

    Args:
        model: a decoder of transformers.
        tokenizer: tokenizer of the model, with a chat template.
        count: texts.
        tokens: tokens that the model writes.
        seed: seed of the texts and of the draws.
    """
    problems = needle.haystacks(len(needle.KINDS) * count, seed, words=120, needles=5)
    chats = (
        [{"role": "user", "content": f"{each.context}\n\n{INSTRUCTION}"}]
        for each in problems[:: len(needle.KINDS)]
    )
    template = partial(tokenizer.apply_chat_template, tokenize=False, add_generation_prompt=True)
    prompts = [token_ids(tokenizer, template(each)) for each in chats]
    ids, real = left_padded(prompts, model.device)
    torch.manual_seed(seed)
    options = decoding_options(model, tokens, TEMPERATURE)
    written = model.generate(ids, attention_mask=real.long(), min_new_tokens=tokens, **options)
    answers = written[:, ids.shape[1] :].tolist()
    return [Passage(*both) for both in zip(prompts, answers, strict=True)]


def passages(
    model: Any, tokenizer: Any, embedded: bool, count: int, tokens: int, seed: int
) -> dict[str, list[Passage]]:
    """Return texts by kind: written by the model, and, if it reads English, of the novel.

    Passages of the novel have as many given and as many rated tokens as the written texts.
    """
    if embedded:
        return {"written": problem_passages(tokenizer, count)}
    written = write(model, tokenizer, count, tokens, seed)
    given = round(np.mean([len(each.prompt) for each in written]))
    novel = token_ids(tokenizer, english.novel())
    return {"written": written, "novel": cut_windows(novel, given + tokens, given, count)}


def main(
    out: Annotated[Path, typer.Option(help="JSON file to write.")],
    model: Annotated[str, typer.Option(help="Short name or directory.")] = "reasoner",
    texts: Annotated[int, typer.Option(min=2, help="Texts of each kind.")] = 6,
    tokens: Annotated[int, typer.Option(min=32, help="Tokens that the model writes.")] = 512,
    every: Annotated[int, typer.Option(min=1, help="Record every so many layers.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of texts and draws.")] = 0,
) -> None:
    """Measure what the papers observed; an embedded model reads its own problems alone."""
    network, tokenizer = load(model)
    result: dict[str, Any] = {
        "model": model,
        "seed": seed,
        "every": every,
        "versions": versions(),
        "texts": [],
    }
    asked = (model in EMBEDDED, texts, tokens, seed)
    given = {"model": model, "asked": asked, "every": every}

    def figures_of(passage: Passage) -> Figures:
        trace = read(network, passage, every)
        return recurrence_figures(trace) | bias_figures(trace) | precision_figures(trace)

    study = Path(__file__).read_text("utf-8")
    with progress_bar() as progress, kept("observations", **given, study=study) as store:
        writing = Step("writing texts", lambda: passages(network, tokenizer, *asked))
        found = run_all([writing], store, kind=dict[str, list[Passage]])[writing.id]
        everything = [(kind, passage) for kind, several in found.items() for passage in several]

        def tell(step: Step, figures: Figures) -> None:
            number, (kind, passage) = steps.index(step) + 1, everything[steps.index(step)]
            lengths = {"prompt": len(passage.prompt), "rated": len(passage.rated)}
            result["texts"].append({"kind": kind, **lengths, "figures": figures})
            write_text(out, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
            print_line(f"{number}: {kind}, {len(passage)} tokens")

        steps = [
            Step(f"{kind}, text {number}", partial(figures_of, passage))
            for number, (kind, passage) in enumerate(everything, start=1)
        ]
        run_all(steps, store, progress=progress, tell=tell)


if __name__ == "__main__":
    run(main)
