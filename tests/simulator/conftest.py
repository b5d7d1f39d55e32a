"""What several tests of the simulator share: an embedded model, and one solution that it wrote."""

import pytest
from shapes import shapes_checked

from kvlab.reference import Transformer
from kvlab.reference.files import load_tokenizer
from kvlab.reference.models import reasoner_directory
from kvlab.reference.simulator.trace import record_trace
from kvlab.reference.tasks import reasoning


@pytest.fixture(autouse=True)
def _shapes_are_checked_where_a_test_asks_for_it():
    with shapes_checked(False):
        yield


@pytest.fixture
def shapes():
    with shapes_checked(True):
        yield


@pytest.fixture(scope="session")
def reasoner():
    directory = reasoner_directory()
    return Transformer.from_directory(directory), load_tokenizer(directory)


@pytest.fixture(scope="session")
def solved(reasoner):
    """Prompt, token that ends an answer, and the trace of an answer."""
    model, tokenizer = reasoner
    prompt = tokenizer.encode(reasoning.held_out(1)[0].prompt).ids
    stop = tokenizer.encode(reasoning.END).ids[0]
    with shapes_checked(False):
        return prompt, stop, record_trace(model, prompt, 200, stop, name="reasoner")
