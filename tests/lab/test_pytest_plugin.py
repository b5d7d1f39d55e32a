"""The plug-in that every pytest loads where kvlab is installed."""

from support.running import python

LOADED = """
import sys, pytest
before = set(sys.modules)
import kvlab.fast.lab.pytest_plugin
print(*sorted(set(sys.modules) - before))
"""


def test_the_plugin_loads_nothing_before_its_fixture_is_asked_for():
    done = python("-c", LOADED, check=True)
    plugin = "kvlab.fast.lab.pytest_plugin"
    parents = [plugin.rsplit(".", n)[0] for n in (3, 2, 1)]
    assert done.stdout.split() == [*parents, plugin]
