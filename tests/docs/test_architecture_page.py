"""The page on the architecture shows what the code is, and its paths lead where they say."""

import re
from functools import cache

import pytest

from support.site import ROOT, module

pytest.importorskip("transformers")

symbols, packages = module("symbols"), module("packages")
linked, bands = module("method_sections").linked, module("package_picture").bands
follow_token = module("token_life").follow_token
read_graph = cache(packages.read_graph)
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_table_names_every_package_and_a_file_that_is_there():
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| `([^`]+)` \|$", PAGE, flags=re.M)
    drawn = {name for rows in bands(read_graph()).values() for row in rows for name in row}
    assert {name for name, _ in rows} == drawn
    assert all((ROOT / place).exists() for _, place in rows)


def test_three_paths_lead_to_lines_that_are_there():
    found = []
    linked(PAGE, lambda target: found.append((target.path, target.name)) or "")
    for path in (
        ("reference/methods/caote.py", "CAOTE 8"),
        ("fast/engine/step.py", "decide"),
        ("reference/proofs/caote.py", "theorem_3_2"),
    ):
        assert path in found
    assert "](docs/architecture.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert symbols.equation("CAOTE 8").inside == "EvictionError.group_error"


@pytest.mark.parametrize("dead", ["fast/engine/step.py:guess", "fast/nothing.py:decide"])
def test_a_dead_path_is_noticed(dead):
    with pytest.raises(ValueError, match=dead.partition(":")[0]):
        linked(f"[there]({dead})", lambda target: "")
    with pytest.raises(ValueError, match="CAOTE 88"):
        linked("[there](equation:CAOTE 88)", lambda target: "")


@pytest.mark.slow
def test_a_token_is_observed_decided_on_and_one_leaves():
    calls = follow_token()
    names = [call.name for call in calls]
    order = ["attend", "LayerCache.append", "attend_as_needed", "decide", "apply"]
    places = [names.index(name) for name in order]
    assert places == sorted(places)
    assert [calls[place].entries for place in places] == [12, 12, 13, 13, 13]
    assert calls[-1].entries == 12
    assert all(packages.allowed("kvlab.fast.lab.cli", call.module) for call in calls)
