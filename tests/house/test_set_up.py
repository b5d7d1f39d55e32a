"""What a newcomer types first, and what they read when something is missing."""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.node import find_node

ROOT = Path(__file__).parents[2]
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


def commands() -> list[str]:
    blocks = re.findall(r"^```\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.M | re.S)
    lines = [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def in_shell(command: str, place: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command line in a folder; the `make` that runs these tests is not its parent."""
    kept = {name: x for name, x in os.environ.items() if not name.startswith(("MAKE", "ARGS"))}
    return subprocess.run(
        ["sh", "-c", command],
        cwd=place,
        env={**kept, **variables},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def clone(tmp_path):
    """Make a folder with the Makefile and what set-up reads, and this environment in it."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "setup.py", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def with_environment(clone: Path) -> Path:
    """Let the folder have the environment of these tests, set up."""
    (clone / ".venv").mkdir()
    (clone / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    for mark in ("demo", "dev"):
        (clone / ".venv" / mark).touch()
    return clone


def stub(path: Path, code: int) -> Path:
    path.write_text(f"#!/bin/sh\nexit {code}\n")
    path.chmod(0o755)
    return path


@needs_make
@pytest.mark.slow
def test_every_command_line_of_the_readme_runs(clone):
    with_environment(clone)
    short = {
        "make demo": "make demo",
        ".venv/bin/kvlab view run.html --budget 50%": ".venv/bin/kvlab view run.html "
        "--budget 50% --methods full --max-new-tokens 2",
    }
    assert set(commands()) == set(short)
    for line in commands():
        done = in_shell(short[line], clone)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
    assert (clone / "run.html").stat().st_size > 10_000


def test_the_readme_is_short_and_its_python_runs(capsys):
    readme = (ROOT / "README.md").read_text("utf-8")
    assert len(readme.split()) < 400
    (code,) = re.findall(r"^```python\n(.*?)^```", readme, re.M | re.S)
    exec(code, {})
    said = [line[2:] for line in code.splitlines() if line.startswith("# ")]
    assert capsys.readouterr().out.splitlines() == said and len(said) == 2
    assert code in (ROOT / "docs/api/fast.md").read_text("utf-8")


# --- what is missing -----------------------------------------------------------------------------


def complaint(clone: Path, command: str, **variables: str) -> str:
    """Return the one line of a command that fails, make's own last word left out."""
    done = in_shell(command, clone, **variables)
    assert done.returncode != 0
    lines = [line for line in done.stdout.splitlines() if line.startswith("kvlab: ")]
    assert len(lines) == 1, (done.stdout, done.stderr)
    return lines[0]


@needs_make
def test_an_old_python_is_refused(clone):
    old = stub(clone / "python3.10", 1)
    said = complaint(clone, "make demo", PYTHON=str(old))
    assert said == "kvlab: needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"


@needs_make
def test_without_network_the_line_names_the_index(clone):
    with_environment(clone)
    (clone / ".venv" / "demo").unlink()
    (clone / ".venv" / "bin").unlink()
    (clone / ".venv" / "bin").mkdir()
    stub(clone / ".venv" / "bin" / "python", 1)
    assert "set-up needs PyPI" in complaint(clone, "make demo")
    assert not (clone / ".venv" / "demo").exists()


@needs_make
def test_a_place_that_cannot_be_written_is_named(clone):
    (clone / ".venv").write_text("a file where the folder should be")
    said = complaint(clone, f"make demo PYTHON={sys.executable}")
    assert said == f"kvlab: {clone}/.venv cannot be made: clone kvlab to where you may write"


@needs_make
def test_a_taken_port_is_named(clone):
    assert complaint(clone, "make serve") == "kvlab: there is no site/ yet: make docs"
    (clone / "site").mkdir()
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        said = complaint(clone, f"make serve PORT={port} PYTHON={sys.executable}")
    assert said == f"kvlab: port {port} is taken: make serve PORT=8001"


@pytest.mark.skipif(os.environ.get("CI") != "true", reason="a promise about CI")
def test_ci_has_a_browser_and_node():
    """Else the tests of the site, the viewer and the playground would be skipped in silence."""
    assert shutil.which("chromium") and find_node()
