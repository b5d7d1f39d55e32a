"""The mistakes of ``planted.toml``: the test that each names fails where it is planted."""

import os
import shutil
import tomllib
from pathlib import Path

import pytest

from support.running import python as run

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MISTAKES = tomllib.loads((HERE / "planted.toml").read_text())["mistake"]


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake["what"])
def test_a_mistake_is_noticed(mistake, python, tmp_path):
    tree = tmp_path / "kvlab"
    tree.mkdir()
    shutil.copytree(ROOT / "fast", tree / "fast")
    (tree / "reference").symlink_to(ROOT / "reference")
    file = tree / "fast" / "vllm" / mistake["file"]
    text = file.read_text()
    assert text.count(mistake["right"]) == 1
    file.write_text(text.replace(mistake["right"], mistake["wrong"]))
    command = ("-m", "pytest", "-q", "-x", HERE / mistake["test"], "-p", "no:cacheprovider")
    environment = os.environ | {"KVLAB_PLANTED": str(tmp_path)}
    done = run(*command, "-m", "slow or not slow", cwd=ROOT, env=environment)
    assert done.returncode == 1, done.stdout
    assert "1 failed" in done.stdout and "AssertionError" in done.stdout
