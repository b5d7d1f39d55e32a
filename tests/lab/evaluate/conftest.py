"""Shapes are checked where they are made, not in these tests of whole runs."""

import pytest
from shapes import shapes_checked


@pytest.fixture(scope="module", autouse=True)
def _shapes_are_checked_elsewhere():
    with shapes_checked(False):
        yield
