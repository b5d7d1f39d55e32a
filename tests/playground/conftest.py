import pytest
from shapes import shapes_checked


@pytest.fixture(autouse=True)
def _shapes_are_not_checked_again():
    with shapes_checked(False):
        yield
