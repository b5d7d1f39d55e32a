"""What several tests of the simulator share."""

import pytest
from shapes import shapes_checked

from kvlab.reference import Transformer
from kvlab.reference.models import reasoner_directory
from kvlab.reference.transformer import load_tokenizer


@pytest.fixture
def shapes():
    with shapes_checked(True):
        yield


@pytest.fixture(scope="session")
def reasoner():
    directory = reasoner_directory()
    return Transformer.from_directory(directory), load_tokenizer(directory)
