"""The packages of the code, which may import which, and which does: read from the imports.

An import counts wherever it stands, also inside of a function; only one that is there for the type
checker alone does not.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {"kvlab.reference": ROOT / "reference", "kvlab.fast": ROOT / "fast"}

Graph = Mapping[str, set[str]]
"""The modules that each module imports."""

REFERENCE = "kvlab.reference"
FAST = "kvlab.fast"
LAB = "kvlab.fast.lab"
FRONT = "front"
"""`kvlab.reference`, `kvlab.fast` and `kvlab.fast.lab` themselves: they gather what others import
from them, so they may import everything in them."""

REFERENCE_PACKAGES = {
    "reference core": set(),
    "tasks": {"reference core"},
    "embedded models": set(),
    "nano": {"reference core", "embedded models", "tasks"},
    "methods": {"reference core"},
    "simulator": {"reference core", "methods", "tasks"},
    "proofs": {"reference core", "methods", "embedded models", "tasks", "simulator"},
    "conformance": {"reference core", "methods", "embedded models", "tasks", "simulator"},
}
"""The packages of the reference, and those that each may import."""

FAST_PACKAGES = {
    "kernels": set(),
    "engine": {"kernels"},
    "huggingface": {"engine", "kernels"},
    "bridges": {"engine", "kernels", "huggingface"},
    "vllm": {"engine", "kernels", FRONT},
    "models": {"engine", "huggingface"},
    "lab": {"engine", "kernels", "huggingface", "vllm", "models", FRONT},
}
"""The packages of the fast side, and those that each may import beside all of the reference."""


# --- reading -------------------------------------------------------------------------------------


def read_graph(packages: Mapping[str, Path] = PACKAGES) -> Graph:
    """Read which modules of some packages import which others of them."""
    files = {
        name_of(package, path.relative_to(folder)): path
        for package, folder in packages.items()
        for path in folder.rglob("*.py")
    }
    return {
        name: {module(each, files) for each in imported(ast.parse(path.read_text()))} & files.keys()
        for name, path in files.items()
    }


def name_of(package: str, path: Path) -> str:
    """Return the name of the module in a file of a package."""
    parts = (package, *path.with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield what is imported: ``a.b.c`` also for ``from a.b import c``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{each.name}" for each in node.names)
        else:
            yield from imported(node)


def module(name: str, files: Mapping[str, Path]) -> str:
    """Return the module that an imported name is, or in which it is defined."""
    return name if name in files else name.rpartition(".")[0]


# --- packages ------------------------------------------------------------------------------------


def package(name: str) -> str:
    """Return the package of a module, as the picture names it."""
    if name in (REFERENCE, FAST, LAB):
        return FRONT
    if name.startswith(f"{REFERENCE}."):
        first = name.removeprefix(f"{REFERENCE}.").partition(".")[0]
        if first == "models":
            return "embedded models"
        return first if first in REFERENCE_PACKAGES else "reference core"
    first = name.removeprefix(f"{FAST}.").partition(".")[0]
    return first if first in FAST_PACKAGES else "engine"


def allowed(importer: str, target: str) -> bool:
    """Say whether one module may import another."""
    own, other = package(importer), package(target)
    if target.startswith(f"{LAB}.commands"):
        return importer == f"{LAB}.cli" or importer.startswith(f"{LAB}.commands")
    if target == f"{LAB}.cli":
        return importer == f"{LAB}.start"
    if own == FRONT:
        return target.startswith(importer)
    if own == other:
        return True
    if own in REFERENCE_PACKAGES:
        return other in REFERENCE_PACKAGES[own]
    return other in REFERENCE_PACKAGES or target == REFERENCE or other in FAST_PACKAGES[own]


def reachable(graph: Graph, start: str) -> set[str]:
    """Return what a module needs, directly or through others."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found
