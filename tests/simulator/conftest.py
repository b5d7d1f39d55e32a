"""What several tests of the simulator share."""

import pytest

from kvlab.reference import Transformer
from kvlab.reference.models import reasoner_directory
from kvlab.reference.transformer import load_tokenizer
from support.shapes import shapes_checked


@pytest.fixture
def shapes():
    with shapes_checked(True):
        yield


@pytest.fixture(scope="session")
def reasoner():
    directory = reasoner_directory()
    return Transformer.from_directory(directory), load_tokenizer(directory)
