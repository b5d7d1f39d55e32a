"""The playground writes the reference's tokens, with the embedded models under every method."""

import json
from pathlib import Path

import pytest

from kvlab.reference import Transformer, methods
from kvlab.reference.generate import generate
from kvlab.reference.models import embedded_directory
from kvlab.reference.tasks import jumps, reasoning
from kvlab.reference.transformer import end_of_text, load_tokenizer
from support.node import node

SCRIPT = Path(__file__).with_name("generate_all.mjs")

BUDGETED = (
    "streaming_llm",
    "streaming_llm@reposition=true",
    "h2o",
    "tova",
    "tova@recent=16",
    "snapkv@window=8",
    "snapkv@window=8,schedule=every_block",
    "rkv@every=16",
    "raas@threshold=0.01,pin_prompt=false",
    "raas@page=4,pin_prompt=false",
    "lazy_eviction@window=16,threshold=0.01",
    "ahakv@recent=16",
    "caote:h2o",
    "caote:tova",
    "caote:snapkv@window=8",
    "caote:ahakv@recent=16",
    "caote:lazy_eviction@window=16,threshold=0.01",
    "caote:h2o@several=sequential,every=4",
    "fast_caote:h2o",
    "random@seed=3",
    "random@recent=16,draw=once",
    "random:h2o",
    "random:tova@sinks=1",
    "random:caote:tova@heads=layer,seed=5",
    "random:caote:h2o@protect=none,draw=once",
)
"""Not Knorm: in the first layer equal words have keys of equal length, and rounding decides."""
UNBUDGETED = (
    "full",
    "kivi@key_bits=4,value_bits=4,residual=32",
    "kivi@key_bits=2,value_bits=2,residual=32",
    "random:desirekv@interval=32,selector=8,group=32",
    "desirekv@interval=32,selector=8,group=32",
)
MOST_TOKENS = 96

STARTING_POINTS = {
    "Recency": "streaming_llm@sinks=0",
    "H2O": "h2o",
    "TOVA": "tova@per_head=true,recent=50",
    "Key norm": "knorm@recent=50",
    "CAOTE": "caote:h2o",
}
"""The method that each score of the lab writes like, at a budget of 100 entries."""


def jobs(prompt: str, length: int) -> list:
    """Return what to write with every method, at half and at four fifths of the full cache."""
    budgets = [round(share * length) for share in (0.5, 0.8)]
    return [
        *([spec, budget, prompt, MOST_TOKENS] for spec in BUDGETED for budget in budgets),
        *([spec, None, prompt, MOST_TOKENS] for spec in UNBUDGETED),
    ]


def written(model: str, asked: list) -> list[list[int]]:
    """Let the playground write, under Node.js."""
    return json.loads(node(SCRIPT, embedded_directory(model), json.dumps(asked)))


def compare(name: str, asked: list) -> set[tuple[int, ...]]:
    """Compare with what the reference writes; return the different texts."""
    directory = embedded_directory(name)
    model, tokenizer = Transformer.from_directory(directory), load_tokenizer(directory)
    end, found = end_of_text(directory), written(name, asked)
    for (spec, budget, prompt, most), ids in zip(asked, found, strict=True):
        policy = methods.get(spec, budget)
        expected = generate(model, policy, tokenizer.encode(prompt).ids, most, end)
        assert tuple(ids) == expected.tokens, (spec, budget)
    return {tuple(ids) for ids in found}


def problem(name: str) -> jumps.Problem | reasoning.Problem:
    """Return a problem of an embedded model."""
    if name == "jumps":
        return jumps.held_out(1, size=jumps.Size(fewest=8, most=12))[0]
    return reasoning.held_out(2)[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jumps", "reasoner"])
def test_some_methods_write_the_tokens_of_the_reference(name):
    prompt, length = problem(name).prompt, problem(name).tokens
    changed = prompt.replace("+", "-", 1) if name == "reasoner" else prompt[:-1] + "1"
    assert changed != prompt
    asked = [
        ["streaming_llm", length // 2, prompt, 48],
        ["caote:h2o", round(0.7 * length), prompt, 64],
        ["caote:h2o", round(0.7 * length), changed, 64],
        [UNBUDGETED[-1], None, prompt, 48],
        ["random:h2o", length // 3, prompt, 32],
    ]
    assert len(compare(name, asked)) == len(asked)


@pytest.mark.slow
def test_scores_to_begin_with_write_the_tokens_of_their_methods():
    found = json.loads(node(SCRIPT.with_name("starting_points.mjs")))
    assert list(found) == list(STARTING_POINTS)
    prompt = problem("jumps").prompt
    asked = [[spec, 100, prompt, 40] for spec in STARTING_POINTS.values()]
    ours = written(
        "jumps",
        [
            [f"yours@code={code}", *rest]
            for code, (_, *rest) in zip(found.values(), asked, strict=True)
        ],
    )
    assert len(compare("jumps", asked)) == len(asked), "scores that write the same tell nothing"
    assert ours == written("jumps", asked)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jumps", "reasoner"])
def test_every_method_writes_the_tokens_of_the_reference(name):
    asked = jobs(problem(name).prompt, problem(name).tokens)
    assert len(compare(name, asked)) > len(asked) // 3, "methods that write the same differ nowhere"
