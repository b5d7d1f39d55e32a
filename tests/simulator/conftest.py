import pytest
from shapes import shapes_checked


@pytest.fixture(autouse=True)
def _shapes_are_checked_where_a_test_asks_for_it():
    with shapes_checked(False):
        yield
