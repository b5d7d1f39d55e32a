"""`kvlab.reference.nano` writes what the package writes, for each of its methods."""

from itertools import product

import numpy as np
import pytest

from kvlab.reference import methods, nano
from kvlab.reference.generate import generate
from kvlab.reference.models import embedded_directory
from kvlab.reference.tasks import jumps
from kvlab.reference.transformer import Transformer
from support.sampling import sampled

MOST = 40
"""Tokens that are written."""
DIRECTORY = embedded_directory("jumps")
SPECS = {
    "lazy_eviction": "lazy_eviction@threshold=0.01",
    "ahakv": "ahakv@recent=16",
    "desirekv": "desirekv@interval=32,selector=8,group=32",
}
"""What the file's methods are in registry syntax, where their names are not."""


@pytest.fixture(scope="module")
def both():
    return nano.Model(DIRECTORY), Transformer.from_directory(DIRECTORY)


@pytest.mark.parametrize(
    ("name", "budget"),
    sampled(product(nano.METHODS, (40, 100)), [(name, 40) for name in [*nano.METHODS][::2]]),
)
def test_the_tokens_are_those_of_the_package(both, name, budget):
    """The prompt has more than 40 tokens; 100 are reached while the text is written."""
    small, large = both
    problem = jumps.held_out(1, size=jumps.Size(fewest=14, most=16))[0]
    prompt, solution = small.tokens(problem.prompt), small.tokens(problem.solution)
    spec = SPECS.get(name, name)
    policy = methods.get(spec, budget if methods.takes_budget(spec) else None)
    written = nano.generate(small, nano.METHODS[name](budget), prompt, MOST, solution[-1])
    package = generate(large, policy, prompt, MOST, stop=solution[-1]).tokens
    assert written == list(package)


def test_budgets_of_the_test_tell_methods_apart(both):
    small, _ = both
    problem = jumps.held_out(1, size=jumps.Size(fewest=14, most=16))[0]
    prompt, solution = small.tokens(problem.prompt), small.tokens(problem.solution)
    texts = {
        tuple(nano.generate(small, nano.METHODS[name](40), prompt, MOST, solution[-1]))
        for name in ("full", "random:h2o", "tova", "lazy_eviction", "ahakv")
    }
    assert len(texts) == 5


def test_an_entry_with_all_the_mass_stays():
    """h = (1, 0): evicting the first entry leaves nothing to renormalise."""
    layer = nano.Layer.__new__(nano.Layer)
    layer.attention, layer.values = np.array([[[[1.0, 0.0]]]]), np.eye(2)[None]
    assert nano.CAOTE(nano.TOVA(1)).score(layer).tolist() == [[np.inf, 0.0]]


def test_the_file_is_read_in_one_sitting():
    source = (DIRECTORY.parents[1] / "nano.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 400
