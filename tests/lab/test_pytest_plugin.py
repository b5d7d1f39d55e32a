"""The plug-in that every pytest loads where kvlab is installed."""

import subprocess
import sys

LOADED = """
import sys, pytest
before = set(sys.modules)
import kvlab.fast.lab.pytest_plugin
print(*sorted(set(sys.modules) - before))
"""


def test_the_plugin_loads_nothing_before_its_fixture_is_asked_for():
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    plugin = "kvlab.fast.lab.pytest_plugin"
    parents = [plugin.rsplit(".", n)[0] for n in (3, 2, 1)]
    assert done.stdout.split() == [*parents, plugin]
