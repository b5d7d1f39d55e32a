"""The entry that H2O evicts and CAOTE keeps: what CAOTE's page says of it."""

import re
from pathlib import Path
from urllib.parse import parse_qs

import numpy as np

from kvlab.reference import Transformer, load_tokenizer, methods
from kvlab.reference.generate import generate
from kvlab.reference.models import embedded_directory
from kvlab.reference.tasks import jumps
from study import one_entry
from study.evictions import recomputed_errors
from support.site import module

PAGE = Path("docs/methods/caote.md").read_text("utf-8")
LATER = 12
"""Tokens from the decision to the first wrong token, as the page says."""


def test_the_entry_has_the_smaller_weight_and_the_farther_value():
    choice, _ = one_entry.find()
    first, second = choice.places
    assert choice.weights[first] == choice.weights[[first, second]].min()
    assert round(choice.distances[first] / choice.distances[second]) == 6
    recomputed = recomputed_errors(choice.weights, choice.values)
    np.testing.assert_allclose(choice.errors, recomputed, rtol=1e-9, atol=1e-12)
    assert choice.errors[first] > choice.errors[second]
    for place in choice.places:
        assert f"{100 * choice.weights[place]:.2f} %" in PAGE


def test_the_page_links_to_that_step_and_says_what_follows():
    (link,) = re.findall(r"playground/index\.md\?(\S+)\)", PAGE)
    asked = {name: values[0] for name, values in parse_qs(link).items()}
    choice, _ = one_entry.find()
    problem = jumps.held_out(1, size=one_entry.PROGRAM)[0]
    shown = module("playground_page").site()["models"]["jumps"]
    assert asked["problem"] == "jumps-0" and shown["prompts"][0] == problem.prompt
    assert asked["budget"] == "50%" and -(-shown["lengths"][0] // 2) == one_entry.BUDGET
    prompt = problem.prompt.split(" ")
    assert int(asked["step"]) == choice.seen - len(prompt)
    assert int(asked["token"]) == choice.positions[0]

    directory = embedded_directory("jumps")
    model, tokenizer = Transformer.from_directory(directory), load_tokenizer(directory)
    solution = tokenizer.encode(problem.solution).ids
    for spec, wrong in {"h2o": int(asked["step"]) + LATER, "caote:h2o": None}.items():
        policy = methods.get(spec, one_entry.BUDGET)
        ids = tokenizer.encode(problem.prompt).ids
        written = generate(model, policy, ids, len(solution)).tokens
        pairs = zip(written, solution, strict=True)
        assert [asked["method"], asked["with"]].count(spec) == 1
        assert next((i for i, (a, b) in enumerate(pairs) if a != b), None) == wrong
