"""When array shapes are checked: the checks take ten times longer than the computation."""

from contextlib import contextmanager

from jaxtyping import config


@contextmanager
def shapes_checked(checked: bool):
    """Switch the checks of shapes on or off."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", not checked)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", before)
