"""What the page "Which method for my model?" knows: cases, commands, and what was measured.

Every figure is read from a stored sweep; a method stands beside its matched control.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kvlab.fast.lab.evaluate.statistics import Interval
from kvlab.reference.simulator.sizes import SHAPES
from study.ledger import Source, Verdict

SMOLLM2 = 2 * 2 * 30 * 3 * 64
"""Bytes of a token's keys and values: 30 layers of 3 KV heads, 64 channels, 16 bits."""
SIZES = {"SmolLM2 (135M)": SMOLLM2} | {name: x.token_bytes for name, x in SHAPES.items()}
"""Bytes of one token's keys and values in 16 bits, by the model whose sizes they are."""

PERPLEXITY = "kvlab perplexity --model {model} --window {window} --windows 12 --budgets {budget}"
FED = (
    "kvlab perplexity --model {model} --text traces.jsonl --window {window} --windows 12 "
    "--prompt {prompt} --feed steps --budgets {budget}"
)


@dataclass(frozen=True)
class Case:
    """What a reader may lose, and what is known of it."""

    name: str
    lost: str
    """What may be lost, as the form asks it."""
    command: str
    """With the places {model}, {window}, {prompt} and {budget}."""
    tried: tuple[str, ...]
    """Methods that the command measures."""
    shown: tuple[str, ...]
    """Methods of the sweep that are listed."""
    sweep: str
    budgets: tuple[str, ...]
    told: str
    """What a figure says: the verb, with {} for the number."""
    where: str
    """Model, texts and their number."""
    tokens: int
    """Of the texts that were measured."""


CASES = (
    Case(
        name="chat",
        lost="A word here and there: a chat",
        command=PERPLEXITY,
        tried=("tova@per_head=true,protected=first4", "caote:tova@protected=first4"),
        shown=("tova@per_head=true,protected=first4", "caote:tova@protected=first4"),
        sweep="map_chat",
        budgets=("30%",),
        told="predicts {} % of the full cache's tokens",
        where="SmolLM2, 16 of its own chat answers",
        tokens=170,
    ),
    Case(
        name="stream",
        lost="A little likelihood: a long text that streams by",
        command=PERPLEXITY,
        tried=("caote:h2o", "ahakv@recent=32", "streaming_llm"),
        shown=("ahakv@recent=32", "caote:h2o", "tova@per_head=true", "streaming_llm"),
        sweep="loss_smollm2",
        budgets=("25%", "50%"),
        told="loses {} nats per token",
        where="SmolLM2, 16 windows of 512 tokens of a novel",
        tokens=512,
    ),
    Case(
        name="steps",
        lost="Nothing: one wrong token ruins the answer (reasoning, code)",
        command=FED,
        tried=("caote:h2o", "lazy_eviction@threshold=0.01"),
        shown=("caote:h2o", "lazy_eviction@threshold=0.01", "h2o"),
        sweep="study",
        budgets=("30%", "40%", "50%", "70%"),
        told="solves {} % of the programs",
        where="an embedded model of 0.8 million parameters, 300 jump programs",
        tokens=554,
    ),
    Case(
        name="later",
        lost="Nothing of the prompt: questions come later",
        command="kvlab needle --model {model} --lengths {window} --trials 2 --budgets {budget}",
        tried=("kivi", "snapkv@schedule=every_block", "caote:h2o"),
        shown=("snapkv@schedule=every_block", "caote:h2o", "tova@per_head=true"),
        sweep="needle_smollm2",
        budgets=("512",),
        told="finds {} % of the numbers",
        where="SmolLM2, 20 questions on texts of 1,000 tokens, half of the entries",
        tokens=1000,
    ),
    Case(
        name="bits",
        lost="Digits of keys and values, but few entries",
        command=PERPLEXITY,
        tried=("kivi", "full@precision=nvfp4", "caote:h2o@precision=nvfp4"),
        shown=("full@precision=fp8", "full@precision=nvfp4", "caote:h2o@precision=nvfp4"),
        sweep="loss_smollm2",
        budgets=("25%", "50%"),
        told="loses {} nats per token",
        where="SmolLM2, 16 windows of 512 tokens of a novel",
        tokens=512,
    ),
)


def percent_of(budget: str) -> int:
    """Return a budget of a sweep as a percentage of the text; those in entries are half."""
    return int(budget[:-1]) if budget.endswith("%") else 50


def known(case: Case, budget: str) -> Iterator[str]:
    """Say what each method reaches, its control, and whether the gain is significant."""
    source, nats = Source(case.sweep, budget), "nats" in case.told
    figure = source.nats if nats else source.share
    controls = {each.first: each.second for each in source.summary().gains}
    for method in case.shown:
        at = {"budget": None} if method.startswith("full") else {}
        own = figure(method, **at)
        text = f"`{method}` {case.told.format(written(own, nats))}"
        if case.name == "bits":
            text += f" in {(source.point(method, **at).mean('nbytes') or 0) / 2**20:.2f} MiB"
        if method in controls:
            control = figure(controls[method])
            (gain,) = source.gains(method)
            text += f"; its control {written(control, nats)}"
            text += f": {verdict(gain, nats)}" if own != control else " (the same)"
        yield f"{text}."


def written(found: Interval, nats: bool) -> str:
    """Write a figure and its interval."""
    return found.written(".3f" if nats else ".1f").replace("−0.000", "0.000")


def verdict(gain: Verdict, nats: bool) -> str:
    """Say what a paired test says."""
    said = {"better": "significantly better, by", "worse": "significantly worse, by"}
    unit = "nats" if nats else "points"
    return f"{said.get(gain.said, 'not significant:')} {written(gain.gain, nats)} {unit}"


def command(case: Case) -> str:
    """Return the command of a case with its places."""
    return f'{case.command} --methods "{" ".join(case.tried)}"'
