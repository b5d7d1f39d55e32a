"""The mistakes of ``planted.toml``: the test that each names fails where it is planted."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MISTAKES = tomllib.loads((HERE / "planted.toml").read_text())["mistake"]


@pytest.mark.slow
@pytest.mark.turns
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
    command = [sys.executable, "-m", "pytest", "-q", "-x", str(HERE / mistake["test"])]
    command += ["-m", "slow or not slow", "-p", "no:cacheprovider"]
    environment = os.environ | {"KVLAB_PLANTED": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout
    assert "1 failed" in done.stdout and "AssertionError" in done.stdout
