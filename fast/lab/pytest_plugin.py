"""The ``kvlab_conformance`` fixture; pytest finds this file by itself where kvlab is installed.

Nothing is imported before a test asks for the fixture.
"""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def kvlab_conformance() -> Callable[..., Any]:
    """Return `kvlab.reference.conformance.check`; here it fails the test if anything is wrong."""
    from kvlab.reference.conformance import Report, check

    def run(method: str | None, implementation: Any, **options: Any) -> Report:
        __tracebackhide__ = True
        report = check(method, implementation, **options)
        report.raise_for_failures()
        return report

    return run
